"""Clusters, control planes and drivers that tests and load generators start.

Owns: the modules below; the package itself exports nothing.
"""
