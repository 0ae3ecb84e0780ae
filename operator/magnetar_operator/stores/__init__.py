"""Clusters' metadata stores as the operator uses them.

Owns: the modules below; the package itself exports nothing.
"""
