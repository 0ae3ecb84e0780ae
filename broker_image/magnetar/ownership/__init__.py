"""Balance: the pure rules of who serves which bundle.

Owns: transitions of bundle records and the choice of an owner. Imports: errors, metadata.records.
Pure.
"""
