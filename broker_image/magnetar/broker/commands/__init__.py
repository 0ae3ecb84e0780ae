"""What clients ask of a broker.

Owns: the commands of the protocol, by subject; `service` leads each to who answers it. Imports:
wire, names, topics.
"""
