"""Transactions: coordinator, transaction buffer, pending acknowledgements.

Owns: what of PIP-31 needs no I/O. Imports: errors, names, topics. Pure: events in, effects out;
records are plain values, storage has their codecs.
"""
