"""What a cluster's metadata store says.

Owns: reading brokers, bundles and cordons in one picture, and who each bundle belongs to. Imports: magnetar.metadata.
Invariants: cordons are read before bundles, so a bundle count that follows a cordon was read after it was written; a bundle whose owner's
incarnation has died still counts for that broker, because its record still names it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from magnetar.metadata import keys
from magnetar.metadata.records import BundleRecord, BundleState, ClusterRecord, CordonRecord, IncarnationRecord
from magnetar.metadata.store import MetadataStore
from magnetar_operator.scaling import Cordon

READ_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class ClusterState:
    """One look at the store. `bundles` counts the records that name a broker; `incarnations` maps a broker to its live incarnation."""

    storage_id: str
    incarnations: Mapping[str, str]
    bundles: Mapping[str, int]
    cordons: Mapping[str, Cordon]


async def read_cluster_state(store: MetadataStore) -> ClusterState:
    """Raises StoreError (also for a record that this version cannot read: then nothing may be concluded) and TimeoutError."""
    async with asyncio.timeout(READ_TIMEOUT_S):
        cordons = {
            item.key.removeprefix(keys.CORDONS): CordonRecord.decode(item.value) for item in (await store.range(keys.CORDONS)).items
        }
        incarnations = {
            item.key.removeprefix(keys.INCARNATIONS): IncarnationRecord.decode(item.value)
            for item in (await store.range(keys.INCARNATIONS)).items
        }
        bundles = [BundleRecord.decode(item.value) for item in (await store.range(keys.BUNDLES)).items]
        cluster = await store.get(keys.CLUSTER)
    return ClusterState(
        storage_id=ClusterRecord.decode(cluster.value).storage_id if cluster is not None else "",
        incarnations={record.broker: identifier for identifier, record in incarnations.items()},
        bundles=bundle_counts(bundles, incarnations),
        cordons={broker: Cordon(record.drain, record.reason) for broker, record in cordons.items()},
    )


def bundle_counts(bundles: list[BundleRecord], incarnations: Mapping[str, IncarnationRecord]) -> Counter[str]:
    """How many records name each broker as owner or destination."""
    counts: Counter[str] = Counter()
    for record in bundles:
        if record.state in (BundleState.FREE, BundleState.DELETED):
            continue
        named = {name for name in (record.incarnation, record.destination) if name}
        counts.update({broker_of(name, incarnations) for name in named})
    return counts


def broker_of(incarnation: str, incarnations: Mapping[str, IncarnationRecord]) -> str:
    """The broker behind an incarnation; of a dead one its id tells (<broker>.<16 hexadecimal digits>)."""
    record = incarnations.get(incarnation)
    return record.broker if record is not None else incarnation.rpartition(".")[0] or incarnation
