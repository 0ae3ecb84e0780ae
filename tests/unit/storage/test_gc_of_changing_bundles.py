"""Log files of bundles that are split, merged and moved: none is given up that anyone needs, now or
later, and all go in the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    CheckpointPointer,
    LogFileRecord,
    LogPosition,
)
from magnetar.names import BundleName, NamespaceName, bundle_of, bundles_of, initial_boundaries
from magnetar.ownership import rules as rules
from magnetar.ownership.merges import right_neighbour, without_edge
from magnetar.ownership.splits import with_boundaries
from magnetar.storage import gc as collection
from magnetar.storage.gc import BundleFacts, LogFile, dead_log_files
from magnetar.storage.log.blocks import FILE_HEADER_BYTES
from magnetar.storage.manifest import LevelZero, Manifest
from magnetar.storage.segments.level_one import LevelOneRewrite
from tests.support.properties import fails

HISTORIES, SHORT_HISTORIES = 150, 80
NAMESPACE = NamespaceName("t", "n")
BROKERS = ("a.1", "b.1")
CELLS = 4
"""The smallest bundles; entries have a cell as their hash."""
EDGES = initial_boundaries(CELLS)


@dataclass
class Entry:
    """Something published: its cell, where it was written, whether a segment has it."""

    cell: int
    file: LogFile
    epoch: int
    in_segment: bool = False


@dataclass
class Ring:
    """One namespace whose bundles change by the broker's own rules. Keys of files name the bundles
    as they were when the file was sealed."""

    boundaries: tuple[int, ...] = (EDGES[0], EDGES[2], EDGES[4])
    logs: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BROKERS, 0))
    offset: int = FILE_HEADER_BYTES
    records: dict[str, BundleRecord] = field(default_factory=dict)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    sealed: dict[LogFile, LogFileRecord] = field(default_factory=dict)
    revision: int = 1

    def __post_init__(self) -> None:
        for name in bundles_of(NAMESPACE, self.boundaries):
            self.move(EDGES.index(name.low), BROKERS[0])

    def bundle(self, cell: int) -> BundleName:
        return bundle_of(NAMESPACE, self.boundaries, EDGES[cell])

    def manifest(self, bundle: BundleName) -> Manifest:
        return self.manifests.get(str(bundle), Manifest(str(bundle), 0))

    def position(self, broker: str) -> LogPosition:
        self.offset += 10
        return LogPosition(self.logs[broker], self.offset)

    # --- what happens -----------------------------------------------------------------------------

    def write(self, cell: int) -> None:
        record = self.records[str(self.bundle(cell))]
        file = record.incarnation, self.logs[record.incarnation]
        self.entries.append(Entry(cell, file, record.epoch))

    def roll(self, broker: str) -> None:
        file = broker, self.logs[broker]
        bundles: dict[str, set[int]] = {}
        for entry in self.entries:
            if entry.file == file:
                bundles.setdefault(str(self.bundle(entry.cell)), set()).add(entry.epoch)
        found = {name: tuple(sorted(epochs)) for name, epochs in bundles.items()}
        self.sealed[file] = LogFileRecord(1000, found)
        self.logs[broker] += 1

    def move(self, cell: int, broker: str) -> None:
        name = str(self.bundle(cell))
        record = self.records.get(name)
        self.revision += 1
        if record is None or record.state is BundleState.DELETED:
            assigned = rules.assign(None, broker, "test")
        elif record.incarnation == broker:
            return
        else:
            releasing = rules.release(record, broker, "test")
            assigned = rules.released(releasing, broker, end=self.position(record.incarnation))
            # files of a broker that released are sealed before long
            self.roll(record.incarnation)
        self.records[name] = rules.own(
            assigned, broker, epoch=self.revision, start=self.position(broker)
        )

    def checkpoint(self, cell: int) -> None:
        bundle = self.bundle(cell)
        record = self.records[str(bundle)]
        self.roll(record.incarnation)
        position = self._covered(bundle, record)
        pointer = CheckpointPointer("c", record.incarnation, position)
        self.records[str(bundle)] = rules.advance_checkpoint(record, pointer)

    def _covered(self, bundle: BundleName, record: BundleRecord) -> LogPosition:
        """Take the files of the chain before the current one into the manifest; its start."""
        position = LogPosition(self.logs[record.incarnation], FILE_HEADER_BYTES)
        files: dict[LogFile, set[int]] = {}
        for term, span in zip(record.epochs, record.chain, strict=True):
            last = span.end.file if span.end is not None else position.file - 1
            for number in range(span.start.file, last + 1):
                if span.incarnation == record.incarnation and number >= position.file:
                    continue
                if self._held(bundle, (span.incarnation, number)):
                    files.setdefault((span.incarnation, number), set()).add(term)
        listed = [LevelZero(*file, 1000, tuple(sorted(terms))) for file, terms in files.items()]
        manifest = self.manifest(bundle).with_files(listed, (record.epochs[-1], position.file))
        self.manifests[str(bundle)] = manifest
        return position

    def _held(self, bundle: BundleName, file: LogFile) -> bool:
        return any(
            entry.file == file and bundle.contains_hash(EDGES[entry.cell]) for entry in self.entries
        )

    def rewrite(self, cell: int, number: int) -> None:
        """One listed file goes into segments."""
        bundle = self.bundle(cell)
        manifest = self.manifest(bundle)
        if not manifest.level0:
            return
        file = manifest.level0[number % len(manifest.level0)]
        changed = LevelOneRewrite("", (file,)).apply(manifest)
        assert changed is not None
        self.manifests[str(bundle)] = changed
        for entry in self.entries:
            if entry.file == (file.incarnation, file.file) and entry.epoch in file.epochs:
                entry.in_segment |= bundle.contains_hash(EDGES[entry.cell])

    def split(self, cell: int) -> None:
        bundle = self.bundle(cell)
        middle = tuple(edge for edge in EDGES if bundle.low < edge < bundle.high)[:1]
        if not middle:
            return
        self.revision += 1
        record = rules.split(self.records[str(bundle)], bundle, middle, "test")
        end = self.position(record.incarnation)
        deleted, children = rules.divided(record, bundle, epoch=self.revision, end=end)
        after = with_boundaries(self.boundaries, bundle, middle)
        assert after is not None
        self.boundaries, self.records[str(bundle)] = after, deleted
        manifest = self.manifests.pop(str(bundle), Manifest(str(bundle), 0))
        for child, owned in children.items():
            foreign = [
                file
                for file in manifest.level0
                if not self._held(child, (file.incarnation, file.file))
            ]
            self.records[str(child)] = owned
            self.manifests[str(child)] = manifest.for_child(child, 1, foreign)

    def merge(self, cell: int) -> None:
        bundle = self.bundle(cell)
        if bundle.high == EDGES[-1]:
            return
        pair = right_neighbour(self.boundaries, bundle)
        both = pair.left, pair.right
        left, right = (self.records[str(name)] for name in both)
        if left.incarnation != right.incarnation:
            return
        self.revision += 1
        merging = rules.merge(left, right, pair, "test")
        self.roll(left.incarnation)
        position = LogPosition(0, 0)
        for name, record in zip(both, merging, strict=True):
            position = self._covered(name, record)
        for name in both:  # between the checkpoint of both and RELEASE
            self.write(EDGES.index(name.low))
        deleted, whole = rules.merged(
            *merging,
            pair,
            epoch=self.revision,
            end=self.position(left.incarnation),
            checkpoint=CheckpointPointer("c", left.incarnation, position),
        )
        after = without_edge(self.boundaries, pair)
        assert after is not None
        self.boundaries = after
        manifests = [self.manifests.pop(str(name)) for name in both]
        merged = manifests[0].merged_with(manifests[1], pair.merged, 1)
        for name, record in zip(both, deleted, strict=True):
            self.records[str(name)] = record
        self.records[str(pair.merged)], self.manifests[str(pair.merged)] = whole, merged

    # --- what the collector sees, and what is true ------------------------------------------------

    def facts(self) -> dict[str, BundleFacts]:
        """As the broker gathers them."""
        listed = {name for record in self.sealed.values() for name in record.bundles}
        current, found = bundles_of(NAMESPACE, self.boundaries), dict[str, BundleFacts]()
        for name in {*listed, *self.records}:
            record, bundle = self.records.get(name), BundleName.parse(name)
            over, heirs = False, tuple[str, ...]()
            if record is None or record.state is BundleState.DELETED:
                over = collection.is_over(bundle, record, current, self.records)
                heirs = collection.heirs_of(bundle, self.records)
            found[name] = BundleFacts(record, self.manifest(bundle), over, heirs)
        return found

    def dead(self) -> list[LogFile]:
        return dead_log_files(self.sealed, self.facts())

    def needed(self, file: LogFile) -> bool:
        """A recovery opens it, or an entry is nowhere else."""
        chains = (record.chain for record in self.records.values())
        return any(collection.is_replayed(chain, file) for chain in chains) or any(
            entry.file == file and not entry.in_segment for entry in self.entries
        )

    def listed(self, file: LogFile) -> bool:
        """A reader finds its way to it."""
        return any(
            (entry.incarnation, entry.file) == file
            for name in bundles_of(NAMESPACE, self.boundaries)
            for entry in self.manifest(name).level0
        )


cell = st.integers(0, CELLS - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), cell),
        st.tuples(st.just("roll"), st.sampled_from(BROKERS)),
        st.tuples(st.just("move"), cell, st.sampled_from(BROKERS)),
        st.tuples(st.just("checkpoint"), cell),
        st.tuples(st.just("rewrite"), cell, st.integers(0, 3)),
        st.tuples(st.just("split"), cell),
        st.tuples(st.just("merge"), cell),
        st.tuples(st.just("merge"), cell),
    ),
    min_size=5,
    max_size=50,
)
Steps = Iterable[tuple[object, ...]]


def played(steps: Steps) -> Ring:
    ring = Ring()
    for kind, *arguments in steps:
        getattr(ring, str(kind))(*arguments)
    return ring


@pytest.mark.slow
@settings(max_examples=HISTORIES, deadline=None)
@given(STEPS, STEPS)
def test_a_file_that_is_given_up_is_never_needed_again(steps: Steps, later: Steps) -> None:
    """Nor listed again, whatever becomes of the bundles that wrote it."""
    ring = played(steps)
    given_up = ring.dead()
    assert not any(ring.needed(file) or ring.listed(file) for file in given_up)
    for kind, *arguments in later:
        getattr(ring, str(kind))(*arguments)
        wrong = [file for file in given_up if ring.needed(file) or ring.listed(file)]
        assert not wrong, (kind, arguments, wrong)


@settings(max_examples=SHORT_HISTORIES, deadline=None)
@given(STEPS)
def test_every_entry_is_listed_once_its_bundle_has_a_checkpoint(steps: Steps) -> None:
    """Splits and merges leave none behind; and once all is rewritten, every sealed file goes."""
    ring = played(steps)
    for number in range(CELLS):
        ring.checkpoint(number)
    for entry in ring.entries:
        files = ring.manifest(ring.bundle(entry.cell)).level0
        found = [file for file in files if (file.incarnation, file.file) == entry.file]
        assert entry.in_segment or any(entry.epoch in file.epochs for file in found), entry
    for number in range(CELLS):
        while ring.manifest(ring.bundle(number)).level0:
            ring.rewrite(number, 0)
        ring.checkpoint(number)
    assert ring.dead() == sorted(
        file
        for file in ring.sealed
        if not any(collection.is_replayed(record.chain, file) for record in ring.records.values())
    )


def breaks(patch: pytest.MonkeyPatch, target: object, name: str, planted: object) -> bool:
    """Whether either property notices a broken rule."""
    patch.setattr(target, name, planted)
    return fails(
        test_a_file_that_is_given_up_is_never_needed_again, STEPS, STEPS, examples=HISTORIES
    ) or fails(
        test_every_entry_is_listed_once_its_bundle_has_a_checkpoint, STEPS, examples=SHORT_HISTORIES
    )


@pytest.mark.slow
def test_the_model_notices_heirs_that_are_looked_for_within_the_range_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heirs_of = collection.heirs_of

    def within(bundle: BundleName, records: dict[str, BundleRecord]) -> tuple[str, ...]:
        found = heirs_of(bundle, records)
        return tuple(name for name in found if bundle.includes(BundleName.parse(name)))

    assert breaks(monkeypatch, collection, "heirs_of", within)


@pytest.mark.slow
def test_the_model_notices_a_merged_manifest_that_covers_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    merged_with = Manifest.merged_with

    def beyond(left: Manifest, right: Manifest, bundle: BundleName, generation: int) -> Manifest:
        made = merged_with(left, right, bundle, generation)
        assert left.covered is not None
        assert right.covered is not None
        object.__setattr__(made, "covered", max(left.covered, right.covered))
        return made

    assert breaks(monkeypatch, Manifest, "merged_with", beyond)
