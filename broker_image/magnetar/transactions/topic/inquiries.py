"""When to ask coordinators about open transactions.

Owns: `Inquiries`. Imports: ids. Pure. Invariant: a transaction of which a coordinator says that it
has not begun is void only if nothing was sent in it since the question.
"""

from __future__ import annotations

from collections.abc import Iterable

from magnetar.transactions.ids import TxnId


class Inquiries:
    """Since when transactions have been open, and which have not changed since their inquiry."""

    __slots__ = ("_since_ms", "_unchanged")

    def __init__(self) -> None:
        self._since_ms: dict[TxnId, int] = {}
        self._unchanged: set[TxnId] = set()

    def due(
        self, transactions: Iterable[TxnId], now_ms: int, inquire_ms: int, at_most: int
    ) -> list[TxnId]:
        """Transactions that have been open for `inquire_ms`, or so long since the last inquiry.

        The time counts from the first call that finds them (`now_ms` is `clock.elapsed_ms`), so a
        restart counts from zero.
        """
        long_ago_ms = now_ms - inquire_ms
        found = [
            txn for txn in transactions if self._since_ms.setdefault(txn, now_ms) <= long_ago_ms
        ][:at_most]
        self._since_ms.update(dict.fromkeys(found, now_ms))
        self._unchanged.update(found)
        return found

    def changed(self, txn: TxnId) -> None:
        """Something was sent in the transaction, a repetition even."""
        self._unchanged.discard(txn)

    def is_unchanged(self, txn: TxnId) -> bool:
        """Whether nothing was sent in it since its last inquiry."""
        return txn in self._unchanged

    def forget(self, txn: TxnId) -> None:
        self._since_ms.pop(txn, None)
        self._unchanged.discard(txn)
