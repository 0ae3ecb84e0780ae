"""What clients ask of a broker.

Owns: the commands of the protocol, by subject; `service` passes each to the class that answers it.
Imports: wire, names, topics.
"""
