"""Names of transactions.

Owns: `TxnId`. Imports: nothing. Pure. Source: Pulsar's protocol, PIP-31: two u64, `txnid_most_bits`
and `txnid_least_bits`. Invariant: (0, 0) is a transaction like any other, the first of the first
coordinator: presence is tested, never the value.
"""

from __future__ import annotations

from typing import NamedTuple


class TxnId(NamedTuple):
    """A transaction: its coordinator's number (TCID) and that coordinator's counter, from 0 on."""

    most: int
    least: int

    def __str__(self) -> str:
        """As Pulsar's clients and tools write it."""
        return f"({self.most},{self.least})"
