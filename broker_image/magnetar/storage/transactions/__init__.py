"""Formats of the transaction coordinators' logs and of topics' transaction records.

Owns: the modules below; the package itself exports nothing.
"""
