"""Restoring the metadata store from storage.

Owns: the acts around `rebuilding`: raise the restore number, end every incarnation, read logs and
manifests, write the store. Imports: storage and metadata siblings, clock. Invariants: brokers serve
until the restore number is raised and they are fenced; only what never changes is read before that.
The number is raised before anything else is read, so no broker joins during the restore, or by what
the store said before; epochs under it are above every epoch in storage; the cluster's record is
written last, so a restore that was interrupted is noticed by every broker, and simply done again;
with a problem nothing is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from magnetar.clock import Clock
from magnetar.errors import CorruptData, InvalidRequest, StorageError
from magnetar.metadata import keys
from magnetar.metadata.backup import Backup, read_backup
from magnetar.metadata.records import (
    RESTORE_STRIDE,
    BundleRecord,
    ClusterRecord,
    ManifestPointer,
    RestoreRequestRecord,
)
from magnetar.metadata.store import MetadataStore, Operation, Put
from magnetar.metadata.topic_schemas import kept_in
from magnetar.storage import names
from magnetar.storage.checkpoint import read_checkpoint
from magnetar.storage.gc import listed_in, segments_of
from magnetar.storage.log.format import TermRecord
from magnetar.storage.manifest import Manifest, read_manifest
from magnetar.storage.restore.backups import list_backups, load_backup
from magnetar.storage.restore.coordinator_copies import read_coordinators
from magnetar.storage.restore.log_copies import Files, LogFacts, fence_all, read_logs, read_sealed
from magnetar.storage.restore.rebuilding import ManifestFact, RebuiltStore, StorageFacts, rebuild
from magnetar.storage.restore.restore_number import raise_restore_number
from magnetar.storage.storage_id import read_storage_id
from magnetar.storage.volumes.volume import Volume

FORMAT_VERSION = 1
OPERATIONS_MAX = 100
TRANSACTION_BYTES_MAX = 512 << 10
SHOWN_MAX = 20
MADE_DURABLE_AT_ONCE = 16
LAST = (keys.RESTORE, keys.CLUSTER)

Say = Callable[[str], None]
Topics = Mapping[str, Mapping[int, bytes]]
"""Of a checkpoint, each with the versions of its schema."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did: its number, where the rest of the store came from, and what was
    written."""

    number: int
    source: str
    store: RebuiltStore


async def restore_store(
    store: MetadataStore,
    volume: Volume,
    clock: Clock,
    *,
    backup: Backup | None,
    source: str,
    in_place: bool = False,
    force: bool = False,
    request: str = "",
    say: Say = lambda _line: None,
) -> Restored:
    """Fill the store from `backup` (None: from storage alone; `in_place`: from what the store
    itself holds) and from storage.

    The store remembers `request` ("" = nothing) from the moment on at which brokers accept it.
    Brokers that run are fenced: then the pause of their clients begins. Raises InvalidRequest for
    what `force` would allow, or must be corrected first; StoreError, StorageError.
    """
    storage_id = await _storage_id(volume)
    if in_place:
        backup = await read_backup(store, clock.wall_ms())
    await _check(store, storage_id, backup, source, in_place, force)
    ahead = ReadAhead()
    await read_ahead(volume, ahead)
    say(
        f"{len(ahead.files)} sealed log files and {len(ahead.manifests)} manifests are read; next "
        "brokers are fenced, and the pause begins"
    )
    least = 1 + max(backup.restore if backup is not None else 0, await _restore_in(store))
    number = await raise_restore_number(volume, clock, least, source)
    say(f"restore number {number}: brokers that do not know it end, or do not start")
    try:
        sealed = await fence_all(volume)
    except CorruptData as error:
        raise StorageError(f"a log cannot be ended, nothing was written: {error}") from error
    say(f"{len(sealed)} incarnations ended, {sum(map(len, sealed.values()))} log files sealed")
    facts = await read_facts(
        volume, storage_id, await read_logs(volume, sealed, ahead.files), ahead
    )
    say(f"{len(facts.logs.terms)} copies of bundles found")
    last = max(last_epoch(facts), backup.epoch if backup is not None else 0)
    if last >= number * RESTORE_STRIDE:  # revisions that carried into the restore numbers
        number = await raise_restore_number(volume, clock, last // RESTORE_STRIDE + 1, source)
        say(f"restore number {number}: the one before is not above all epochs in storage")
    result = rebuild(facts, backup, number, FORMAT_VERSION)
    if result.problems and not force:
        raise InvalidRequest(
            f"nothing was written: {_shown(result.problems)}; then run this again, or run it with "
            "--force to continue without"
        )
    await _make_durable(volume, result.items)
    await _write(store, result.items, request)
    return Restored(number, source, result)


async def newest_backup(volume: Volume, say: Say = lambda _line: None) -> tuple[Backup, str] | None:
    """The newest whole copy of the store in storage, and its name; None if there is none. Raises
    StorageError."""
    for name in reversed(await list_backups(volume)):
        try:
            return await load_backup(volume, name), name
        except (CorruptData, FileNotFoundError) as error:
            say(f"{name} is passed over: {error}")
    return None


# --- checks ---------------------------------------------------------------------------------------


async def _storage_id(volume: Volume) -> str:
    found = await read_storage_id(volume)
    if found is None:
        raise InvalidRequest(
            "the volume has no storage id: no cluster has ever used it; mount the right one"
        )
    return found


async def _check(
    store: MetadataStore,
    storage_id: str,
    backup: Backup | None,
    source: str,
    in_place: bool,
    force: bool,
) -> None:
    if backup is not None and backup.storage_id != storage_id:
        raise InvalidRequest(
            f"{source} is of storage {backup.storage_id}, the volume is {storage_id}: choose the "
            "backup of this cluster, or mount its volume"
        )
    registered = [
        item.key.removeprefix(keys.INCARNATIONS)
        for item in (await store.range(keys.INCARNATIONS)).items
    ]
    if registered and not force:
        raise InvalidRequest(
            f"brokers are registered: {', '.join(registered[:SHOWN_MAX])}; stop them (their "
            "registrations go within a lease), or use --force, "
            "which ends them"
        )
    if not in_place and not force and await store.get(keys.CLUSTER) is not None:
        raise InvalidRequest(
            "the metadata store is not empty: use `restore --in-place` to continue with what is in "
            "it, or --force to replace it"
        )


async def _restore_in(store: MetadataStore) -> int:
    item = await store.get(keys.CLUSTER)
    return ClusterRecord.decode(item.value).restore if item is not None else 0


def _shown(problems: list[str]) -> str:
    further = f"; and {len(problems) - SHOWN_MAX} more" if len(problems) > SHOWN_MAX else ""
    return "; ".join(problems[:SHOWN_MAX]) + further


# --- facts ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class ReadAhead:
    """What was read of things that never change: sealed log files, manifests, and the topics of
    checkpoints with the versions of their schemas, by name."""

    files: Files = field(default_factory=dict)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    topics: dict[str, Topics] = field(default_factory=dict)


async def read_ahead(volume: Volume, ahead: ReadAhead) -> None:
    """Read ahead, while brokers serve, what would otherwise lengthen the pause. Raises
    StorageError."""
    await read_sealed(volume, ahead.files)
    for name in await volume.list(names.MANIFESTS):
        await _manifest(volume, name, ahead)
    terms = [
        BundleRecord.decode(record.state)
        for said in ahead.files.values()
        for record, *_ in said
        if isinstance(record, TermRecord)
    ]
    for name in sorted(
        {pointer.object for record in terms if (pointer := record.checkpoint) is not None}
    ):
        await _topics_of(volume, name, ahead, [])


async def read_facts(
    volume: Volume, storage_id: str, logs: LogFacts, ahead: ReadAhead
) -> StorageFacts:
    """What `rebuild` needs beside the logs. Raises StorageError."""
    there = {
        names.log_file(incarnation, file.number)
        for incarnation, files in logs.sealed.items()
        for file in files
    }
    there.update(await volume.list(names.SEGMENTS))
    manifests: dict[str, list[ManifestFact]] = {}
    for name in await volume.list(names.MANIFESTS):
        fact = await _manifest_fact(volume, name, there, ahead)
        if fact is not None:
            manifests.setdefault(
                name.removeprefix(f"{names.MANIFESTS}/").rpartition("/")[0], []
            ).append(fact)
    checkpoints: dict[str, Topics] = {}
    for name in sorted(
        {pointer.object for copy in logs.terms if (pointer := copy.record.checkpoint) is not None}
    ):
        topics = await _topics_of(volume, name, ahead, logs.damaged)
        if topics is not None:
            checkpoints[name] = topics
    for name in await volume.list(names.CHECKPOINTS):
        checkpoints.setdefault(name, {})  # that a backup's record may name
    return StorageFacts(storage_id, logs, checkpoints, manifests, await read_coordinators(volume))


def last_epoch(facts: StorageFacts) -> int:
    """The highest epoch that storage knows of any bundle; 0 if there is none."""
    epochs = [
        epoch for name in facts.checkpoints if (epoch := names.checkpoint_epoch(name)) is not None
    ]
    return max(
        (
            *epochs,
            *(
                epoch
                for copy in facts.logs.terms
                for epoch in (copy.record.epoch, *copy.record.epochs)
            ),
        ),
        default=0,
    )


async def _topics_of(
    volume: Volume, name: str, ahead: ReadAhead, damaged: list[str]
) -> Topics | None:
    if name not in ahead.topics:
        try:
            found = (await read_checkpoint(volume, name)).topics
            ahead.topics[name] = {
                topic: kept_in(state.properties) for topic, state in found.items()
            }
        except FileNotFoundError:
            return None
        except CorruptData as error:
            damaged.append(str(error))
            return None
    return ahead.topics[name]


async def _manifest(volume: Volume, name: str, ahead: ReadAhead) -> Manifest | None:
    """The manifest `name`; None if it is not whole, as one is that a power loss caught."""
    if name not in ahead.manifests:
        try:
            ahead.manifests[name] = await read_manifest(volume, name)
        except (FileNotFoundError, CorruptData):
            return None
    return ahead.manifests[name]


async def _manifest_fact(
    volume: Volume, name: str, there: set[str], ahead: ReadAhead
) -> ManifestFact | None:
    """What the manifest `name` needs; None if it is not whole."""
    manifest = await _manifest(volume, name, ahead)
    if manifest is None:
        return None
    segments = frozenset(segment.object for segment in segments_of(manifest))
    missing = sorted(listed_in(manifest) - there)
    return ManifestFact(name, manifest.generation, manifest.covered, segments, tuple(missing))


async def _make_durable(volume: Volume, items: dict[str, bytes]) -> None:
    """Of the manifests that are pointed to, those whose writers had not ended when they were
    fenced may be seen and yet be lost with the power."""
    objects = [
        ManifestPointer.decode(value).object
        for key, value in sorted(items.items())
        if key.startswith(keys.MANIFESTS)
    ]

    async def again(name: str) -> None:
        try:
            # which makes the name durable that is there
            await volume.put_if_absent(name, await volume.read(name))
        except FileNotFoundError as error:
            raise StorageError(
                f"{name} has gone while the store was restored; restore it again"
            ) from error

    for start in range(0, len(objects), MADE_DURABLE_AT_ONCE):
        await asyncio.gather(
            *(again(name) for name in objects[start : start + MADE_DURABLE_AT_ONCE])
        )


# --- writing --------------------------------------------------------------------------------------


async def is_restored_for(store: MetadataStore, request: str) -> bool:
    """Whether the store was filled for `request` already. Raises StoreError."""
    item = await store.get(keys.RESTORE_REQUEST)
    return item is not None and RestoreRequestRecord.decode(item.value).request == request


async def _write(store: MetadataStore, items: dict[str, bytes], request: str) -> None:
    """Make the store's durable keys exactly `items`, and remember `request` with the last of
    them."""
    await store.delete(keys.RESTORE)  # from here on no incarnation from before changes anything
    for item in (await store.range("")).items:
        if not item.lease and keys.is_durable(item.key) and item.key not in items:
            await store.delete(item.key)
    chunk: list[Operation] = []
    size = 0
    for key, value in sorted(items.items()):
        if key in LAST:
            continue
        if chunk and (len(chunk) == OPERATIONS_MAX or size + len(value) > TRANSACTION_BYTES_MAX):
            await store.transact((), chunk)
            chunk, size = [], 0
        chunk.append(Put(key, value))
        size += len(key) + len(value)
    if chunk:
        await store.transact((), chunk)
    done = [Put(keys.RESTORE_REQUEST, RestoreRequestRecord(request).encode())] if request else []
    await store.transact((), [*(Put(key, items[key]) for key in LAST), *done])
