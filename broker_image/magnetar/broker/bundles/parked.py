"""What waits while a bundle is divided.

Owns: SENDs, confirmations of acknowledgements and acknowledgements in transactions that came
between the freeze of a bundle and the beginning of its children. Imports: sessions. Invariants:
what is parked of one producer stays in order, and nothing of it is stored behind something that was
dropped: a producer that sends more than fits is sent away once what it sent before is on its way;
what comes from a session that has ended, or is told so, is dropped, as its client sends it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from magnetar.broker.connections.sessions import ProducerSession
from magnetar.broker.transactions.sending import publish_in
from magnetar.transactions.ids import TxnId

if TYPE_CHECKING:
    from magnetar.broker.topics.subscription_host import SubscriptionHost
    from magnetar.broker.topics.topic_host import TopicHost
    from magnetar.hosting.advertised import Successor

CONFIRMATIONS_MAX = 100_000
"""Beyond it an acknowledgement is remembered, and its client not told: it asks again."""
REQUESTS_MAX, REQUEST_BYTES_MAX = 10_000, 16 << 20
"""Beyond either they are refused."""


class ParkedSends(NamedTuple):
    """A run of one producer; `payload` holds its entries back to back."""

    topic: TopicHost
    session: ProducerSession
    payload: bytes
    lengths: list[int]
    message_counts: Sequence[int]
    sequences: Sequence[int]
    highest: Sequence[int] | None
    txn: TxnId | None

    def entries(self) -> list[memoryview]:
        view, at, found = memoryview(self.payload), 0, []
        for length in self.lengths:
            found.append(view[at : at + length])
            at += length
        return found

    def publish(self) -> None:
        """Go on with it."""
        if self.txn is None:
            self.topic.publish(
                self.session, self.entries(), self.message_counts, self.sequences, self.highest
            )
        else:
            publish_in(
                self.txn,
                self.session,
                self.entries(),
                self.message_counts,
                self.sequences,
                self.highest,
            )


class ParkedWork:
    """Holds up to `bytes_max` bytes of messages."""

    def __init__(self, bytes_max: int) -> None:
        self._room = bytes_max
        self._sends: list[ParkedSends] = []
        self._missed: dict[ProducerSession, None] = {}
        self._confirmations: list[tuple[SubscriptionHost, Callable[[], None]]] = []
        self._requests: list[Callable[[], None]] = []
        self._request_room = REQUEST_BYTES_MAX

    def send(
        self,
        topic: TopicHost,
        session: ProducerSession,
        entries: Sequence[memoryview],
        message_counts: Sequence[int],
        sequences: Sequence[int],
        highest: Sequence[int] | None,
        txn: TxnId | None = None,
    ) -> None:
        """Keep a copy of a run: the entries are views of a buffer that is used again."""
        lengths = list(map(len, entries))
        size = sum(lengths)
        if session in self._missed or size > self._room:
            self._missed[session] = None
            return
        self._room -= size
        self._sends.append(
            ParkedSends(
                topic, session, b"".join(entries), lengths, message_counts, sequences, highest, txn
            )
        )

    def confirmation(self, subscription: SubscriptionHost, confirmed: Callable[[], None]) -> None:
        """An acknowledgement that the subscription knows of, and its client wants to hear of
        once it is durable."""
        if len(self._confirmations) < CONFIRMATIONS_MAX:
            self._confirmations.append((subscription, confirmed))

    def request(self, size: int, again: Callable[[], None]) -> bool:
        """Something of `size` bytes that cannot begin before the children do; False if too much
        waits already."""
        if len(self._requests) >= REQUESTS_MAX or size > self._request_room:
            return False
        self._request_room -= size
        self._requests.append(again)
        return True

    def resume(self, successor: Successor) -> None:
        """The topics are served again: go on. Producers of which something was dropped are sent
        to the successor: they send it again."""
        for parked in self._sends:
            if not parked.session.leaving:
                parked.publish()
        for session in self._missed:
            session.close_by_broker(successor)
        for subscription, confirmed in self._confirmations:
            subscription.topic.bundle.write_cursor(subscription, confirmed)
        for again in self._requests:
            again()
        self._sends, self._missed, self._confirmations, self._requests = [], {}, [], []
