"""SENDs on their way from one read of a connection to a topic.

Owns: `SendGroup`: consecutive SENDs of one producer, in one transaction or in none.
Imports: wire, storage.log_format, sessions, settings, participant.
Invariants: the lists have one element per entry, in the order of the SENDs; entries are views of the receive buffer, valid until the next read.
"""

from __future__ import annotations

from magnetar.server.connections.sessions import ProducerSession
from magnetar.server.participant.sending import publish_in
from magnetar.server.settings import BrokerSettings
from magnetar.storage.log_format import ENTRY_ARRAY_BYTES
from magnetar.transactions.ids import TxnId
from magnetar.wire import runs
from magnetar.wire.frames import InboundBuffer


class SendGroup:
    """What a read brought of one producer. `bytes` bounds how large the run becomes in the log."""

    __slots__ = ("bytes", "counts", "entries", "highest", "sequences", "session", "txn")

    def __init__(self, session: ProducerSession, txn: TxnId | None = None) -> None:
        self.session, self.txn = session, txn
        self.bytes = 0
        self.entries: list[memoryview] = []
        self.counts: list[int] = []
        self.sequences: list[int] = []
        self.highest: list[int] = []

    def add(self, entry: memoryview, count: int, sequence: int, highest: int) -> None:
        """One SEND of `count` messages."""
        self.bytes += len(entry) + ENTRY_ARRAY_BYTES
        self.entries.append(entry)
        self.counts.append(count)
        self.sequences.append(sequence)
        self.highest.append(highest)

    def add_following(self, inbound: InboundBuffer, start: int, body: int, end: int, settings: BrokerSettings) -> None:
        """Add the SENDs that differ from the last one, data[start:end], in what each of them must differ in only."""
        if inbound.received - end < end - body:
            return  # nothing of that size follows in this read: not worth the preparation
        sequence, room = self.sequences[-1], settings.publish_bytes_max - self.bytes
        entries, reached = runs.following_sends(
            inbound.view, start, body, end, inbound.received, sequence, settings.entry_bytes_max, room
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
        """Hand them over, unless the producer is closed by now; the topic copies the entries, since the receive buffer is reused."""
        if self.session.leaving:
            return
        if self.txn is None:
            self.session.topic.publish(self.session, self.entries, self.counts, self.sequences, self.highest_or_none())
        else:
            publish_in(self.txn, self.session, self.entries, self.counts, self.sequences, self.highest_or_none())

    def highest_or_none(self) -> list[int] | None:
        """The highest sequence ids of batches; None if there was none."""
        return self.highest if any(self.highest) else None
