"""The core of a transaction coordinator.

Owns: the modules below; the package itself exports nothing.
"""
