"""Reading stored entries: catalog, indexes, segments, corruption.

Owns: the modules below; the package itself exports nothing.
"""
