"""What the control records up to some position amount to.

Owns: `Standing`, the fold over control records. Imports: records, minimum. Pure. Invariants: the
same records give the same standing, from the beginning or from a snapshot on; the watermark is the
exact minimum over active producers and open holds; once all are idle, over those that left last:
it is never the end of time.

Why holds: a producer may send in a transaction, assert a later time outside of it, and commit then.
Its messages appear behind the assertion, though it kept its promise in the order of sending.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from magnetar.transactions.ids import TxnId
from magnetar.watermarks.minimum import Minimum
from magnetar.watermarks.records import Assertion, End, Hold, Idle, Record, Snapshot


class Holder(NamedTuple):
    """Who keeps the watermark where it is: a producer, or one of its transactions. `event_ms` is
    None if the producer had asserted nothing when it sent in the transaction."""

    producer: str
    event_ms: int | None
    txn: TxnId | None = None


class Standing:
    """Active producers, holds and what open transactions have asserted."""

    __slots__ = (
        "_blocking",
        "_blocks",
        "_holds",
        "_holds_of",
        "_pending",
        "_pending_count",
        "_producers",
        "_resting_ms",
    )

    def __init__(self, snapshot: Snapshot = Snapshot()) -> None:  # noqa: B008 - immutable
        self._producers: Minimum[str] = Minimum(dict(snapshot.producers))
        self._resting_ms = snapshot.resting_ms
        held = {(txn, name): ms for txn, name, ms in snapshot.holds if ms is not None}
        self._holds: Minimum[tuple[TxnId, str]] = Minimum(held)
        self._blocks: dict[str, dict[TxnId, None]] = {}
        """Holds without a value, by producer."""
        self._blocking: dict[str, None] = {}
        """Their producers that are active."""
        for txn, name, ms in snapshot.holds:
            if ms is None:
                self._block(txn, name)
        self._holds_of: dict[TxnId, list[str]] = {}
        for txn, name, _ in snapshot.holds:
            self._holds_of.setdefault(txn, []).append(name)
        self._pending: dict[TxnId, dict[str, int | None]] = {}
        self._pending_count = 0
        for txn, name, ms in snapshot.pending:
            self._say(txn, name, ms)

    # --- questions --------------------------------------------------------------------------------

    @property
    def blocked(self) -> bool:
        """Whether the watermark must not advance: an active producer has sent in a transaction
        before it asserted anything. One that still has not asserted bounds nothing."""
        return bool(self._blocking)

    @property
    def exact_ms(self) -> int | None:
        """The minimum; None if nothing was ever asserted, or while `blocked`."""
        if self._blocking:
            return None
        least = self._producers.least()
        value = self._resting_ms if least is None else least[0]
        if value is None or (held := self._holds.least()) is None:
            return value
        return min(value, held[0])

    @property
    def active_count(self) -> int:
        return len(self._producers)

    @property
    def size(self) -> int:
        """What a snapshot holds, in elements."""
        blocks = sum(map(len, self._blocks.values()))
        return len(self._producers) + len(self._holds) + blocks + self._pending_count

    def active(self) -> tuple[str, ...]:
        return tuple(self._producers.values)

    def asserted_ms(self, producer: str) -> int | None:
        """What an active producer has asserted; None for others."""
        return self._producers.get(producer)

    def holds(self, txn: TxnId, producer: str) -> bool:
        """Whether the producer's first message in the transaction is known."""
        return (txn, producer) in self._holds or txn in self._blocks.get(producer, ())

    def asserted_below(self, txn: TxnId, event_ms: int) -> int:
        """How many producers assert less in the transaction."""
        return sum(
            1 for ms in self._pending.get(txn, {}).values() if ms is not None and ms < event_ms
        )

    def holder(self) -> Holder | None:
        """Who decides the watermark."""
        for name in self._blocking:
            return Holder(name, None, min(self._blocks[name]))
        held, least = self._holds.least(), self._producers.least()
        if held is not None and (least is None or held[0] <= least[0]):
            return Holder(held[1][1], held[0], held[1][0])
        return Holder(least[1], least[0]) if least is not None else None

    def to_snapshot(self) -> Snapshot:
        """In an order that depends on the content only."""
        holds = [(txn, name, ms) for (txn, name), ms in self._holds.values.items()]
        blocks = [(txn, name, None) for name, txns in self._blocks.items() for txn in txns]
        return Snapshot(
            tuple(sorted(self._producers.values.items())),
            self._resting_ms,
            tuple(sorted([*holds, *blocks], key=lambda hold: hold[:2])),
            tuple(
                (txn, name, ms)
                for txn, said in sorted(self._pending.items())
                for name, ms in sorted(said.items(), key=lambda one: one[0])
            ),
        )

    # --- changes ----------------------------------------------------------------------------------

    def apply(self, record: Record) -> None:
        """The next record. A snapshot says what is known already."""
        if isinstance(record, Assertion):
            if record.txn is None:
                self._join(record.producer, record.event_ms)
            else:
                self._say(record.txn, record.producer, record.event_ms)
        elif isinstance(record, Idle):
            if record.txn is None:
                self._leave((record.producer,))
            else:
                self._say(record.txn, record.producer, None)
        elif isinstance(record, Hold):
            self._hold(record.txn, record.producer)
        elif isinstance(record, End):
            self._end(record.txn, record.committed)

    def _join(self, producer: str, event_ms: int) -> None:
        self._producers.set(producer, event_ms)
        if producer in self._blocks:
            self._blocking[producer] = None

    def _block(self, txn: TxnId, producer: str) -> None:
        self._blocks.setdefault(producer, {})[txn] = None
        if producer in self._producers:
            self._blocking[producer] = None

    def _unblock(self, txn: TxnId, producer: str) -> None:
        blocks = self._blocks.get(producer)
        if blocks is not None and txn in blocks:
            del blocks[txn]
            if not blocks:
                del self._blocks[producer]
                self._blocking.pop(producer, None)

    def _say(self, txn: TxnId, producer: str, event_ms: int | None) -> None:
        """The last assertion in a transaction counts, if it commits."""
        said = self._pending.setdefault(txn, {})
        self._pending_count += producer not in said
        said[producer] = event_ms

    def _leave(self, producers: Iterable[str]) -> None:
        """The last active ones count as they left, until another one asserts."""
        least = self._producers.least()
        for producer in producers:
            if producer in self._blocking:
                self._keep_blocks(producer)
            self._producers.remove(producer)
        if least is not None and not self._producers:
            self._resting_ms = least[0]

    def _keep_blocks(self, producer: str) -> None:
        """It becomes idle while transactions of it are open in which it may have sent after it had
        asserted something. No message is older than 0."""
        del self._blocking[producer]
        for txn in self._blocks.pop(producer):
            self._holds.set((txn, producer), 0)

    def _hold(self, txn: TxnId, producer: str) -> None:
        if self.holds(txn, producer):
            return
        self._holds_of.setdefault(txn, []).append(producer)
        asserted = self._producers.get(producer)
        if asserted is None:
            self._block(txn, producer)
        else:
            self._holds.set((txn, producer), asserted)

    def _end(self, txn: TxnId, committed: bool) -> None:
        for name in self._holds_of.pop(txn, ()):
            self._holds.remove((txn, name))
            self._unblock(txn, name)
        said = self._pending.pop(txn, {})
        self._pending_count -= len(said)
        if not committed:
            return
        # One step for the outside: producers that stay count before the others leave together.
        for name, ms in said.items():
            if ms is not None:
                self._join(name, ms)
        self._leave(name for name, ms in said.items() if ms is None)
