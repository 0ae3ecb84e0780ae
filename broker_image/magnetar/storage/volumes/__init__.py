"""Volumes: where log files and objects lie (POSIX, slots of objects, S3).

Owns: the modules below; the package itself exports nothing.
"""
