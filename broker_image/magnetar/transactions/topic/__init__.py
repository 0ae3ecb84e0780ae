"""Transactions of one topic: buffer, fences, links, pending acknowledgements.

Owns: the modules below; the package itself exports nothing.
"""
