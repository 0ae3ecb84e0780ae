"""Level-1 segments: entries of one bundle, compacted from many log files.

Owns: the modules below; the package itself exports nothing.
"""
