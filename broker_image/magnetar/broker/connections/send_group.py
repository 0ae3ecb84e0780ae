"""SENDs on their way from one read of a connection to a topic.

Owns: `SendGroup`: consecutive SENDs of one producer, in one transaction or in none;
`SendCollector`, which makes groups of a read's SENDs and refuses malformed ones. Imports: wire,
storage.log.format, ports, settings. Invariants: the lists have one element per entry, in the order
of the SENDs; entries are views of the receive buffer, valid until the next read.
"""

from __future__ import annotations

import weakref
from typing import cast

from magnetar.broker.connections.session_table import SessionTable
from magnetar.broker.ports import AttachedProducer, ClientConnection, SendRun
from magnetar.errors import ChecksumMismatch, NotAllowed, ProtocolError, WireCode
from magnetar.hosting.settings import BrokerSettings
from magnetar.storage.log.format import ENTRY_ARRAY_BYTES
from magnetar.transactions.ids import TxnId
from magnetar.wire import runs, send_runs
from magnetar.wire.checksum import verify_entry
from magnetar.wire.frames import InboundBuffer
from magnetar.wire.sent_entries import check_sent_entry


def _refusal_of(
    session: AttachedProducer, entry: memoryview, count: int, settings: BrokerSettings
) -> tuple[WireCode, str] | None:
    """Why one SEND of `count` messages is not taken, or None. Raises ProtocolError for an entry
    that is cut off."""
    if len(entry) > settings.entry_bytes_max:
        return (
            WireCode.NOT_ALLOWED,
            f"Exceed maximum message size of {settings.max_message_bytes} bytes",
        )
    try:
        verify_entry(entry)
        metadata = check_sent_entry(entry, count, settings.batch_messages_max)
    except (ChecksumMismatch, NotAllowed) as error:
        return error.wire_code, str(error)
    if metadata.num_chunks_from_msg > 1:
        session.sends_chunks = True
        session.chunks_in += 1
    return None


class SendGroup:
    """What a read brought of one producer. `bytes` bounds how large the run becomes in the log."""

    __slots__ = ("bytes", "counts", "entries", "highest", "sequences", "session", "txn")

    def __init__(self, session: AttachedProducer, txn: TxnId | None = None) -> None:
        self.session, self.txn = session, txn
        self.bytes = 0
        self.entries: list[memoryview] = []
        self.counts: list[int] = []
        self.sequences: list[int] = []
        self.highest: list[int] = []

    def add(self, entry: memoryview, count: int, sequence: int, highest: int) -> None:
        self.bytes += len(entry) + ENTRY_ARRAY_BYTES
        self.entries.append(entry)
        self.counts.append(count)
        self.sequences.append(sequence)
        self.highest.append(highest)

    def add_following(
        self, inbound: InboundBuffer, start: int, body: int, end: int, settings: BrokerSettings
    ) -> None:
        """Add the SENDs that differ from the last one, data[start:end], in what each of them
        must differ in only."""
        if inbound.received - end < end - body or self.counts[-1] != 1:
            return  # nothing of that size follows in this read: not worth the preparation
        sequence, room = self.sequences[-1], settings.publish_bytes_max - self.bytes
        entries, reached = send_runs.following_sends(
            inbound.view,
            start,
            body,
            end,
            inbound.received,
            sequence,
            settings.entry_bytes_max,
            room,
            settings.batch_messages_max,
        )
        count = len(entries)
        if not count:
            return
        inbound.skip_to(reached)
        self.bytes += reached - end  # their frames' heads are longer than what the log has instead
        self.entries += entries
        self.counts += self.counts[-1:] * count
        self.highest += self.highest[-1:] * count
        self.sequences.extend(range(sequence + 1, sequence + 1 + count))

    def publish(self) -> None:
        """Publish them, unless the producer was closed; the topic copies the entries, since the
        receive buffer is reused."""
        if not self.session.leaving:
            highest = self.highest if any(self.highest) else None
            self.session.publish(
                SendRun(self.entries, self.counts, self.sequences, highest, self.txn)
            )


class SendCollector:
    """Collects the SENDs of one read of one connection into groups."""

    __slots__ = ("_connection", "_inbound", "_sessions", "_settings")

    def __init__(
        self,
        connection: ClientConnection,
        inbound: InboundBuffer,
        sessions: SessionTable,
        settings: BrokerSettings,
    ) -> None:
        self._connection = cast("ClientConnection", weakref.proxy(connection))  # as `SlowPeer`'s
        self._inbound, self._sessions, self._settings = inbound, sessions, settings

    def add(self, group: SendGroup | None, start: int, body: int, end: int) -> SendGroup | None:
        """Add one SEND to the group, which is published first if it is another producer's."""
        inbound, settings = self._inbound, self._settings
        producer_id, sequence, count, highest, most, least, _chunk, _marker = runs.parse_send(
            inbound.data, start, body
        )
        session = self._sessions.producers.get(producer_id)
        if session is None:
            if producer_id not in self._sessions.closed_producers:
                raise ProtocolError(
                    f"SEND for producer {producer_id}, which does not exist on this connection; "
                    "create it first"
                )
            again = self._sessions.early_producer_closes.take(producer_id)
            if again is not None:
                self._connection.queue(again)
            return group
        txn = None if most is None and least is None else TxnId(most or 0, least or 0)
        if group is not None and (group.session is not session or group.txn != txn):
            group.publish()
            group = None
        entry = inbound.view[body:end]
        refused = _refusal_of(session, entry, count, settings)
        if refused is not None:
            if group is not None:
                group.publish()
            session.refuse_send(max(sequence, highest), *refused)
            return None
        if group is None:
            group = SendGroup(session, txn)
        if group.bytes + end - body > settings.publish_bytes_max:
            group.publish()
            group = SendGroup(session, txn)
        group.add(entry, count, sequence, highest)
        group.add_following(inbound, start, body, end, settings)
        return group
