"""Which files are dead.

Owns: the decisions of the collector, as functions of durable facts: log files that every bundle and
every coordinator has passed, checkpoints, manifests and segments that were superseded or never
committed. Imports: metadata records, names of files, manifest. Pure. Invariants: a file is given up
only on facts that stay true once they are true (what a manifest has covered is never listed again,
a chain only moves on, an epoch that is over points to nothing new), so it does not matter how old
the facts are when the file is deleted; facts that are missing or contradict each other keep the
file. The last objects of a bundle are deleted because its record says Deleted, never because there
is no record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    CoordinatorRecord,
    IntentRecord,
    LogFileRecord,
    LogRange,
)
from magnetar.names import BundleName
from magnetar.storage import names
from magnetar.storage.manifest import Manifest, SegmentReference

LogFile = tuple[str, int]
"""(incarnation, number)"""


@dataclass(frozen=True, slots=True)
class BundleFacts:
    """What the store says of one bundle: its record (None: there is none) and its manifest (None:
    it cannot be read).

    `deleted` as `is_over` says. `heirs` are the bundles that have what a Deleted one wrote.
    """

    record: BundleRecord | None
    manifest: Manifest | None
    deleted: bool = False
    heirs: tuple[str, ...] = ()

    def lists(self, file: LogFile) -> bool:
        """Whether the bundle's manifest names the log file, or may do so."""
        return self.manifest is None or any(
            (entry.incarnation, entry.file) == file for entry in self.manifest.level0
        )

    def replays(self, file: LogFile) -> bool:
        """Whether a recovery of the bundle reads the log file: it lies in the chain since the
        checkpoint pointed to."""
        return self.record is not None and is_replayed(self.record.chain, file)

    def covered(self, number: int, epochs: Iterable[int]) -> bool:
        """Whether the manifest has taken in everything that these terms wrote into file `number`
        of their incarnation."""
        reached = self.manifest.covered if self.manifest is not None else None
        return reached is not None and all((epoch, number) < reached for epoch in epochs)


def is_over(
    bundle: BundleName,
    record: BundleRecord | None,
    current: Collection[BundleName] | None,
    records: Mapping[str, BundleRecord],
) -> bool:
    """Whether all that sealed files hold of `bundle` is of an earlier incarnation of its namespace,
    or of one that is deleted: no client asks for it.

    `record` is its own, one of all `records`; `current` are the bundles of its namespace as it is
    (None: there is none), read after the records.

    Why that stays true. Without a record, or with a Deleted one, every term that wrote into the
    files has ended, and one that begins later starts behind them, with topics of its own. A bundle
    ends in two ways. It was split or merged: then others have what it wrote (`heirs_of`). One
    transaction gave them records and ended its own, and so did every later split and merge of
    theirs: in every state of the store, all of its range has records that are not Deleted, until
    these are retired. Or it was retired with its namespace. So it is over when no such record
    shares a hash with it, and the namespace is gone, or does not have, by a record that is not
    there (no client may have looked the bundle up yet), the bundle itself. A namespace may also
    have lost its record while topics of it exist, and have got it back with other boundaries: then
    bundles that hold them have records, and keep what was written before.
    """
    if (record is not None and record.state is not BundleState.DELETED) or heirs_of(
        bundle, records
    ):
        return False
    return current is None or record is not None or bundle not in current


def heirs_of(bundle: BundleName, records: Mapping[str, BundleRecord]) -> tuple[str, ...]:
    """The other bundles that share hashes with `bundle` and are not Deleted, as one state of the
    store has them: splits and merges have given them what a Deleted one wrote."""
    prefix = f"{bundle.namespace}/"
    return tuple(
        sorted(
            name
            for name, record in records.items()
            if record.state is not BundleState.DELETED
            and name.startswith(prefix)
            and (other := BundleName.parse(name)) != bundle
            and bundle.overlaps(other)
        )
    )


def is_replayed(chain: Iterable[LogRange], file: LogFile) -> bool:
    """Whether the log file lies in a recovery chain."""
    incarnation, number = file
    return any(
        span.incarnation == incarnation
        and span.start.file <= number
        and (span.end is None or number <= span.end.file)
        for span in chain
    )


