"""Ports for servers that run on this machine.

Owns: `free_port`. Imports: the standard library only.
Invariants: a port is given once per process, and lies below those that the kernel gives to outgoing connections: one of these cannot take it
between the moment it is chosen and the moment its server listens, nor while that server is down between two lives.
"""

from __future__ import annotations

import random
import socket

LOWEST, HIGHEST = 20_000, 29_999
"""Below Linux' ephemeral ports (32768..60999) and Kubernetes' node ports (30000..32767)."""
HOST = "127.0.0.1"
_given: set[int] = set()


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    for _ in range(HIGHEST - LOWEST):
        port = random.randint(LOWEST, HIGHEST)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        _given.add(port)
        return port
    raise OSError(f"no free port in {LOWEST}..{HIGHEST}: something on this machine listens on all of them")
