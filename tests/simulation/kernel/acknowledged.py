"""Acknowledgements around planned moves, judged by the commands that pass between clients and
brokers.

Owns: `Passed`: which messages were delivered again although their ACK had been sent before that
consumer got CLOSE_CONSUMER, or before its new SUBSCRIBE was answered. Fed by clients of the
simulation and by proxies before real brokers. Imports: wire. Invariants: commands of one connection
come in the order in which they pass; a check only accuses: it is for courses in which every broker
lives until it has handed its bundles over.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.frames import HEADER_BYTES

Type = api.BaseCommand.Type
Place = tuple[int, int]


class Attached(NamedTuple):
    """A consumer id of one connection."""

    connection: object
    consumer_id: int


class Subscribed(NamedTuple):
    topic: str
    subscription: str


@dataclass
class _Stream:
    """One direction of a connection, cut into commands."""

    data: bytearray = field(default_factory=bytearray)

    def commands(self, data: bytes) -> Iterator[api.BaseCommand]:
        self.data += data
        while len(self.data) >= HEADER_BYTES:
            total, size = (
                int.from_bytes(self.data[:4], "big"),
                int.from_bytes(self.data[4:8], "big"),
            )
            if len(self.data) < 4 + total:
                return
            yield api.BaseCommand.FromString(bytes(self.data[HEADER_BYTES : HEADER_BYTES + size]))
            del self.data[: 4 + total]


class Passed:
    """What passed between clients and brokers, in one order; one consumer per subscription."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: dict[tuple[object, bool], _Stream] = {}
        self._attached: dict[Attached, Subscribed] = {}
        self._requests: dict[tuple[object, int], Attached] = {}
        self._notified: set[Attached] = set()
        self._acknowledged: dict[Subscribed, dict[Place, int]] = {}
        """During which attachment, the one before while the consumer subscribes."""
        self._attachments: Counter[Subscribed] = Counter()
        self.delivered: dict[Subscribed, Counter[Place]] = {}
        self.repeated: dict[Subscribed, set[Place]] = {}
        """Delivered again although the ACK had passed before its sender got CLOSE_CONSUMER, or
        before it was attached to the new owner."""
        self.moves: Counter[Subscribed] = Counter()

    def tap(self, connection: object, to_broker: bool, data: bytes) -> None:
        """Bytes pass."""
        with self._lock:
            for command in self._streams.setdefault((connection, to_broker), _Stream()).commands(
                data
            ):
                self._note(connection, command)

    def acknowledged(self) -> int:
        """How many ids were acknowledged: a course that acknowledged nothing has proved nothing."""
        return sum(map(len, self._acknowledged.values()))

    def _note(self, connection: object, command: api.BaseCommand) -> None:
        if command.type == Type.SUBSCRIBE:
            attached = Attached(connection, command.subscribe.consumer_id)
            self._attached[attached] = Subscribed(
                command.subscribe.topic, command.subscribe.subscription
            )
            self._notified.discard(attached)
            self._requests[connection, command.subscribe.request_id] = attached
        elif command.type == Type.SUCCESS:
            subscribed = self._requests.pop((connection, command.success.request_id), None)
            if subscribed is not None:
                self._attachments[self._attached[subscribed]] += 1
        elif command.type == Type.ACK:
            self._note_acknowledgement(Attached(connection, command.ack.consumer_id), command.ack)
        elif command.type == Type.CLOSE_CONSUMER:
            attached = Attached(connection, command.close_consumer.consumer_id)
            if attached in self._attached:
                self._notified.add(attached)
                self.moves[self._attached[attached]] += 1
        elif command.type == Type.MESSAGE:
            self._note_delivery(
                Attached(connection, command.message.consumer_id), command.message.message_id
            )

    def _note_acknowledgement(self, attached: Attached, ack: api.CommandAck) -> None:
        if attached in self._notified or attached not in self._attached:
            return
        key = self._attached[attached]
        known = self._acknowledged.setdefault(key, {})
        for found in ack.message_id:
            if not found.ack_set:
                known.setdefault((found.ledgerId, found.entryId), self._attachments[key])

    def _note_delivery(self, attached: Attached, message: api.MessageIdData) -> None:
        key, place = self._attached[attached], (message.ledgerId, message.entryId)
        self.delivered.setdefault(key, Counter())[place] += 1
        if (
            self._acknowledged.get(key, {}).get(place, self._attachments[key])
            < self._attachments[key]
        ):
            self.repeated.setdefault(key, set()).add(place)
