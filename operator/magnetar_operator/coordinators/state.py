"""What a cluster's metadata store says of its transaction coordinators.

Owns: reading the set, the record of every number and who holds it, in one picture. Imports:
magnetar.metadata. Invariant: the set is read before the records, so that a record that follows a
lowered limit was read after the limit was lowered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from magnetar.metadata import keys
from magnetar.metadata.records import (
    CoordinatorClaimRecord,
    CoordinatorRecord,
    CoordinatorSetRecord,
)
from magnetar.metadata.store import MetadataStore
from magnetar_operator.brokers.state import records_below

READ_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class CoordinatorsState:
    """One look at the store. `records` and `holders` are by number; `holders` are the pods'
    names with their incarnations."""

    known: CoordinatorSetRecord | None
    set_revision: int
    records: Mapping[int, CoordinatorRecord]
    holders: Mapping[int, CoordinatorClaimRecord]

    @property
    def announced(self) -> int:
        return self.known.announced if self.known is not None else 0


async def read_coordinators(store: MetadataStore) -> CoordinatorsState:
    """Raises StoreError (also for a record that this version cannot read: then nothing may be
    concluded) and TimeoutError."""
    async with asyncio.timeout(READ_TIMEOUT_S):
        item = await store.get(keys.COORDINATOR_SET)
        records = await records_below(store, keys.COORDINATORS, CoordinatorRecord)
        claims = await records_below(store, keys.COORDINATOR_CLAIMS, CoordinatorClaimRecord)
    return CoordinatorsState(
        known=CoordinatorSetRecord.decode(item.value) if item is not None else None,
        set_revision=item.mod_revision if item is not None else 0,
        records={int(tcid): record for tcid, record in records.items()},
        holders={int(tcid): claim for tcid, claim in claims.items()},
    )
