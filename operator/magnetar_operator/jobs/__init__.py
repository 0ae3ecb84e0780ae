"""Reconciling a `DataJob`.

Owns: the modules below; the package itself exports nothing.
"""
