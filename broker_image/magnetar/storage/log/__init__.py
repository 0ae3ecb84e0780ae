"""The log of one incarnation: writing, sealing, fencing and reading it back.

Owns: the modules below; the package itself exports nothing.
"""
