"""The metadata store as storage knows it.

Owns: the decision what a restored store holds: bundle records and manifest pointers from what logs
and manifests say, everything else from a backup where there is one. Imports: metadata records,
names, formats. Pure: facts in, keys out.

Why it loses nothing. An owner writes a copy of its bundle's record into its log before anything
else of a term, and before each checkpoint that it points to; both are durable before anything is
acknowledged on top of them, or deleted because of them. So the newest copy of a bundle names a
checkpoint and a chain that hold all that was acknowledged, whatever the store's record said last; a
term without a copy has acknowledged nothing. Whatever a backup says of a bundle is at most as new,
unless the bundle has no copy of that term: then nothing came of the term.

Invariants: a bundle is never begun again while anything says that it had contents; of two bundles
that overlap one is chosen by rules that hold in every history, and the other is named; what is
missing is a problem for an operator, never a gap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from magnetar.metadata import keys
from magnetar.metadata.backup import Backup
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    ClusterRecord,
    LogPosition,
    LogRange,
    ManifestPointer,
    NamespaceRecord,
    PartitionedTopicRecord,
    RestoreRecord,
)
from magnetar.names import BundleName, NamespaceName, TopicName, fitting_boundaries, partition_of
from magnetar.policies import KEPT_POLICIES
from magnetar.storage import names
from magnetar.storage.log.blocks import FILE_HEADER_BYTES
from magnetar.storage.log.fencing import log_end
from magnetar.storage.restore.coordinator_copies import CoordinatorFacts, rebuilt_coordinators
from magnetar.storage.restore.log_copies import LogFacts, TermCopy
from magnetar.storage.restore.schema_copies import rebuilt_schemas


@dataclass(frozen=True, slots=True)
class ManifestFact:
    """A manifest object: what it covers, the segments it lists, and what of all that it lists is
    not there."""

    object: str
    generation: int
    covered: tuple[int, int] | None
    segments: frozenset[str]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """What storage holds, all incarnations being fenced. `checkpoints` are the topics of those that
    copies name, each with the versions of its schema."""

    storage_id: str
    logs: LogFacts
    checkpoints: Mapping[str, Mapping[str, Mapping[int, bytes]]]
    manifests: Mapping[str, Sequence[ManifestFact]]
    coordinators: CoordinatorFacts = field(default_factory=CoordinatorFacts)


@dataclass(slots=True)
class RebuiltStore:
    """Every key of the restored store; what was done with each bundle; what to know, and what
    must be looked at before it is used."""

    items: dict[str, bytes] = field(default_factory=dict)
    bundles: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def rebuild(
    facts: StorageFacts, backup: Backup | None, restore: int, format_version: int
) -> RebuiltStore:
    """The store to continue with, under the restore number `restore`."""
    result = RebuiltStore()
    result.problems += [
        f"{damage}: copies of bundles may be missed; restore this file"
        for damage in facts.logs.damaged
    ]
    records = {
        name: chosen.record
        for name, chosen in _live(_candidates(facts, backup, result), result).items()
    }
    result.items |= _kept(backup, facts)
    items, problems = rebuilt_coordinators(facts.coordinators, facts.logs.sealed, result.items)
    result.items |= items
    result.problems += problems
    for name, record in sorted(records.items()):
        result.items[keys.bundle(BundleName.parse(name))] = record.encode()
        if record.state is not BundleState.DELETED:
            pointer = _pointer(name, record, facts, result)
            if pointer is not None:
                result.items[keys.manifest(BundleName.parse(name))] = pointer.encode()
    _namespaces(
        {BundleName.parse(name): record for name, record in records.items()}, backup, result
    )
    topics = _topics(records.values(), facts)
    _partitioned_topics(topics, result)
    result.items |= rebuilt_schemas(
        topics, records.values(), facts.checkpoints, facts.logs, result.items
    )
    result.items[keys.RESTORE] = RestoreRecord(restore).encode()
    result.items[keys.CLUSTER] = ClusterRecord(facts.storage_id, restore, format_version).encode()
    return result


# --- bundles --------------------------------------------------------------------------------------


class Chosen(NamedTuple):
    """A bundle's record, every epoch that any of its copies has named, and what is missing that
    recovery would ask for."""

    record: BundleRecord
    named: frozenset[int]
    missing: Sequence[str] = ()


def _candidates(
    facts: StorageFacts, backup: Backup | None, result: RebuiltStore
) -> dict[str, Chosen]:
    """Of each bundle the newest record that can be recovered from."""
    copies: dict[str, list[TermCopy]] = {}
    for copy in facts.logs.terms:
        copies.setdefault(copy.bundle, []).append(copy)
    backed = _backed_up(backup)
    known = {
        item.removeprefix(keys.NAMESPACES)
        for item in (backup.items if backup else ())
        if item.startswith(keys.NAMESPACES)
    }
    found: dict[str, Chosen] = {}
    for name in sorted({*copies, *backed}):
        newest = max((copy.record.epoch for copy in copies.get(name, ())), default=0)
        if backup is not None and newest <= backup.epoch and name.rpartition("/")[0] not in known:
            result.bundles[name] = "left out: its namespace was deleted before the backup was made"
            continue
        written = sorted(copies.get(name, ()), key=lambda copy: copy.place)
        record, missing = _choose(name, written, backed.get(name), facts, result)
        named = {epoch for copy in copies.get(name, ()) for epoch in copy.record.epochs}
        found[name] = Chosen(record, frozenset(named), missing)
    return found


def _backed_up(backup: Backup | None) -> dict[str, BundleRecord]:
    if backup is None:
        return {}
    return {
        key.removeprefix(keys.BUNDLES): BundleRecord.decode(value)
        for key, value in backup.items.items()
        if key.startswith(keys.BUNDLES)
    }


def _choose(
    name: str,
    copies: Sequence[TermCopy],
    backed: BundleRecord | None,
    facts: StorageFacts,
    result: RebuiltStore,
) -> tuple[BundleRecord, list[str]]:
    """The record to continue with, and what is missing for that. `copies` in the order in which
    they were written."""
    newest = copies[-1].record.epoch if copies else -1
    if (
        backed is not None
        and (backed.epoch > newest or backed.state is BundleState.DELETED)
        and backed.epoch >= newest
    ):
        record = _closed(name, backed, facts)
        missing = _missing(name, record, backed, facts)
        result.bundles[name] = f"{record.state} as in the backup, epoch {record.epoch}"
    else:
        # An older copy of the same term will do if what the newest names is not there: its
        # checkpoint was never pointed to, and given up since.
        same_term = [copy for copy in copies if copy.record.epoch == newest]
        closed = [(copy, _closed(name, copy.record, facts)) for copy in reversed(same_term)]
        copy, record = next(
            (pair for pair in closed if not _missing(name, pair[1], pair[0].record, facts)),
            closed[0],
        )
        missing = _missing(name, record, copy.record, facts)
        where = f"file {copy.place[1]} of {copy.incarnation}"
        result.bundles[name] = (
            f"epoch {record.epoch} from its copy in {where}, {len(record.chain)} log ranges to "
            "replay"
        )
    return record, missing


def _closed(name: str, record: BundleRecord, facts: StorageFacts) -> BundleRecord:
    """The record of a bundle without an owner, with an end to its chain."""
    if record.state is BundleState.DELETED:
        return record
    chain = record.chain
    if chain and chain[-1].end is None:
        last = chain[-1]
        end = facts.logs.releases.get((name, record.epochs[-1])) or log_end(
            facts.logs.sealed.get(last.incarnation, ()), last.start
        )
        chain = (
            *chain[:-1],
            LogRange(last.incarnation, last.start, max(last.start, end, key=_place)),
        )
    return BundleRecord(
        BundleState.FREE,
        record.epoch,
        checkpoint=record.checkpoint,
        chain=chain,
        epochs=record.epochs,
        reason="rebuilt from storage",
    )


def _missing(
    name: str, record: BundleRecord, given: BundleRecord, facts: StorageFacts
) -> list[str]:
    """Objects and files that recovery would ask for and not find; `record` is `given` with its
    chain closed.

    Of an owner that has released nothing, also the file in which its log continues, if that is
    known to have been there: the bundle needs it all.
    """
    if record.state is BundleState.DELETED:
        return []
    found = []
    if record.checkpoint is not None and record.checkpoint.object not in facts.checkpoints:
        found.append(record.checkpoint.object)
    for span in record.chain:
        assert span.end is not None, record
        there = {file.number for file in facts.logs.sealed.get(span.incarnation, ())}
        if _place(span.end) <= _place(span.start):
            # Nothing was written: its files may be gone. But a log that has an owner begins with a
            # file that is durable.
            if (
                span is record.chain[-1]
                and given.chain[-1].end is None
                and span.start.file not in there
            ):
                found.append(names.log_file(span.incarnation, span.start.file))
            continue
        last = span.end.file if span.end.offset > FILE_HEADER_BYTES else span.end.file - 1
        found += [
            names.log_file(span.incarnation, number)
            for number in range(span.start.file, last + 1)
            if number not in there
        ]
    if (
        given.chain
        and given.chain[-1].end is None
        and (name, given.epochs[-1]) not in facts.logs.releases
    ):
        span = given.chain[-1]
        lost = facts.logs.lost.get(span.incarnation, -1)
        if (
            lost >= span.start.file
            and (name_of_lost := names.log_file(span.incarnation, lost)) not in found
        ):
            found.append(name_of_lost)
    return found


def _place(position: LogPosition) -> tuple[int, int]:
    return position.file, position.offset


def _live(candidates: Mapping[str, Chosen], result: RebuiltStore) -> dict[str, Chosen]:
    """The bundles, with those that were split or merged marked as deleted, and without those whose
    split or merge was not finished, or that are of an earlier incarnation of their namespace.

    The youngest first. Whatever a bundle became in the end has a copy, since it has an owner's
    term: so one whose whole range younger ones have was split or merged. Where they leave a gap,
    that was not finished. The children of a split have copies before any of them acknowledges: one
    without its siblings has acknowledged nothing. And a merged bundle acknowledges nothing once one
    of its parents has begun a later term, which does not name its epoch.
    """
    found = dict(candidates)
    parsed = {name: BundleName.parse(name) for name in found}
    established: set[str] = set()
    for name in sorted(candidates, key=lambda known: (-candidates[known].record.epoch, known)):
        record, named, _ = candidates[name]
        if record.state is BundleState.DELETED:
            continue
        bundle = parsed[name]
        younger = sorted(known for known in established if bundle.overlaps(parsed[known]))
        if younger and is_covered(bundle, [parsed[known] for known in younger]):
            found[name] = Chosen(
                BundleRecord(BundleState.DELETED, record.epoch, reason="split or merged"), named
            )
            ranges = ", ".join(known.rpartition("/")[2] for known in younger)
            within = all(bundle.includes(parsed[known]) for known in younger)
            result.bundles[name] = f"was {'split' if within else 'merged'} into {ranges}"
        elif all(record.epoch in candidates[known].named for known in younger):
            for known in younger:
                result.bundles[known] = f"left out for {name}: of a split that was not finished"
                established.remove(known)
                del found[known]
            established.add(name)
        else:
            result.bundles[name] = (
                f"left out for {', '.join(younger)}: of an earlier incarnation of its namespace, "
                "or of a merge that was not finished"
            )
            del found[name]
    for name, chosen in found.items():
        if chosen.missing:
            result.problems.append(
                f"bundle {name} cannot be recovered without {', '.join(chosen.missing)}: restore "
                "these files, or, if its namespace was deleted, "
                "use --force and delete the namespace again"
            )
    return found


def is_covered(bundle: BundleName, others: Iterable[BundleName]) -> bool:
    """Whether the others leave no gap in the range of `bundle`."""
    reached = bundle.low
    for other in sorted(others):
        if other.low > reached:
            return False
        reached = max(reached, other.high)
    return reached >= bundle.high


# --- manifests ------------------------------------------------------------------------------------


def _pointer(
    name: str, record: BundleRecord, facts: StorageFacts, result: RebuiltStore
) -> ManifestPointer | None:
    """The manifest to point to; None if the bundle has none."""
    listed = sorted(
        facts.manifests.get(name, ()), key=lambda fact: (fact.generation, fact.covered or (-1, -1))
    )
    needed = _needed(record)
    usable = [
        fact
        for fact in listed
        if not fact.missing and (needed is None or (fact.covered or (-1, -1)) >= needed)
    ]
    if not usable:
        if listed or needed is not None:
            missing = (
                ", ".join(listed[-1].missing)
                if listed and listed[-1].missing
                else "the manifest that its checkpoint rests on"
            )
            result.problems.append(f"bundle {name} cannot be read without {missing}: restore it")
        if not listed:
            return None
    chosen = choose_manifest(usable or listed)  # a reader will name what is missing
    return ManifestPointer(chosen.generation, chosen.object)


def _needed(record: BundleRecord) -> tuple[int, int] | None:
    """What a manifest must have taken in, as `covered`, so that the checkpoint may stand for
    everything before it."""
    if record.checkpoint is None:
        return None
    epoch = names.checkpoint_epoch(record.checkpoint.object)
    assert epoch is not None, record.checkpoint
    return epoch, record.checkpoint.position.file


def choose_manifest(usable: Sequence[ManifestFact]) -> ManifestFact:
    """Of whole manifests, by generation, the one to point to.

    A generation that another one was built on is committed, for certain if it has one object only.
    One of the last generation may have lost its compare-and-swap, or its writer may be about to
    find out, and to delete the segments that it wrote: it is left alone if it lists any that the
    last certain one does not, which is whole and so holds the same entries. Everything else in it
    exists, and stays.
    """
    last = max(fact.generation for fact in usable)
    built_on = [fact for fact in usable if fact.generation < last]
    newest = [fact for fact in usable if fact.generation == last]
    if not built_on:
        return max(newest, key=lambda fact: (fact.covered or (-1, -1), fact.object))
    before = max(
        built_on, key=lambda fact: (fact.generation, fact.covered or (-1, -1), fact.object)
    )
    harmless = [fact for fact in newest if fact.segments <= before.segments]
    return max(
        harmless or [before],
        key=lambda fact: (fact.generation, fact.covered or (-1, -1), fact.object),
    )


# --- everything else ------------------------------------------------------------------------------

REBUILT = (keys.CLUSTER, keys.RESTORE, keys.BACKUP, keys.BUNDLES, keys.MANIFESTS, keys.INTENTS)
"""What is never taken from a backup as it is. Without its intent whatever was being written is
not committed any more, and goes."""


def _kept(backup: Backup | None, facts: StorageFacts) -> dict[str, bytes]:
    """What a backup alone knows; keys of log files only where the file is still there. The
    leader writes those that are missing."""
    if backup is None:
        return {}
    kept = {key: value for key, value in backup.items.items() if not keys.is_one_of(key, REBUILT)}
    there = {
        keys.log_file(incarnation, file.number)
        for incarnation, files in facts.logs.sealed.items()
        for file in files
    }
    return {
        key: value for key, value in kept.items() if not key.startswith(keys.LOGS) or key in there
    }


def _namespaces(
    bundles: Mapping[BundleName, BundleRecord], backup: Backup | None, result: RebuiltStore
) -> None:
    """Boundaries that fit the bundles; namespaces that the backup does not know."""
    living: dict[NamespaceName, list[BundleName]] = {}
    for bundle, record in bundles.items():
        if record.state is not BundleState.DELETED:
            living.setdefault(bundle.namespace, []).append(bundle)
    for namespace, found in sorted(living.items()):
        key = keys.namespace(namespace)
        before = NamespaceRecord.decode(result.items[key]) if key in result.items else None
        known = before.boundaries if before is not None else ()
        boundaries = fitting_boundaries(known, found)
        if before is None:
            before = NamespaceRecord(boundaries, dict(KEPT_POLICIES))
            since = (
                "is not in the backup" if backup is not None else "is known from its bundles only"
            )
            result.warnings.append(
                f"namespace {namespace} {since}: its policies are lost, and until you set them "
                "nothing in it expires or is deleted "
                f"(pulsar-admin namespaces set-retention {namespace} ...; "
                "set-inactive-topic-policies)"
            )
        elif boundaries != known:
            result.warnings.append(
                f"namespace {namespace} has {len(boundaries) - 1} bundles, {len(known) - 1} in the "
                "backup: some were split or merged since"
            )
        result.items[key] = replace(before, boundaries=boundaries).encode()


def _partitioned_topics(topics: Collection[str], result: RebuiltStore) -> None:
    """Entries of partitioned topics that the backup does not know, or not with as many
    partitions. Brokers mend those of topics themselves."""
    counts: dict[TopicName, int] = {}
    for topic in sorted(topics):
        name = TopicName.parse(topic)
        partition = partition_of(name.local)
        if partition >= 0 and str(name.base) not in topics:  # else a topic has such a name
            counts[name.base] = max(counts.get(name.base, 0), partition + 1)
    for name, partitions in sorted(counts.items(), key=lambda item: str(item[0])):
        key = keys.partitioned_topic(name)
        if keys.namespace(name.namespace_name) not in result.items:
            continue
        before = PartitionedTopicRecord.decode(result.items[key]) if key in result.items else None
        if before is None or before.partitions < partitions:
            record = before or PartitionedTopicRecord(partitions, {})
            result.items[key] = replace(record, partitions=partitions).encode()
            result.warnings.append(
                f"topic {name} has at least {partitions} partitions, as its logs show; check the "
                "number"
            )


def _topics(records: Iterable[BundleRecord], facts: StorageFacts) -> set[str]:
    """Topics that exist: in checkpoints, or created in a log, and not deleted since."""
    found = {
        topic
        for record in records
        if record.checkpoint is not None
        for topic in facts.checkpoints.get(record.checkpoint.object, ())
    }
    for topic, (_, there) in facts.logs.topics.items():
        if there:
            found.add(topic)
        else:
            found.discard(topic)
    return found
