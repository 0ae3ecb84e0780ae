"""A model of a cluster whose metadata store is lost.

Owns: `ModelCluster`, whose bundles move, split, merge and checkpoint by the broker's own rules, and
what its logs, checkpoints and manifests hold afterwards. Imports: the rules of ownership, garbage
collection, the facts of rebuilding. Invariant: an entry is acknowledged once it is durable, so
whatever is in `acknowledged` must be recovered.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from magnetar.metadata import keys
from magnetar.metadata.backup import Backup
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    CheckpointPointer,
    ClusterRecord,
    LogPosition,
    LogRange,
    NamespaceRecord,
)
from magnetar.names import FULL_RANGE_END, BundleName
from magnetar.ownership import rules
from magnetar.ownership.merges import Neighbours
from magnetar.storage import names
from magnetar.storage.gc import BundleFacts, superseded_checkpoints
from magnetar.storage.log.blocks import FILE_HEADER_BYTES
from magnetar.storage.log.fencing import SealedFile
from magnetar.storage.manifest import Manifest
from magnetar.storage.restore.log_copies import LogFacts, TermCopy
from magnetar.storage.restore.rebuilding import ManifestFact, StorageFacts

RECORD_BYTES = 10
WHOLE = "t/n/0x00000000_0xffffffff"
STORAGE_ID = "5" * 32


@dataclass(frozen=True)
class Written:
    """A record of the model's log: TERM and RELEASE of a bundle, or an entry with its hash."""

    kind: str
    bundle: str
    epoch: int
    entry: tuple[int, int] | None = None
    copy: BundleRecord | None = None


@dataclass
class Incarnation:
    """A broker's log: files of records, how much of the last one is durable, and whether its
    claim stands."""

    name: str
    files: dict[int, list[Written]] = field(default_factory=lambda: {0: []})
    durable: int = 0
    alive: bool = True

    @property
    def last(self) -> int:
        return max(self.files, default=0)

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.last, FILE_HEADER_BYTES + RECORD_BYTES * self.durable)

    def append(self, record: Written) -> None:
        self.files[self.last].append(record)

    def die(self) -> None:
        """What was not flushed is lost."""
        if self.alive:
            self.alive = False
            del self.files[self.last][self.durable :]