def has_passed(
    bundle: str, facts: Mapping[str, BundleFacts], file: LogFile, epochs: Collection[int]
) -> bool:
    """Whether neither recovery nor a reader of `bundle` will ask for the log file, in which
    these terms of it wrote."""
    found = facts.get(bundle)
    if found is None or found.replays(file) or found.lists(file):
        return False
    if found.deleted:
        return True
    if found.heirs or (found.record is not None and found.record.state is BundleState.DELETED):
        # Split or merged: what it wrote is its heirs', whose manifests began with what its own
        # listed of theirs; all of them must have passed.
        return bool(found.heirs) and all(
            _heir_has_passed(heir, facts, file, epochs) for heir in found.heirs
        )
    return found.covered(file[1], epochs)


def _heir_has_passed(
    heir: str, facts: Mapping[str, BundleFacts], file: LogFile, epochs: Collection[int]
) -> bool:
    """As `has_passed`; an heir has a record from the first: without it the facts are of
    different moments."""
    found = facts.get(heir)
    return found is not None and found.record is not None and has_passed(heir, facts, file, epochs)


def dead_log_files(
    files: Mapping[LogFile, LogFileRecord],
    facts: Mapping[str, BundleFacts],
    *,
    pinned_files: Collection[LogFile] = (),
    pinned_bundles: Collection[str] = (),
    beginning: Collection[str] = (),
    coordinators: Iterable[CoordinatorRecord] = (),
) -> list[LogFile]:
    """Of the sealed log files those that every bundle listed in their record has passed, no
    coordinator replays and no reader pins, in order.

    `facts` are of every bundle that has a record, and of every one that a file lists.
    `pinned_bundles` are those of which a job under its intent may be reading any file.
    Of the incarnations in `beginning` nothing is given up, see `destinations`.
    """
    pinned = set(pinned_bundles)
    chain = [span for record in coordinators for span in record.chain]
    return sorted(
        file
        for file, record in files.items()
        if file not in pinned_files
        and file[0] not in beginning
        and pinned.isdisjoint(record.bundles)
        # The record lists bundles with entries in the file; those with nothing but cursors or
        # topics there replay it all the same.
        and not any(found.replays(file) for found in facts.values())
        and not is_replayed(chain, file)
        and all(
            has_passed(bundle, facts, file, epochs) for bundle, epochs in record.bundles.items()
        )
    )


def destinations(facts: Iterable[BundleFacts]) -> set[str]:
    """Incarnations that a bundle is assigned to. Also a dead one may be about to say that its term
    has begun, in whichever of its files.

    It looks for its claim after it has seen the assignment: one that was fenced before does not get
    that far.
    """
    records = (found.record for found in facts)
    return {
        record.incarnation
        for record in records
        if record is not None and record.state is BundleState.ASSIGNING
    }


# --- objects of a bundle --------------------------------------------------------------------------


def superseded_checkpoints(
    listed: Iterable[str], record: BundleRecord | None, pointed_to: Collection[str] = ()
) -> list[str]:
    """Of the checkpoint objects of a bundle, listed before the records were read, those that no
    record will point to any more.

    One that is newer than the one pointed to may be on its way into the record, as long as the term
    that wrote it has not ended; or into that of a bundle that this one is merged into.
    `pointed_to` are those that any record names: bundles that were split or merged from this one
    begin with its checkpoint.
    """
    if record is None:
        return []
    free = [name for name in listed if name not in pointed_to]
    if record.state is BundleState.DELETED:
        # its last term is over, and its heirs, which exist if it was split or merged, do not name
        # them
        return sorted(free)
    pointed = record.checkpoint.object if record.checkpoint is not None else ""
    # of the bundle that this one was split from, until it has a checkpoint of its own
    directory = pointed.rpartition("/")[0]
    return sorted(
        name
        for name in free
        if name != pointed
        and (
            (name.rpartition("/")[0] == directory and name < pointed)
            or _epoch_of(name) < record.epoch
        )
    )


def _epoch_of(checkpoint: str) -> int:
    """The term that wrote a checkpoint: `names.checkpoint` begins with it."""
    return int(checkpoint.rpartition("/")[2].partition("-")[0])


