"""Rebuilding a bundle from the logs of its former owners.

Owns: the modules below; the package itself exports nothing.
"""
