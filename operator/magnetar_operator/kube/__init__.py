"""The Kubernetes API: connection, caches, watches, events, leadership.

Owns: the modules below; the package itself exports nothing.
"""
