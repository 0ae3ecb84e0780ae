"""One client: bytes in, bytes out.

Owns: the connections of a process and what lives as long as one: the hot path of SEND, sessions of
producers and consumers, back-pressure, refusals. Imports: wire, topics.
"""
