"""Which transactions make a micro-batch, decided once.

Owns: `Decision`, what the topic of a query's decisions holds, and `is_decided`. Pure. Invariant: of all
attempts at a micro-batch the transactions of one are ever committed: those of the first decision about
it; a decision is carried out before the next one is made.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from magnetar.errors import CorruptData, InvalidRequest
from magnetar.transactions.ids import TxnId


@dataclass(frozen=True, slots=True)
class Decision:
    """The transactions of a micro-batch; `done`: all of them are committed."""

    batch: int
    transactions: tuple[TxnId, ...]
    done: bool = False

    def encode(self) -> bytes:
        found = [[txn.most, txn.least] for txn in self.transactions]
        return json.dumps({"batch": self.batch, "transactions": found, "done": self.done}).encode()

    @staticmethod
    def decode(data: bytes) -> Decision:
        """Raises CorruptData."""
        try:
            found = json.loads(data)
            return Decision(
                int(found["batch"]),
                tuple(TxnId(int(most), int(least)) for most, least in found["transactions"]),
                bool(found["done"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptData(
                f"a message of {len(data)} bytes is no decision: {error!r}"
            ) from error


def is_decided(last: Decision | None, batch: int) -> bool:
    """Whether the last decision was about this micro-batch: then another attempt's transactions are
    to be aborted, else it is to be decided. Raises InvalidRequest for a checkpoint that is older
    than the decision."""
    if last is None or batch > last.batch:
        return False
    if batch == last.batch:
        return True
    raise InvalidRequest(
        f"micro-batch {batch} comes after {last.batch} was published: the checkpoint is older than "
        "what this query has published; go on from the newest checkpoint, or begin a query with a "
        "new one"
    )
