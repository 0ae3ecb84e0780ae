"""Reading stored entries: catalog, indexes, segments.

Owns: the modules below; the package itself exports nothing.
"""
