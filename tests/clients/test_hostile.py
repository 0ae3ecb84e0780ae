"""Peers without credentials who take what they can get, beside an ordinary client: it publishes
and receives, and probes are answered."""

from __future__ import annotations

import contextlib
import os
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from dev.bench.idle_peers import Holder
from dev.server_process import HOST, ServerProcess

pytestmark = pytest.mark.slow
OPEN_FILES = 512
RECEIVE_MS = 120_000
PATIENCE_S = 120.0
KEEP_ALIVE_S = 5
"""For as long a busy machine may stand still before idle connections go as well."""
HALF_REQUEST = b"GET /ready HTTP/1.1\r\nHost: x"
HALF_FRAME = b"\x00\x40\x00\x00\x00\x40"
"""Announces 4 MiB."""
SLOW_BYTES = 50 * (2 << 20)
"""Of unfinished frames."""
RECEIVE_BYTES_MAX = 32 << 20
LARGE = bytes(4 << 20)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A standalone server that may open few files."""
    with ServerProcess(tmp_path_factory.mktemp("hostile"), open_files=OPEN_FILES) as running:
        yield running


def descriptors(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


def probe(server: ServerProcess) -> None:
    for path in ("/live", "/ready", "/metrics"):
        with urllib.request.urlopen(server.http_url + path, timeout=PATIENCE_S) as answer:
            assert answer.status == 200


def metric(server: ServerProcess, name: str) -> float:
    with urllib.request.urlopen(server.http_url + "/metrics", timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name))


@pytest.mark.parametrize(
    ("listener", "said"),
    [("broker", b""), ("broker", HALF_FRAME), ("http", b""), ("http", HALF_REQUEST)],
    ids=["silent", "half a frame", "silent HTTP", "half a request"],
)
def test_connections_that_show_nothing_keep_no_one_out(
    server: ServerProcess, listener: str, said: bytes
) -> None:
    """Twice as many as the process may open files; an open client goes on, a new one gets in,
    probes are answered, the files come back."""
    port = server.broker_port if listener == "broker" else server.http_port
    with contextlib.ExitStack() as opened:
        client = opened.enter_context(contextlib.closing(pulsar.Client(server.service_url)))
        consumer = client.subscribe("ordinary", f"{listener}-{len(said)}")
        producer = client.create_producer("ordinary")
        before = descriptors(server)
        for number in range(2 * OPEN_FILES):
            peer = opened.enter_context(
                contextlib.closing(socket.create_connection((HOST, port), timeout=PATIENCE_S))
            )
            with contextlib.suppress(ConnectionError):
                peer.sendall(said)
            if number % 200 == 0:
                probe(server)
                producer.send(str(number).encode())
        probe(server)
        late = opened.enter_context(contextlib.closing(pulsar.Client(server.service_url)))
        late.create_producer("ordinary").send(b"late")
        received = [consumer.receive(RECEIVE_MS).data() for _ in range(7)]
        assert received == [
            *(str(number).encode() for number in range(0, 2 * OPEN_FILES, 200)),
            b"late",
        ]
        assert descriptors(server) < OPEN_FILES
    assert server.running
    assert "Too many open files" not in server.log_path.read_text()
    while descriptors(server) > before:  # the peers have gone, and the server notices
        probe(server)


def test_frames_that_do_not_end_are_closed_and_idle_connections_stay(tmp_path: Path) -> None:
    """Peers after their CONNECT, of which each holds 2 MiB of a message and sends a byte now and
    then, go within some keep-alives, with the memory that they held; hundreds of idle ones stay, and
    an ordinary client notices nothing."""
    quick = ServerProcess(tmp_path, environment={"MAGNETAR_KEEP_ALIVE_S": str(KEEP_ALIVE_S)})
    with quick, Holder("idle", quick.broker_port, 300) as idle:
        before = quick.resident_bytes()
        with contextlib.closing(pulsar.Client(quick.service_url)) as client:
            consumer = client.subscribe("ordinary", "s")
            producer = client.create_producer("ordinary")
            with Holder("large frame", quick.broker_port, 50, every_s=0.2) as slow:
                producer.send(b"beside")
                assert slow.ended(wait=True).closed == 50
            while quick.resident_bytes() > before + SLOW_BYTES // 2:
                producer.send(b"in between")
            producer.send(b"after")
            assert consumer.receive(RECEIVE_MS).data() == b"beside"
        assert idle.ended(wait=False).left == 300


def test_unfinished_frames_of_hundreds_of_peers_take_bounded_memory(tmp_path: Path) -> None:
    """Each sends half of a message of 4 MiB and then hardly anything: most are not read, and large
    messages of an ordinary client go on beside them."""
    peers, beside = 300, 0
    bounded = ServerProcess(
        tmp_path, environment={"MAGNETAR_RECEIVE_BYTES_MAX": str(RECEIVE_BYTES_MAX)}
    )
    with bounded, contextlib.closing(pulsar.Client(bounded.service_url)) as client:
        consumer = client.subscribe("ordinary", "s")
        producer = client.create_producer("ordinary")
        producer.send(LARGE)
        before = bounded.resident_bytes()
        with Holder("large frame", bounded.broker_port, peers, every_s=0.2):
            while metric(bounded, "magnetar_receive_waiting") < peers // 2:
                producer.send(b"beside")
                beside += 1
            for _ in range(5):
                producer.send(LARGE)
            grown = bounded.resident_bytes() - before
        assert grown < 2 * RECEIVE_BYTES_MAX + 5 * len(LARGE), f"{grown >> 20} MiB"
        received = [consumer.receive(RECEIVE_MS).data() for _ in range(1 + beside + 5)]
        assert received == [LARGE, *[b"beside"] * beside, *[LARGE] * 5]
