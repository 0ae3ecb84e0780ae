"""A load on one server over raw sockets, cheap enough not to be what is measured.

Owns: connections that speak prebuilt frames, a closed-loop and a paced publisher, a consumer that
grants permits and groups acknowledgements as the Java client does. Imports: magnetar.wire (frames
only), the standard library. Invariants: every frame is built before the clock starts; latency is
taken per write, as often as a receipt or a message is seen; an error answer of the server ends the
run with its text.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable

from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.entries import encode_entry
from magnetar.wire.frames import encode_command, encode_with_body

Type = api.BaseCommand.Type
RECEIVE_BYTES = 1 << 20
SUBSCRIPTION = "bench"
ACK_GROUP = 1000
ACK_GROUP_S = 0.1
QUEUE = 1000
DISTINCT_FRAMES = 2000
SILENCE_S = 30.0
_SIZES = struct.Struct(">II")


class LoadFailed(RuntimeError):
    """The server refused something."""


class LoadConnection:
    """One socket after its handshake."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._request = 0
        connect = api.CommandConnect(client_version="magnetar-bench", protocol_version=21)
        self._ask(api.BaseCommand(type=Type.CONNECT, connect=connect), Type.CONNECTED)

    def _ask(self, command: api.BaseCommand, expected: int) -> api.BaseCommand:
        self.socket.sendall(encode_command(command))
        while True:
            for start, body, _end in self.frames():
                answer = api.BaseCommand.FromString(bytes(self._buffer[start:body]))
                if answer.type == expected:
                    self.forget()
                    return answer
                if answer.type in (Type.ERROR, Type.SEND_ERROR):
                    raise LoadFailed(str(answer))
            self.forget()
            self.receive()

    def _look_up(self, topic: str) -> None:
        """Makes the broker take the topic's bundle."""
        self._request += 1
        lookup = api.CommandLookupTopic(topic=topic, request_id=self._request)
        self._ask(api.BaseCommand(type=Type.LOOKUP, lookup=lookup), Type.LOOKUP_RESPONSE)

    def producer(self, topic: str, producer_id: int = 1) -> None:
        """A producer without a name of its own."""
        self._look_up(topic)
        self._request += 1
        producer = api.CommandProducer(
            topic=topic, producer_id=producer_id, request_id=self._request
        )
        self._ask(api.BaseCommand(type=Type.PRODUCER, producer=producer), Type.PRODUCER_SUCCESS)

    def subscribe(self, topic: str, kind: int = 0) -> None:
        """Consumer 1 of the subscription, from the earliest message on."""
        self._look_up(topic)
        self._request += 1
        subscribe = api.CommandSubscribe(
            topic=topic,
            subscription=SUBSCRIPTION,
            subType=kind,  # type: ignore[arg-type]  # the number of the protocol
            consumer_id=1,
            request_id=self._request,
            initialPosition=api.CommandSubscribe.Earliest,
        )
        self._ask(api.BaseCommand(type=Type.SUBSCRIBE, subscribe=subscribe), Type.SUCCESS)

    def read_from(self, topic: str, position: tuple[int, int], permits: int) -> float:
        """A reader from (ledger, entry) on, which is sent so many messages; when they were asked
        for."""
        self._look_up(topic)
        self._request += 1
        start = api.MessageIdData(ledgerId=position[0] % (1 << 64), entryId=position[1] % (1 << 64))
        subscribe = api.CommandSubscribe(
            topic=topic,
            subscription=f"reader-{self._request}",
            subType=api.CommandSubscribe.Exclusive,
            consumer_id=1,
            request_id=self._request,
            durable=False,
            start_message_id=start,
        )
        self._ask(api.BaseCommand(type=Type.SUBSCRIBE, subscribe=subscribe), Type.SUCCESS)
        flow = api.CommandFlow(consumer_id=1, messagePermits=permits)
        begun = time.perf_counter()
        self.socket.sendall(encode_command(api.BaseCommand(type=Type.FLOW, flow=flow)))
        return begun

    def receive(self) -> bool:
        """Wait for bytes; False when the connection is closed."""
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except OSError:
            return False
        self._buffer += data
        return bool(data)

    def frames(self) -> list[tuple[int, int, int]]:
        """(command start, command end, frame end) of every whole frame received."""
        found, at, have, sizes, buffer = [], 0, len(self._buffer), _SIZES.unpack_from, self._buffer
        while have - at >= 8:
            total, command = sizes(buffer, at)
            if have - at < 4 + total:
                break
            found.append((at + 8, at + 8 + command, at + 4 + total))
            at += 4 + total
        self._consumed = at
        return found

    def byte(self, at: int) -> int:
        return self._buffer[at]

    def command(self, start: int, end: int) -> api.BaseCommand:
        return api.BaseCommand.FromString(bytes(self._buffer[start:end]))

    def body(self, start: int, end: int) -> bytes:
        return bytes(self._buffer[start:end])

    def forget(self) -> None:
        """Drop what `frames` returned."""
        del self._buffer[: self._consumed]

    def close(self) -> None:
        self.socket.close()


def send_frames(
    size: int, messages: int, count: int = DISTINCT_FRAMES, first: int = 1_000_000
) -> list[bytes]:
    """SEND frames of consecutive sequence ids, each an entry of `messages` messages of `size`
    bytes (1: not a batch)."""
    metadata = api.MessageMetadata(producer_name="bench", sequence_id=first, publish_time=1)
    if messages > 1:
        metadata.num_messages_in_batch = messages
    entry = encode_entry(metadata, os.urandom(size * messages))
    send = api.BaseCommand(type=Type.SEND)
    frames = []
    for index in range(count):
        send.send.producer_id, send.send.sequence_id, send.send.num_messages = (
            1,
            first + index * messages,
            messages,
        )
        if messages > 1:
            send.send.highest_sequence_id = first + (index + 1) * messages - 1
        frames.append(encode_with_body(send, entry))
    return frames


