"""Ports for servers that run on this machine.

Owns: `free_port`. Imports: the standard library only. Invariants: a port is given once per process,
to one process of this user at a time, and lies below those that the kernel gives to outgoing
connections: neither these nor tests beside it can take it between the moment it is chosen and the
moment its server listens, nor while that server is down between two incarnations.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path

LOWEST, HIGHEST = 20_000, 29_999
"""Below Linux' ephemeral ports (32768..60999) and Kubernetes' node ports (30000..32767)."""
HOST = "127.0.0.1"
_given: set[int] = set()


@cache
def _register() -> int:
    """A file in which the byte of every port that is given away is locked by its process, until
    that ends."""
    path = Path(tempfile.gettempdir()) / f"magnetar-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _claim(port: int) -> bool:
    try:
        fcntl.lockf(_register(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    for _ in range(HIGHEST - LOWEST):
        port = random.randint(LOWEST, HIGHEST)
        if port in _given or not _claim(port):
            continue
        _given.add(port)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        return port
    raise OSError(
        f"no free port in {LOWEST}..{HIGHEST}: something on this machine listens on all of them"
    )
