"""How a process is reached.

Owns: its ports and the addresses that it advertises, TLS, the HTTP listener. Imports:
magnetar.network.
"""