@dataclass
class ModelCluster:
    """Bundles that move, split, merge and shorten their chains by the broker's own rules; the store
    is a dictionary."""

    revision: int = 0
    bundles: dict[str, BundleRecord] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)
    incarnations: dict[str, Incarnation] = field(default_factory=dict)
    checkpoints: dict[str, frozenset[tuple[int, int]]] = field(default_factory=dict)
    manifests: dict[str, list[ManifestFact]] = field(default_factory=dict)
    acknowledged: set[tuple[int, int]] = field(default_factory=set)
    count: int = 0
    written: int = 0
    backup: Backup | None = None

    def __post_init__(self) -> None:
        for number in range(2):
            self.start(number)

    # --- acts -------------------------------------------------------------------------------------

    def start(self, number: int) -> None:
        """A new incarnation of a broker; the one before is fenced."""
        for known in self.incarnations.values():
            if known.name.startswith(f"{number}."):
                known.die()
        name = f"{number}.{len(self.incarnations)}"
        self.incarnations[name] = Incarnation(name)

    def live(self, number: int) -> str:
        return next(
            (
                name
                for name, known in self.incarnations.items()
                if known.alive and name.startswith(f"{number}.")
            ),
            "",
        )

    def commit(self, bundle: str, record: BundleRecord) -> None:
        self.revision += 1
        self.bundles[bundle], self.revisions[bundle] = record, self.revision

    def take(self, bundle: str, number: int) -> None:
        """Assign the bundle, if nobody has it, to a broker, which acquires it."""
        record, new_owner = self.bundles.get(bundle), self.live(number)
        if not new_owner or (record is not None and record.state is BundleState.DELETED):
            return
        if record is None or record.state is BundleState.FREE:
            self.commit(bundle, rules.assign(record, new_owner, "test"))
        elif (
            record.incarnation not in self.incarnations
            or not self.incarnations[record.incarnation].alive
        ):
            if new_owner in rules.former_owners(record):
                return
            self.commit(
                bundle, rules.override(record, new_owner, owner_is_dead=True, reason="test")
            )
        else:
            return
        self.acquire(bundle)

    def acquire(self, bundle: str) -> None:
        record, epoch = self.bundles[bundle], self.revisions[bundle]
        sealed_end = None
        if record.chain and record.chain[-1].end is None:
            before = self.incarnations[record.chain[-1].incarnation]
            before.die()
            sealed_end = before.position
        new_owner = self.incarnations[record.incarnation]
        owned = rules.own(
            record, new_owner.name, epoch=epoch, start=new_owner.position, sealed_end=sealed_end
        )
        self.commit(bundle, owned)
        new_owner.append(Written("term", bundle, epoch, copy=owned))

    def owner(self, bundle: str) -> Incarnation | None:
        record = self.bundles.get(bundle)
        if record is None or record.state is not BundleState.OWNED:
            return None
        found = self.incarnations[record.incarnation]
        return found if found.alive else None

    def publish(self, bundle: str, position: int) -> None:
        owner, name = self.owner(bundle), BundleName.parse(bundle)
        if owner is not None:
            self.count += 1
            low = name.low + position % (name.high - name.low)
            owner.append(Written("entry", bundle, self.bundles[bundle].epoch, (low, self.count)))

    def flush(self, incarnation: Incarnation) -> None:
        """Everything written is durable, then acknowledged."""
        if incarnation.alive:
            fresh = incarnation.files[incarnation.last][incarnation.durable :]
            incarnation.durable = len(incarnation.files[incarnation.last])
            self.acknowledged |= {record.entry for record in fresh if record.entry is not None}

    def checkpoint(self, bundle: str, committed: bool) -> None:
        """Roll, write the checkpoint, keep a copy of the record to be, and commit it, or lose
        the answer and die."""
        owner, record = self.owner(bundle), self.bundles.get(bundle)
        if owner is None or record is None:
            return
        self.flush(owner)
        position = self.roll(owner)
        self.written += 1
        name = names.checkpoint(BundleName.parse(bundle), record.epoch, self.written)
        self.checkpoints[name] = frozenset(self.until(bundle, record, position))
        self.cover(bundle, (record.epoch, position.file))
        advanced = rules.advance_checkpoint(record, CheckpointPointer(name, owner.name, position))
        owner.append(Written("term", bundle, record.epoch, copy=advanced))
        self.flush(owner)
        if committed:
            self.commit(bundle, advanced)

    def roll(self, owner: Incarnation) -> LogPosition:
        """The start of a new file of its log, with everything before it flushed."""
        self.flush(owner)
        owner.files[owner.last + 1], owner.durable = [], 0
        return owner.position

    def until(
        self, bundle: str, record: BundleRecord, position: LogPosition
    ) -> set[tuple[int, int]]:
        """What the bundle holds before `position` of its owner's log."""
        closed = replace(
            record, chain=(*record.chain[:-1], replace(record.chain[-1], end=position))
        )
        return self.recovered(bundle, closed)

    def cover(self, bundle: str, covered: tuple[int, int], generation: int = 0) -> int:
        """The bundle's next manifest; its generation."""
        listed = self.manifests.setdefault(bundle, [])
        generation = generation or max((fact.generation for fact in listed), default=0) + 1
        name = names.manifest(BundleName.parse(bundle), generation, len(listed))
        listed.append(ManifestFact(name, generation, covered, frozenset(), ()))
        return generation

    def merge(self, bundle: str, committed: bool) -> None:
        """With its right neighbour, if one broker has both; they are published to between the
        checkpoint of both and RELEASE. The copy is durable before the transaction, or the owner
        dies before it."""
        owner, left = self.owner(bundle), BundleName.parse(bundle)
        right = next(
            (
                name
                for name in map(BundleName.parse, self.bundles)
                if name.low == left.high and self.owner(str(name)) is owner
            ),
            None,
        )
        if owner is None or right is None:
            return
        pair, both = Neighbours(left, right), (bundle, str(right))
        self.revision += 1
        epoch = self.revision
        merging = rules.merge(*(self.bundles[name] for name in both), pair, "test")
        position = self.roll(owner)
        held, generations, covered = set[tuple[int, int]](), [], []
        for name, record in zip(both, merging, strict=True):
            held |= self.until(name, record, position)
            covered.append((record.epoch, position.file))
            generations.append(self.cover(name, covered[-1]))
        older = min(zip(merging, both, strict=True), key=lambda known: known[0].epoch)
        self.written += 1
        name = names.checkpoint(BundleName.parse(older[1]), older[0].epoch, self.written)
        self.checkpoints[name] = frozenset(held)
        self.cover(str(pair.merged), min(covered), max(generations) + 1)
        for parent in both:
            self.publish(parent, epoch)
            owner.append(Written("release", parent, self.bundles[parent].epoch))
        self.flush(owner)
        deleted, whole = rules.merged(
            *merging,
            pair,
            epoch=epoch,
            end=owner.position,
            checkpoint=CheckpointPointer(name, owner.name, position),
        )
        owner.append(Written("term", str(pair.merged), epoch, copy=whole))
        self.flush(owner)
        if not committed:
            owner.die()
            return
        for parent, record in zip(both, deleted, strict=True):
            self.commit(parent, record)
        self.commit(str(pair.merged), whole)

    def release(self, bundle: str, number: int, committed: bool) -> None:
        """RELEASE, and the successor begins; or the owner dies before its commit."""
        owner, record, destination = self.owner(bundle), self.bundles.get(bundle), self.live(number)
        if owner is None or record is None or destination == owner.name:
            return
        releasing = rules.release(record, destination, "test")
        self.commit(bundle, releasing)
        owner.append(Written("release", bundle, record.epoch))
        self.flush(owner)
        if not committed:
            owner.die()
            return
        self.commit(bundle, rules.released(releasing, destination, end=owner.position))
        if destination:
            self.acquire(bundle)

    def split(self, bundle: str, committed: bool) -> None:
        """Into halves, at the same owner; the children's copies are durable before the
        transaction, or its owner dies before it."""
        owner, record, name = self.owner(bundle), self.bundles.get(bundle), BundleName.parse(bundle)
        if owner is None or record is None or name.high - name.low < 16:
            return
        self.revision += 1
        epoch = self.revision
        owner.append(Written("release", bundle, record.epoch))
        self.flush(owner)
        middle = (name.low + name.high) // 2
        closed = replace(record.chain[-1], end=owner.position)
        chain = (*record.chain[:-1], closed, LogRange(owner.name, owner.position, None))
        child = replace(record, epoch=epoch, chain=chain, epochs=(*record.epochs, epoch))
        children = [
            BundleName(name.namespace, name.low, middle),
            BundleName(name.namespace, middle, name.high),
        ]
        for made in children:
            owner.append(Written("term", str(made), epoch, copy=child))
        self.flush(owner)
        if not committed:
            owner.die()
            return
        self.commit(bundle, BundleRecord(BundleState.DELETED, record.epoch))
        for made in children:
            self.commit(str(made), child)
            for fact in self.manifests.get(bundle, ())[-1:]:
                assert fact.covered is not None
                self.cover(str(made), fact.covered, fact.generation + 1)

    def collect(self) -> None:
        """Whatever no record of the store needs goes at once."""
        facts = [BundleFacts(record, Manifest("b", 0)) for record in self.bundles.values()]
        for incarnation in self.incarnations.values():
            for number in sorted(incarnation.files):
                over = number < incarnation.last or not incarnation.alive
                if over and not any(found.replays((incarnation.name, number)) for found in facts):
                    del incarnation.files[number]
        pointed = {
            record.checkpoint.object
            for record in self.bundles.values()
            if record.checkpoint is not None
        }
        for bundle, record in self.bundles.items():
            listed = [
                name
                for name in self.checkpoints
                if name.startswith(f"{names.checkpoints_of(BundleName.parse(bundle))}/")
            ]
            if record.state is not BundleState.DELETED:
                for name in set(superseded_checkpoints(listed, record)) - pointed:
                    del self.checkpoints[name]

    def copy(self) -> None:
        """A backup of the store."""
        items = {
            keys.bundle(BundleName.parse(name)): record.encode()
            for name, record in self.bundles.items()
        }
        living = [
            BundleName.parse(name)
            for name, record in self.bundles.items()
            if record.state is not BundleState.DELETED
        ]
        edges = {
            0,
            FULL_RANGE_END,
            *(edge for bundle in living for edge in (bundle.low, bundle.high)),
        }
        items["namespaces/t/n"] = NamespaceRecord(tuple(sorted(edges)), {"p": 1}).encode()
        items[keys.CLUSTER] = ClusterRecord(STORAGE_ID, 0, 1).encode()
        self.backup = Backup(STORAGE_ID, 0, self.revision, 0, items)

    # --- looking ----------------------------------------------------------------------------------

    def recovered(self, bundle: str, record: BundleRecord) -> set[tuple[int, int]]:
        """What a new owner finds when it recovers the bundle from this record. Raises KeyError for
        what is missing."""
        name = BundleName.parse(bundle)
        found = (
            set(self.checkpoints[record.checkpoint.object])
            if record.checkpoint is not None
            else set()
        )
        for epoch, span in zip(record.epochs, record.chain, strict=True):
            found |= self._replayed(name, epoch, span)
        return {entry for entry in found if name.contains_hash(entry[0])}

    def _replayed(self, name: BundleName, epoch: int, span: LogRange) -> set[tuple[int, int]]:
        found: set[tuple[int, int]] = set()
        assert span.end is not None
        end = (span.end.file, span.end.offset)
        if end <= (span.start.file, span.start.offset):
            return found
        files = self.incarnations[span.incarnation].files
        for number in range(span.start.file, span.end.file + 1):
            if number == span.end.file and span.end.offset <= FILE_HEADER_BYTES:
                continue
            for at, record in enumerate(files[number]):
                place = (number, FILE_HEADER_BYTES + RECORD_BYTES * at)
                if not (span.start.file, span.start.offset) <= place < end or record.epoch != epoch:
                    continue
                released = BundleName.parse(record.bundle)
                if (
                    record.kind == "release"
                    and released.low <= name.low
                    and name.high <= released.high
                ):
                    return found
                if record.entry is not None:
                    found.add(record.entry)
        return found

    def facts(self) -> StorageFacts:
        """What storage says once everybody is fenced."""
        for incarnation in self.incarnations.values():
            incarnation.die()
        sealed = {
            incarnation.name: [
                SealedFile(number, FILE_HEADER_BYTES + RECORD_BYTES * len(records))
                for number, records in sorted(incarnation.files.items())
            ]
            for incarnation in self.incarnations.values()
        }
        logs = LogFacts(sealed)
        for incarnation in self.incarnations.values():
            for number, records in sorted(incarnation.files.items()):
                for at, record in enumerate(records):
                    offset = FILE_HEADER_BYTES + RECORD_BYTES * at
                    if record.kind == "release":
                        logs.releases[record.bundle, record.epoch] = LogPosition(
                            number, offset + RECORD_BYTES
                        )
                    elif record.copy is not None:
                        logs.terms.append(
                            TermCopy(
                                record.bundle,
                                record.copy,
                                incarnation.name,
                                (record.epoch, number, offset),
                            )
                        )
        logs.terms.sort(key=lambda copy: copy.place)
        return StorageFacts(
            STORAGE_ID, logs, {name: {} for name in self.checkpoints}, self.manifests
        )
