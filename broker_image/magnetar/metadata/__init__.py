"""The metadata store: what every backend promises, and the backends.

Owns: the promise (`store`), keys and records, the pure core, the embedded and etcd backends,
leases and election. Imports: errors, names, clock; grpc only in the etcd modules, which no other
module here imports.
"""
