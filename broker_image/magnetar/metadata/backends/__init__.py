"""The metadata store's backends: memory, embedded, etcd, and one that fails on purpose.

Owns: the modules below; the package itself exports nothing.
"""
