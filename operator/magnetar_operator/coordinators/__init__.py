"""Reconciling a `TransactionCoordinator`.

Owns: the modules below; the package itself exports nothing.
"""
