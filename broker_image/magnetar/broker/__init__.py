"""The hosts: the only place with sockets, threads and processes.

Owns: what drives the pure cores. Imports: every other package; nobody imports this one but the
command line.
"""
