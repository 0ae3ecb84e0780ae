"""One client: bytes in, bytes out.

Owns: the connections of a process and the state of each: the hot path of SEND, sessions of
producers and consumers, back-pressure, refusals. Imports: wire, ports.
"""
