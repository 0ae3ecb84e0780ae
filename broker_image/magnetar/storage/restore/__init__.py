"""Rebuilding a lost metadata store from storage.

Owns: the modules below; the package itself exports nothing.
"""
