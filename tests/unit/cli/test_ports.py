"""A port that is taken is reported with its owner and with what to do."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from dev.ports import free_port
from magnetar.cli.serve import require_free_port
from magnetar.errors import InvalidRequest

HOST = "127.0.0.1"


def test_a_taken_port_names_its_owner_and_the_variable() -> None:
    """The process' name and pid, and a command that works."""
    with socket.create_server((HOST, 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(InvalidRequest) as refused:
            require_free_port(HOST, port, "BROKER_PORT")
    text = str(refused.value)
    name = Path("/proc/self/comm").read_text().strip()
    assert f"port {port} is in use by {name} (pid {os.getpid()})" in text
    assert f"BROKER_PORT={port + 1}" in text


def test_a_free_port_and_any_port_pass() -> None:
    """A port that was just given up (TIME_WAIT or not) is free; 0 asks for whatever is free
    later."""
    port = free_port()  # none that the kernel gives to an outgoing connection
    with socket.create_server((HOST, port)) as listening, socket.create_connection((HOST, port)):
        accepted, _ = listening.accept()
        accepted.close()
    require_free_port(HOST, port, "BROKER_PORT")
    require_free_port(HOST, 0, "BROKER_PORT")


def test_a_port_above_the_last_is_not_suggested() -> None:
    """65536 is no port."""
    with socket.socket() as listening:
        try:
            listening.bind((HOST, 65535))
        except OSError:
            pytest.skip("port 65535 is taken by another process")
        listening.listen()
        with pytest.raises(InvalidRequest) as refused:
            require_free_port(HOST, 65535, "HTTP_PORT")
    assert "65536" not in str(refused.value)
