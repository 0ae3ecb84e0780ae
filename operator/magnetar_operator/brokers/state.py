"""What a cluster's metadata store says.

Owns: reading brokers, bundles, cordons, load reports and stored documents in one picture, and who
each bundle belongs to. Imports: magnetar.metadata, load reports. Invariants: cordons are read
before bundles, so a bundle count that follows a cordon was read after it was written; a bundle
whose owner's incarnation has died still counts for that broker, because its record still names it;
a report or document that this version cannot read hides nothing else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from magnetar.balance.cluster import MOVE_REASON
from magnetar.balance.load import LoadReport
from magnetar.errors import StoreError
from magnetar.metadata import keys
from magnetar.metadata.codec import Record
from magnetar.metadata.records import (
    BackupReportRecord,
    BundleRecord,
    BundleState,
    ClusterRecord,
    CordonRecord,
    DocumentsRecord,
    IncarnationRecord,
    RestoreRequestRecord,
)
from magnetar.metadata.store import Compare, Delete, KeyValue, MetadataStore, Operation, Put
from magnetar_operator.brokers.scaling import Cordon

R = TypeVar("R", bound=Record)
T = TypeVar("T")
READ_TIMEOUT_S = 5.0
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoredDocuments:
    """Documents of one group by name, and the revision of their record (0 = there is none)."""

    documents: Mapping[str, Any]
    revision: int = 0

    @staticmethod
    def of(item: KeyValue | None) -> StoredDocuments:
        """Raises StoreError."""
        if item is None:
            return NO_DOCUMENTS
        return StoredDocuments(DocumentsRecord.decode(item.value).documents, item.mod_revision)

    def change(self, group: str, wanted: Mapping[str, Any]) -> tuple[Compare, Operation | None]:
        """The comparison that holds while the record is this one, and what makes it `wanted`
        (None = it is)."""
        key = keys.documents(group)
        compare = Compare(key, "mod", "=", self.revision)
        if wanted == self.documents:
            return compare, None
        return compare, (
            Put(key, DocumentsRecord(dict(wanted)).encode()) if wanted else Delete(key)
        )


NO_DOCUMENTS = StoredDocuments({})


@dataclass(frozen=True, slots=True)
class ClusterState:
    """One look at the store.

    `bundles` counts the records that name a broker; `incarnations` maps a broker to its live
    incarnation; `held` has the names and states of the bundles of brokers that are cordoned;
    `owners` maps every bundle to the broker that has it or is about to ("" = none), and `moved` are
    those that load balancing moves now; `loads` the brokers' reports that can be read; `documents`
    what administrators and the operator have stored, by group; `copies` what the leader says of its
    copies of the store, if any has said something; `restored_for` the request that the store was
    last filled for.
    """

    storage_id: str
    incarnations: Mapping[str, str]
    bundles: Mapping[str, int]
    cordons: Mapping[str, Cordon]
    held: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)
    moved: frozenset[str] = frozenset()
    stopping: frozenset[str] = frozenset()
    loads: Mapping[str, LoadReport] = field(default_factory=dict)
    documents: Mapping[str, StoredDocuments] = field(default_factory=dict)
    copies: BackupReportRecord | None = None
    restored_for: str = ""

    def candidates(self, leaving: str) -> tuple[str, ...]:
        """Brokers that may take the bundles of `leaving`."""
        return tuple(sorted(set(self.incarnations) - set(self.cordons) - self.stopping - {leaving}))


async def records_below(store: MetadataStore, prefix: str, kind: type[R]) -> dict[str, R]:
    """All records below a prefix, by the rest of their keys. Raises StoreError."""
    items = (await store.range(prefix)).items
    return {item.key.removeprefix(prefix): kind.decode(item.value) for item in items}


def readable(items: Iterable[KeyValue], read: Callable[[KeyValue], T]) -> dict[str, T]:
    """By key: what a broker of another version has written otherwise counts as none. Only for
    records of which nothing is concluded that cannot be undone."""
    found = {}
    for item in items:
        try:
            found[item.key] = read(item)
        except StoreError as error:
            log.warning("record.unreadable", key=item.key, error=str(error))
    return found


async def read_cluster_state(store: MetadataStore) -> ClusterState:
    """Raises StoreError (also for a record of an owner that this version cannot read: then nothing
    may be concluded) and TimeoutError."""
    async with asyncio.timeout(READ_TIMEOUT_S):
        cordons = await records_below(store, keys.CORDONS, CordonRecord)
        incarnations = await records_below(store, keys.INCARNATIONS, IncarnationRecord)
        bundles = await records_below(store, keys.BUNDLES, BundleRecord)
        loads = readable(
            (await store.range(keys.LOAD)).items, lambda item: LoadReport.read(item.value)
        )
        documents = readable((await store.range(keys.DOCUMENTS)).items, StoredDocuments.of)
        cluster = await store.get(keys.CLUSTER)
        copies = await store.get(keys.BACKUP_REPORT)
        restored = await store.get(keys.RESTORE_REQUEST)
    return ClusterState(
        storage_id=ClusterRecord.decode(cluster.value).storage_id if cluster is not None else "",
        incarnations={record.broker: identifier for identifier, record in incarnations.items()},
        bundles=bundle_counts(list(bundles.values()), incarnations),
        cordons={broker: Cordon(record.drain, record.reason) for broker, record in cordons.items()},
        held=held_bundles(bundles, incarnations, cordons),
        owners={
            name: broker_of(record.destination or record.incarnation, incarnations)
            for name, record in bundles.items()
            if record.state is not BundleState.DELETED
        },
        moved=frozenset(
            name
            for name, record in bundles.items()
            if record.state in (BundleState.RELEASING, BundleState.ASSIGNING)
            and record.reason.startswith(MOVE_REASON)
        ),
        stopping=frozenset(record.broker for record in incarnations.values() if record.draining),
        loads={
            record.broker: record
            for record in sorted(loads.values(), key=lambda record: record.updated_ms)
        },
        documents={key.removeprefix(keys.DOCUMENTS): found for key, found in documents.items()},
        restored_for=RestoreRequestRecord.decode(restored.value).request
        if restored is not None
        else "",
        copies=BackupReportRecord.decode(copies.value) if copies is not None else None,
    )


def held_bundles(
    bundles: Mapping[str, BundleRecord],
    incarnations: Mapping[str, IncarnationRecord],
    cordons: Mapping[str, CordonRecord],
) -> dict[str, tuple[str, ...]]:
    """Bundles that cordoned brokers still have, as `name (State)`."""
    held: dict[str, list[str]] = {broker: [] for broker in cordons}
    for name, record in sorted(bundles.items()) if cordons else ():
        if record.state not in (BundleState.FREE, BundleState.DELETED):
            for broker in {
                broker_of(named, incarnations)
                for named in (record.incarnation, record.destination)
                if named
            }:
                if broker in held:
                    held[broker].append(f"{name} ({record.state.value})")
    return {broker: tuple(names) for broker, names in held.items()}


def bundle_counts(
    bundles: list[BundleRecord], incarnations: Mapping[str, IncarnationRecord]
) -> Counter[str]:
    """How many records name each broker as owner or destination."""
    counts: Counter[str] = Counter()
    for record in bundles:
        if record.state in (BundleState.FREE, BundleState.DELETED):
            continue
        named = {name for name in (record.incarnation, record.destination) if name}
        counts.update({broker_of(name, incarnations) for name in named})
    return counts


def broker_of(incarnation: str, incarnations: Mapping[str, IncarnationRecord]) -> str:
    """The broker behind an incarnation; of a dead one its id names it (<broker>.<16 hexadecimal
    digits>)."""
    record = incarnations.get(incarnation)
    return record.broker if record is not None else incarnation.rpartition(".")[0] or incarnation
