"""Requests that are buffered while a bundle is divided or merged.

Owns: SENDs, confirmations of acknowledgements and acknowledgements in transactions that arrive
between the freeze of a bundle and the start of those that replace it. Imports: ports. Invariants: SENDs of
one producer stay in order, and none is stored behind one that was dropped: a producer that sends
more than fits is disconnected after what is buffered of it; SENDs of a session that has ended are
dropped, as its client sends them again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from magnetar.broker.ports import AttachedProducer, SendRun, ServedSubscription

if TYPE_CHECKING:
    from magnetar.hosting.advertised import Successor

CONFIRMATIONS_MAX = 100_000
"""Beyond it an acknowledgement is kept, and not confirmed: its client asks again."""
REQUESTS_MAX, REQUEST_BYTES_MAX = 10_000, 16 << 20
"""Beyond either they are refused."""


class SplitBuffer:
    """Holds up to `bytes_max` bytes of messages."""

    def __init__(self, bytes_max: int) -> None:
        self._room = bytes_max
        self._sends: list[tuple[AttachedProducer, SendRun]] = []
        self._missed: dict[AttachedProducer, None] = {}
        self._confirmations: list[tuple[ServedSubscription, Callable[[], None]]] = []
        self._requests: list[Callable[[], None]] = []
        self._request_room = REQUEST_BYTES_MAX

    def send(self, session: AttachedProducer, run: SendRun) -> None:
        """Keep a copy of a run: the entries are views of a buffer that is used again."""
        lengths = list(map(len, run.entries))
        size = sum(lengths)
        if session in self._missed or size > self._room:
            self._missed[session] = None
            return
        self._room -= size
        view, at, entries = memoryview(b"".join(run.entries)), 0, []
        for length in lengths:
            entries.append(view[at : at + length])
            at += length
        copy = SendRun(entries, run.counts, run.sequences, run.highest, run.txn)
        self._sends.append((session, copy))

    def confirmation(self, subscription: ServedSubscription, confirmed: Callable[[], None]) -> None:
        """An acknowledgement that the subscription has, and that is confirmed once it is
        durable."""
        if len(self._confirmations) < CONFIRMATIONS_MAX:
            self._confirmations.append((subscription, confirmed))

    def request(self, size: int, again: Callable[[], None]) -> bool:
        """A request of `size` bytes that is made `again` for what replaces the bundle; False if too much is
        buffered already."""
        if len(self._requests) >= REQUESTS_MAX or size > self._request_room:
            return False
        self._request_room -= size
        self._requests.append(again)
        return True

    def resume(self, successor: Successor) -> None:
        """The topics are served again. Producers with dropped SENDs are disconnected, with the
        successor's address: they send them again."""
        for session, run in self._sends:
            if not session.leaving:
                session.publish(run)
        for session in self._missed:
            session.close_by_broker(successor)
        for subscription, confirmed in self._confirmations:
            subscription.topic.bundle.write_cursor(subscription, confirmed)
        for again in self._requests:
            again()
        self._sends, self._missed, self._confirmations, self._requests = [], {}, [], []
