"""A transport that only remembers, and how to feed a connection without a socket."""

from __future__ import annotations

import asyncio

from magnetar.broker.connections.connection import Connection
from magnetar.broker.connections.outbound import WRITE_BYTES_MAX
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.frames import HEADER_BYTES
from tests.support.brokers import SETTINGS


class Transport(asyncio.Transport):
    """Remembers what it is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.state = "open"
        self.reading = True
        self.unsent = 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def get_extra_info(self, name: str, default: object = None) -> object:
        return f"fake {name}" if default is None else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert self.state == "open", "nothing may be written after the end"
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.state = "closed"

    def abort(self) -> None:
        self.state = "aborted"

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.state != "open"

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert (high, low) == (min(WRITE_BYTES_MAX, SETTINGS.write_buffer_bytes_max), None)

    def commands(self) -> list[api.BaseCommand]:
        """Everything written, as commands."""
        data, found = b"".join(self.writes), []
        while data:
            total, size = int.from_bytes(data[:4], "big"), int.from_bytes(data[4:8], "big")
            found.append(api.BaseCommand.FromString(data[HEADER_BYTES : HEADER_BYTES + size]))
            data = data[4 + total :]
        return found

    def kinds(self) -> list[int]:
        return [command.type for command in self.commands()]


def feed(connection: Connection, transport: Transport, data: bytes) -> None:
    """Bytes from the peer, as the event loop would bring them."""
    piece = memoryview(data)
    while piece and transport.state == "open" and transport.reading:
        room = connection.get_buffer(-1)
        count = min(len(room), len(piece))
        room[:count] = piece[:count]
        connection.buffer_updated(count)
        piece = piece[count:]
