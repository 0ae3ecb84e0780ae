"""The trouble-making proxy does what it says: passes, cuts, stalls, answers late."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from dev.ports import free_port
from dev.tcp_proxy import TcpProxy

HOST = "127.0.0.1"
WAIT_S = 120.0
QUIET_S = 0.2


class Echo:
    """A server that sends everything back."""

    def __init__(self) -> None:
        self.listener = socket.create_server((HOST, 0))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                return


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    echo = Echo()
    proxy = TcpProxy(HOST, free_port(), echo.listener.getsockname())
    proxy.start()
    yield proxy
    proxy.stop()
    echo.listener.close()


def connected(proxy: TcpProxy) -> socket.socket:
    connection = socket.create_connection((HOST, proxy.port), WAIT_S)
    connection.settimeout(WAIT_S)
    return connection


def ask(connection: socket.socket, data: bytes) -> bytes:
    """Send, and what comes back; b"" if the connection ended."""
    got = b""
    try:
        connection.sendall(data)
        while len(got) < len(data):
            more = connection.recv(65536)
            if not more:
                return b""
            got += more
    except ConnectionError:
        return b""
    return got


def test_bytes_pass_unchanged(proxy: TcpProxy) -> None:
    """More than every buffer on the way, over several connections."""
    data = bytes(range(256)) * 4096
    for _ in range(3):
        with connected(proxy) as connection:
            sender = threading.Thread(target=connection.sendall, args=(data,))
            sender.start()
            got = bytearray()
            while len(got) < len(data):
                got += connection.recv(65536)
            sender.join()
        assert bytes(got) == data


def test_a_cut_ends_connections_and_refuses_new_ones_until_it_heals(proxy: TcpProxy) -> None:
    with connected(proxy) as before:
        assert ask(before, b"one") == b"one"
        proxy.cut()
        assert ask(before, b"two") == b""
    with connected(proxy) as during:
        assert ask(during, b"three") == b""
    proxy.heal()
    with connected(proxy) as after:
        assert ask(after, b"four") == b"four"
        assert proxy.drop() == 1
        assert ask(after, b"five") == b""


def test_a_stall_keeps_connections_and_what_they_carry(proxy: TcpProxy) -> None:
    with connected(proxy) as connection:
        assert ask(connection, b"one") == b"one"
        proxy.stall()
        connection.sendall(b"two")
        connection.settimeout(QUIET_S)
        with pytest.raises(TimeoutError):
            connection.recv(16)
        proxy.heal()
        connection.settimeout(WAIT_S)
        assert connection.recv(16) == b"two"


def test_a_slow_target_is_late_but_not_slower(proxy: TcpProxy) -> None:
    """Ten questions asked at once are all answered after one delay."""
    with connected(proxy) as connection:
        proxy.slow(QUIET_S)
        started = time.monotonic()
        assert ask(connection, b"0123456789") == b"0123456789"
        assert time.monotonic() - started >= QUIET_S
        proxy.heal()
        assert ask(connection, b"quick") == b"quick"


def test_one_that_never_listened_is_stopped_as_well() -> None:
    """Not started, or on a port that is taken: a cleanup after a failed start goes on. Twice is
    once."""
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        refused = TcpProxy(HOST, port, (HOST, port))
        with pytest.raises(OSError, match="address already in use"):
            refused.start()
    for proxy in (refused, TcpProxy(HOST, port, (HOST, port))):
        proxy.stop()
        proxy.stop()
