"""`python -m dev.bench.idle_peers KIND --port P --connections N`: a process that holds connections.

Owns: `KINDS` of peers, idle ones and those that send a byte every few seconds, and `Holder`, such a
process seen by a benchmark. Imports: wire, uvloop. Invariants: the process prints one line of JSON
when all are open, and one when all have ended or its standard input has; then it ends, and its
connections with it. Source addresses are spread over 127.0.0.0/8, because a server limits the
connections of one address.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self, cast

import uvloop

from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.commands import PING, PONG
from magnetar.wire.frames import encode_command

HOST = "127.0.0.1"
PER_ADDRESS, AT_ONCE = 2_500, 50
CONNECT = encode_command(
    api.BaseCommand(
        type=api.BaseCommand.CONNECT,
        connect=api.CommandConnect(client_version="idle-peers", protocol_version=21),
    )
)
FRAME_BYTES = 4 << 20
FRAME = FRAME_BYTES.to_bytes(4, "big") + (64).to_bytes(4, "big")
"""How a command of 64 bytes in a frame of 4 MiB begins."""
BURST_BYTES = 300 << 10
BURST = (len(PONG) - 4 + BURST_BYTES).to_bytes(4, "big") + PONG[4:] + bytes(BURST_BYTES)
"""A whole frame as large as one of a producer with large messages; its body means nothing."""
REQUEST = b"POST /admin/v2/tenants/slow HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@dataclass(frozen=True, slots=True)
class Kind:
    """What peers of a kind send: at once, after CONNECTED, and a byte of what is without end."""

    first: bytes
    then: bytes = b""
    bytes_each: bytes = b""
    """The byte that is sent every few seconds; b"" = nothing."""


KINDS = {
    "idle": Kind(CONNECT),
    "idle after a burst": Kind(CONNECT, BURST),
    "CONNECT": Kind(CONNECT[:4], b"", CONNECT[4:5]),
    "frame": Kind(CONNECT, FRAME, b"\x00"),
    "large frame": Kind(CONNECT, FRAME + bytes(FRAME_BYTES // 2), b"\x00"),
    "HTTP head": Kind(b"GET /ready HTTP/1.1\r\nHost: ", b"", b"x"),
    "HTTP body": Kind(REQUEST + b"Content-Length: 1000\r\n\r\n", b"", b"x"),
}


@dataclass(slots=True)
class Ended:
    """How the peers of a process fared: seconds that those lived whom the server closed."""

    closed: int
    shortest_s: float
    longest_s: float
    left: int


class Peer(asyncio.Protocol):
    """One connection; a client of the broker answers PING while it owes no frame."""

    def __init__(self, kind: Kind, peers: Peers) -> None:
        self._kind, self._peers = kind, peers
        self.transport: asyncio.Transport | None = None
        self._begun, self._connected = 0.0, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is not derived from it
        self._begun = time.monotonic()
        self._peers.open[self] = None
        self.transport.write(self._kind.first)

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        if self._kind.first is not CONNECT:
            return  # of HTTP: an answer, behind which the server closes
        if not self._connected:
            self._connected = True
            self._peers.connected += 1
            self.transport.write(self._kind.then)
        elif not self._kind.bytes_each and (pings := data.count(PING)):
            self.transport.write(PONG * pings)

    def connection_lost(self, _exc: Exception | None) -> None:
        del self._peers.open[self]
        self._peers.lived_s.append(time.monotonic() - self._begun)


class Peers:
    """All connections of this process."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.open: dict[Peer, None] = {}
        self.connected = 0
        self.lived_s: list[float] = []

    async def begin(self, port: int, count: int) -> None:
        """Open them, some at once, and wait until the server has answered each CONNECT."""
        loop, turn = asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE)

        async def connect(number: int) -> None:
            async with turn:
                source = f"127.0.1.{1 + number // PER_ADDRESS}"
                await loop.create_connection(
                    lambda: Peer(self._kind, self), HOST, port, local_addr=(source, 0)
                )

        await asyncio.gather(*map(connect, range(count)))
        while self._kind.first is CONNECT and self.connected < count:
            await asyncio.sleep(0.05)

    async def trickle(self, every_s: float) -> None:
        """Have each send its byte, until all have ended."""
        while self.open:
            await asyncio.sleep(every_s)
            for peer in self.open if self._kind.bytes_each else ():
                assert peer.transport is not None
                peer.transport.write(self._kind.bytes_each)

    def ended(self) -> Ended:
        lived = self.lived_s or [0.0]
        return Ended(len(self.lived_s), min(lived), max(lived), len(self.open))


async def _hold(kind: Kind, port: int, count: int, every_s: float) -> None:
    peers, loop = Peers(kind), asyncio.get_running_loop()
    begun = time.monotonic()
    trickling = asyncio.create_task(peers.trickle(every_s)) if kind.bytes_each else None
    await peers.begin(port, count)
    if trickling is None or trickling.done():
        trickling = asyncio.create_task(peers.trickle(every_s))
    print(json.dumps({"opened_s": time.monotonic() - begun}), flush=True)
    order = loop.run_in_executor(None, sys.stdin.readline)
    await asyncio.wait((trickling, order), return_when=asyncio.FIRST_COMPLETED)
    print(json.dumps(asdict(peers.ended())), flush=True)
    for peer in list(peers.open):
        if peer.transport is not None:
            peer.transport.abort()
    await order


class Holder:
    """A process with such connections, open while the context is; `ended` waits for the server
    to close them."""

    def __init__(self, kind: str, port: int, count: int, every_s: float = 2.0) -> None:
        self._arguments = [kind, "--port", str(port), "--connections", str(count)]
        self._arguments += ["--every", str(every_s)]
        self._process: subprocess.Popen[str] | None = None
        self.opened_s = 0.0
        self._ended: Ended | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dev.bench.idle_peers", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.opened_s = self._read()["opened_s"]
        return self

    def ended(self, *, wait: bool) -> Ended:
        """How they fared. `wait`: until the server has closed the last of them; else now, and
        they end."""
        if self._ended is None:
            assert self._process is not None
            assert self._process.stdin is not None
            if not wait:
                self._process.stdin.close()
            self._ended = Ended(**self._read())
        return self._ended

    def _read(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process that holds connections failed: {self._arguments}")
        found: dict[str, Any] = json.loads(line)
        return found

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.read()  # what no one has asked for
        self._process.__exit__(kind, value, trace)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dev.bench.idle_peers", description=__doc__)
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--every", type=float, default=2.0)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(_hold(KINDS[options.kind], options.port, options.connections, options.every))


if __name__ == "__main__":
    main()
