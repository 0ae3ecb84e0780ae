"""Dispatchers: which consumer receives which entry.

Owns: the modules below; the package itself exports nothing.
"""
