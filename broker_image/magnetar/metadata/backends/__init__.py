"""The metadata store's backends: memory, embedded, etcd.

Owns: the modules below; the package itself exports nothing.
"""
