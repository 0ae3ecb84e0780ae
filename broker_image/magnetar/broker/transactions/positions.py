"""Message ids that clients have of transactions.

Owns: the meaning of a message id that may come from a receipt in a transaction, which names an
entry of the sidecar. Imports: transactions, topics. Invariants: an id of the partition means
itself; an entry of an open or aborted transaction does not exist: its id means the place behind the
last entry before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.topics.ledger_ids import is_sidecar
from magnetar.topics.ledgers import Position

if TYPE_CHECKING:
    from magnetar.broker.ports import ServedTopic


def entry_named(topic: ServedTopic, position: tuple[int, int]) -> int | None:
    """Ordinal of the entry that an id names, also if only a compacted view may have it; None if
    there is none (any more)."""
    if topic.transactions is not None and is_sidecar(position):
        became = topic.transactions.buffer.committed_to(position)
        if became is None:
            return None
        position = became
    return topic.core.ledgers.known(position)


def last_up_to(topic: ServedTopic, position: tuple[int, int]) -> Position | None:
    """The last position of the partition that is not behind an id; None if its transaction is so
    old that all before it is gone."""
    if topic.transactions is not None and is_sidecar(position):
        translated = topic.transactions.buffer.translate(position)
        return None if translated is None else Position(*translated.position)
    return Position(*position)


def first_from(topic: ServedTopic, position: tuple[int, int]) -> Position:
    """Where delivery from an id begins: of an open or aborted transaction behind the last entry
    before it.

    A sidecar's id that is not known any more stands for the beginning of its term: a repeated
    delivery is better than none.
    """
    if topic.transactions is not None and is_sidecar(position):
        translated = topic.transactions.buffer.translate(position)
        if translated is not None:
            (ledger, entry), exact = translated
            return Position(ledger, entry if exact else entry + 1)
    return Position(*position)
