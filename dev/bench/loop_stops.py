"""`python -m dev.bench.loop_stops [case ...] [--tree PATH]`: how long the largest commands stop a
server's event loop.

Owns: the largest commands that one peer can send, and the longest time in which another peer's PING
has no answer. Imports: load_client, report, dev.server_process. A standalone server each; timing
never fails anything.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from dev.bench.load_client import LoadConnection, LoadFailed, Publisher, send_frames
from dev.bench.report import table
from dev.server_process import ServerProcess
from magnetar.transactions.ids import TxnId
from magnetar.wire import commands, requests
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.varints import varint

TOPIC = "persistent://public/default/stops"
SHARED, KEY_SHARED = int(api.CommandSubscribe.Shared), int(api.CommandSubscribe.Key_Shared)
FRAME_BYTES = 5 << 20
PER_WRITE = 500
PROBE_S = 0.002
QUIET_S = 1.0
TXN = TxnId(0, 1 << 40)


class Stops:
    """Asks for PONG on a connection of its own, all the time."""

    def __init__(self, port: int) -> None:
        self._connection = LoadConnection(port)
        self.longest_s = 0.0
        self._ended = False
        self._thread = threading.Thread(target=self._probe, daemon=True)
        self._thread.start()

    def _probe(self) -> None:
        while not self._ended:
            begun = time.perf_counter()
            self._connection.socket.sendall(commands.PING)
            wait_for(self._connection, int(api.BaseCommand.PONG))
            self.longest_s = max(self.longest_s, time.perf_counter() - begun)
            time.sleep(PROBE_S)

    def end(self) -> float:
        self._ended = True
        self._thread.join()
        self._connection.close()
        return self.longest_s


class Scene(NamedTuple):
    """A consumer 1 of a topic, and the ids of its messages."""

    server: ServerProcess
    consumer: LoadConnection
    ids: Sequence[api.MessageIdData]


class Case(NamedTuple):
    """`entries` in the topic, `delivered` before what is measured; `frames` are made before the
    measurement begins."""

    entries: int
    kind: int
    delivered: int
    frames: Callable[[Scene], Iterable[bytes]]


def wait_for(connection: LoadConnection, *kinds: int) -> None:
    """Until a command of one of these kinds has come."""
    while True:
        found = {connection.byte(start + 1) for start, _body, _end in connection.frames()}
        connection.forget()
        if found & set(kinds):
            return
        if not connection.receive():
            raise LoadFailed("the server has closed the connection")


def shuffled(ids: Sequence[api.MessageIdData]) -> list[api.MessageIdData]:
    found = list(ids)
    random.Random(1).shuffle(found)
    return found


def command(kind: int, body: bytes) -> bytes:
    """A frame whose sub-message is `body`."""
    sizes = b"\x08" + varint(kind) + varint(kind << 3 | 2) + varint(len(body)) + body
    return (len(sizes) + 4).to_bytes(4, "big") + len(sizes).to_bytes(4, "big") + sizes


def _ack(ids: Sequence[api.MessageIdData], **options: object) -> bytes:
    return requests.ack(1, ids, request_id=7, **options)  # type: ignore[arg-type]


def _tiny_ids(_scene: Scene) -> list[bytes]:
    """As many ids as fit into a frame; none of them exists."""
    return [
        command(
            int(api.BaseCommand.ACK),
            b"\x08\x01\x10\x00"
            + b"\x1a\x04\x08\x01\x10\x01" * (FRAME_BYTES // 6 - 10)
            + b"\x40\x07",
        )
    ]


def _acks_one_by_one(scene: Scene) -> list[bytes]:
    return [requests.ack(1, [found]) for found in shuffled(scene.ids[::2])] + [_ack([])]


def _flows(_scene: Scene) -> list[bytes]:
    return [requests.flow(1, 1)] * 300_000 + [_ack([])]


def _strings(_scene: Scene) -> list[bytes]:
    """A command that only brokers send, with as many strings as fit."""
    return [
        command(
            int(api.BaseCommand.WATCH_TOPIC_UPDATE),
            b"\x08\x01\x22\x00" + b"\x12\x00" * (FRAME_BYTES // 2 - 20),
        ),
        _ack([]),
    ]


def _properties(_scene: Scene) -> list[bytes]:
    body = b"\x0a\x01t\x10\x01" + b"\x42\x04\x0a\x00\x12\x00" * (FRAME_BYTES // 6 - 10)
    return [command(int(api.BaseCommand.LOOKUP), body), _ack([])]


def _redelivered_then_acknowledged(scene: Scene) -> list[bytes]:
    """Every second message, so that none of them joins another."""
    return [
        requests.redeliver(1, scene.ids),
        *(_ack(scene.ids[at : at + 2000 : 2], txn=TXN) for at in range(0, 6000, 2000)),
    ]


CASES = {
    "ack-60k": Case(120_000, SHARED, 0, lambda scene: [_ack(shuffled(scene.ids[::2]))]),
    "ack-200k": Case(400_000, SHARED, 0, lambda scene: [_ack(shuffled(scene.ids[::2]))]),
    "ack-40k-held": Case(80_000, SHARED, 50_000, lambda scene: [_ack(shuffled(scene.ids[::2]))]),
    "ack-40k-keys": Case(
        80_000, KEY_SHARED, 50_000, lambda scene: [_ack(shuffled(scene.ids[::2]))]
    ),
    "ack-largest": Case(1000, SHARED, 0, _tiny_ids),
    "acks-60k": Case(120_000, SHARED, 0, _acks_one_by_one),
    "redeliver-150k": Case(
        150_000,
        SHARED,
        50_000,
        lambda scene: [requests.redeliver(1, shuffled(scene.ids)), _ack([])],
    ),
    "redeliver-keys": Case(
        150_000,
        KEY_SHARED,
        50_000,
        lambda scene: [requests.redeliver(1, shuffled(scene.ids)), _ack([])],
    ),
    "txn-after-redelivery": Case(20_000, SHARED, 20_000, _redelivered_then_acknowledged),
    "txn-keys": Case(20_000, KEY_SHARED, 20_000, _redelivered_then_acknowledged),
    "txn-scattered": Case(
        40_000, SHARED, 0, lambda scene: [_ack(shuffled(scene.ids[:3000:2]), txn=TXN)]
    ),
    "flows": Case(1000, SHARED, 0, _flows),
    "strings": Case(1000, SHARED, 0, _strings),
    "properties": Case(1000, SHARED, 0, _properties),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="case", help=", ".join(CASES))
    parser.add_argument("--tree", action="append", type=Path, help="a checkout; several take turns")
    options = parser.parse_args()
    rows = []
    for name in options.cases or CASES:
        for tree in options.tree or [Path()]:
            longest, whole = measure(CASES[name], tree.resolve())
            rows.append([tree.name or "here", name, f"{longest * 1000:.0f}", f"{whole:.2f}"])
            print(*rows[-1], flush=True)
    print(table(["tree", "case", "longest stop (ms)", "until answered (s)"], rows))


def measure(case: Case, tree: Path) -> tuple[float, float]:
    """(the longest stop, until the last command is answered), in seconds."""
    path = os.pathsep.join(str(tree / part) for part in ("broker_image", "."))
    with tempfile.TemporaryDirectory(prefix="magnetar-stops-") as directory:
        server = ServerProcess(Path(directory), environment={"PYTHONPATH": path})
        with server:
            consumer = LoadConnection(server.broker_port)
            consumer.subscribe(TOPIC, case.kind)
            scene = Scene(server, consumer, _publish(server, case.entries))
            _deliver(consumer, case.delivered)
            data = b"".join(case.frames(scene))
            time.sleep(QUIET_S)
            stops, begun = Stops(server.broker_port), time.perf_counter()
            consumer.socket.sendall(data)
            try:
                wait_for(consumer, int(api.BaseCommand.ACK_RESPONSE), int(api.BaseCommand.ERROR))
            except LoadFailed:
                print("(the server closed the connection)")
            whole = time.perf_counter() - begun
            time.sleep(QUIET_S)
            longest = stops.end()
            consumer.close()
            return longest, whole


def _publish(server: ServerProcess, entries: int) -> list[api.MessageIdData]:
    producer = LoadConnection(server.broker_port)
    producer.producer(TOPIC)
    frames = send_frames(10, 1, PER_WRITE)
    first = _publish_first(producer, frames[0])
    publisher = Publisher(producer, frames, 1, PER_WRITE, 20 * PER_WRITE)
    for number in range(-(-(entries - 1) // PER_WRITE)):
        publisher.write(number)
    publisher.settle()
    producer.close()
    return [
        api.MessageIdData(ledgerId=first.ledgerId, entryId=first.entryId + number)
        for number in range(entries)
    ]


def _publish_first(producer: LoadConnection, frame: bytes) -> api.MessageIdData:
    producer.socket.sendall(frame)
    while True:
        for start, body, _end in producer.frames():
            if producer.byte(start + 1) == api.BaseCommand.SEND_RECEIPT:
                found = producer.command(start, body).send_receipt.message_id
                producer.forget()
                return found
        producer.forget()
        producer.receive()


def _deliver(consumer: LoadConnection, messages: int) -> None:
    """Take so many messages, and leave them unacknowledged."""
    if messages:
        consumer.socket.sendall(requests.flow(1, messages))
    while messages > 0:
        consumer.receive()
        messages -= sum(
            consumer.byte(start + 1) == api.BaseCommand.MESSAGE
            for start, _body, _end in consumer.frames()
        )
        consumer.forget()


if __name__ == "__main__":
    main()
