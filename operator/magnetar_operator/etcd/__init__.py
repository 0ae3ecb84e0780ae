"""The managed etcd of a cluster.

Owns: the modules below; the package itself exports nothing.
"""