def manifests_of_the_dead(
    by_bundle: Mapping[str, Iterable[str]],
    intents: Iterable[IntentRecord],
    records: Mapping[str, BundleRecord],
    pointed_to: Collection[str],
) -> list[str]:
    """Of the manifest objects by bundle those of Deleted ones, which can never become current.
    `pointed_to`: bundles that have a manifest.

    Read in this order: the lists, then the intents, then the records, then the pointers. A Deleted
    bundle has nothing to be read from a manifest: it was split or merged, and the manifests of its
    heirs took over its list in the transaction that made it Deleted, or it was retired with its
    namespace, whose deletion took its topics first. A next incarnation of it, if there is one, starts with the
    manifest that the store points to. So nothing is lost if the store can never point to one of
    these objects. Its writer reads the pointer first, and commits by comparing that; with a
    manifest at hand, by comparing a pointer that is gone. Who found none (a paused former owner, a
    job that was planned long ago, a split, a merge) compares more:

    - a broker that covers log files: its bundle's record as it was when its own term was in it,
      which the Deleted one has replaced;
    - a rewrite, and a job: its intent, which was there before the object, and is not there any more
      (bundles with intents keep everything);
    - a split or a merge, which writes for bundles to come: the Splitting or Merging record of a
      parent, which was there before the object (namespaces in which a bundle is being split or
      merged keep everything).

    A late commit may still make a pointer for a Deleted bundle: it goes first, by comparison
    (`GarbageCollector`), and until then everything is kept. What an incarnation that began after
    the records were read writes is not in the lists. In a store that is being filled, or was lost,
    nothing is Deleted.
    """
    changing = {
        BundleName.parse(name).namespace
        for name, record in records.items()
        if record.state in (BundleState.SPLITTING, BundleState.MERGING)
    }
    kept = {intent.bundle for intent in intents} | set(pointed_to)
    dead = [
        name
        for name in by_bundle
        if name not in kept
        and (record := records.get(name)) is not None
        and record.state is BundleState.DELETED
    ]
    return sorted(
        found
        for name in dead
        if BundleName.parse(name).namespace not in changing
        for found in by_bundle[name]
    )


def superseded_manifests(listed: Iterable[str], pointed: str, generation: int) -> list[str]:
    """Of the manifest objects of a bundle, listed before its pointer (object, generation) was read,
    those that cannot become current.

    One of a later generation may be on its way; one of this generation or before lost, or was
    superseded.
    """
    return sorted(name for name in listed if name != pointed and _generation_of(name) <= generation)


def _generation_of(manifest: str) -> int:
    return int(manifest.rpartition("/")[2].partition("-")[0])


def orphaned_segments(
    listed: Iterable[str], intents: Collection[str], manifests: Iterable[Manifest]
) -> list[str]:
    """Of the segments of a bundle, those that no manifest refers to and no intent may still commit.

    Read in this order: the list, then the intents (their ids), then the manifests. A segment's name
    begins with the id of its intent, which was there before it: an intent that is gone has been
    committed, which the manifests then show, or can never be.
    """
    referred = {segment.object for manifest in manifests for segment in segments_of(manifest)}
    return sorted(
        name
        for name in listed
        if name not in referred
        and not any(name.rpartition("/")[2].startswith(known) for known in intents)
    )


def segments_of(manifest: Manifest) -> Iterable[SegmentReference]:
    """Every segment that a manifest refers to."""
    for topic in manifest.topics.values():
        yield from topic.level1
        if topic.compacted is not None:
            yield from topic.compacted.segments


def listed_in(manifest: Manifest) -> frozenset[str]:
    """Names of the log files and segments that a manifest lists."""
    files = {names.log_file(entry.incarnation, entry.file) for entry in manifest.level0}
    return frozenset(files.union(segment.object for segment in segments_of(manifest)))


# --- time -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Grace:
    """Releases objects only after they were seen given up for `kept_ms`, by the collector's own
    `clock.elapsed_ms`.

    Remembered in memory only: a collector that starts again waits again.
    """

    kept_ms: int
    _since: dict[str, int] = field(default_factory=dict)

    def over(self, given_up: Collection[str], now_ms: int) -> list[str]:
        """Those of the names that may go now. What is not named is forgotten."""
        self._since = {name: self._since.get(name, now_ms) for name in given_up}
        return sorted(name for name, since in self._since.items() if now_ms - since >= self.kept_ms)
