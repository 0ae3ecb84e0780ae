"""Ports that tests beside each other are given."""

from __future__ import annotations

import subprocess
import sys

from dev import ports

PORTS = 300
GIVE = f"""
import random, sys
from dev.ports import free_port
random.seed(7)
print(*(free_port() for _ in range({PORTS})), flush=True)
sys.stdin.read()
"""


def test_two_processes_are_never_given_the_same_port() -> None:
    """Both draw the same numbers while both live; nobody listens on any of them yet."""
    givers = [
        subprocess.Popen(
            [sys.executable, "-c", GIVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        given = []
        for giver in givers:
            assert giver.stdout is not None
            given += giver.stdout.readline().split()
    finally:
        for giver in givers:
            giver.communicate("")
    assert len(set(given)) == len(given) == 2 * PORTS


def test_a_port_is_given_once_and_below_those_of_outgoing_connections() -> None:
    given = [ports.free_port() for _ in range(50)]
    assert len(set(given)) == 50
    assert all(ports.LOWEST <= port <= ports.HIGHEST for port in given)