class Publisher:
    """Writes frames of one producer and times their receipts; `window` messages may be without
    one (0: no limit)."""

    def __init__(
        self,
        connection: LoadConnection,
        frames: list[bytes],
        messages: int,
        per_write: int,
        window: int,
    ) -> None:
        self._connection, self._messages, self._per_write = connection, messages, per_write
        self._blobs = [
            b"".join(frames[at : at + per_write])
            for at in range(0, len(frames) - per_write + 1, per_write)
        ]
        self._room = (
            threading.Semaphore(max(1, window // (per_write * messages))) if window else None
        )
        self._sent: deque[float] = deque()
        self.latencies: list[float] = []
        self.writes: list[float] = []
        """When each write began."""
        self._written = 0
        self.receipts = 0
        self.failed: str | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def published(self) -> int:
        """Messages with a receipt."""
        return self.receipts * self._messages

    def _read(self) -> None:
        connection, per_write = self._connection, self._per_write
        while connection.receive():
            now = time.perf_counter()
            for start, body, _end in connection.frames():
                kind = connection.byte(start + 1)
                if kind == Type.SEND_RECEIPT:
                    self.receipts += 1
                    if self.receipts % per_write == 0:
                        self.latencies.append(now - self._sent.popleft())
                        if self._room is not None:
                            self._room.release()
                elif kind != Type.PING:
                    self.failed = str(connection.command(start, body))
            connection.forget()

    def write(self, number: int) -> None:
        """Send the next frames; waits for room in the window."""
        if self.failed:
            raise LoadFailed(self.failed)
        if self._room is not None and not self._room.acquire(timeout=SILENCE_S):
            raise LoadFailed(f"no receipt for {SILENCE_S:.0f} s")
        now = time.perf_counter()
        self._sent.append(now)
        self.writes.append(now)
        self._written += self._per_write
        self._connection.socket.sendall(self._blobs[number % len(self._blobs)])

    def run(self, seconds: float) -> None:
        """As fast as the window allows."""
        deadline, number = time.perf_counter() + seconds, 0
        while time.perf_counter() < deadline:
            self.write(number)
            number += 1

    def run_paced(self, writes_per_s: float, seconds: float) -> None:
        """At a steady rate, catching up after delays of our own."""
        begun, number = time.perf_counter(), 0
        while (now := time.perf_counter() - begun) < seconds:
            due = int(now * writes_per_s)
            while number < due:
                self.write(number)
                number += 1
            time.sleep(max(0.0, (number + 1) / writes_per_s - (time.perf_counter() - begun)))

    def settle(self) -> None:
        """Wait until everything written has its receipt."""
        deadline = time.perf_counter() + SILENCE_S
        while self.receipts < self._written:
            if self.failed or time.perf_counter() > deadline:
                raise LoadFailed(
                    self.failed
                    or f"{self.receipts} of {self._written} receipts after {SILENCE_S:.0f} s"
                )
            time.sleep(0.005)


class Consumer:
    """Takes messages with a queue of 1000, acknowledges them in groups; `on_entry` gets (index,
    time) of each entry."""

    def __init__(
        self,
        connection: LoadConnection,
        messages: int,
        on_entry: Callable[[int, float], None] | None = None,
    ) -> None:
        self._connection, self._messages, self._on_entry = connection, messages, on_entry
        self.entries = 0
        self._unacknowledged: list[bytes] = []
        self._acknowledged_at = time.perf_counter()
        self._flow(QUEUE)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def received(self) -> int:
        return self.entries * self._messages

    def _flow(self, permits: int) -> None:
        flow = api.CommandFlow(consumer_id=1, messagePermits=permits)
        self._connection.socket.sendall(encode_command(api.BaseCommand(type=Type.FLOW, flow=flow)))

    def _read(self) -> None:
        connection, used = self._connection, 0
        while connection.receive():
            now = time.perf_counter()
            for start, body, _end in connection.frames():
                if connection.byte(start + 1) != Type.MESSAGE:
                    continue
                if self._on_entry is not None:
                    self._on_entry(self.entries, now)
                self.entries += 1
                used += self._messages
                self._unacknowledged.append(connection.body(start, body))
            connection.forget()
            if used >= QUEUE // 2:
                self._flow(used)
                used = 0
            self._acknowledge(now)

    def _acknowledge(self, now: float) -> None:
        if not self._unacknowledged or (
            len(self._unacknowledged) < ACK_GROUP and now - self._acknowledged_at < ACK_GROUP_S
        ):
            return
        identifiers = [
            api.BaseCommand.FromString(one).message.message_id for one in self._unacknowledged
        ]
        self._unacknowledged.clear()
        self._acknowledged_at = now
        ack = api.CommandAck(
            consumer_id=1, ack_type=api.CommandAck.Individual, message_id=identifiers
        )
        self._connection.socket.sendall(encode_command(api.BaseCommand(type=Type.ACK, ack=ack)))

    def wait(self, messages: int, seconds: float = 60) -> None:
        """Until so many have arrived."""
        deadline = time.perf_counter() + seconds
        while self.received < messages:
            if time.perf_counter() > deadline:
                raise LoadFailed(f"{self.received} of {messages} messages after {seconds:.0f} s")
            time.sleep(0.005)
