"""Pods of every set that the operator rolls.

Owns: the modules below; the package itself exports nothing.
"""
