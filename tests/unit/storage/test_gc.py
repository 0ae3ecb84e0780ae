"""Which log files the collector gives up, against a model that knows what will still be needed."""

from __future__ import annotations

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
from magnetar.ownership import rules
from magnetar.storage.gc import BundleFacts, LogFile, dead_log_files
from magnetar.storage.log.blocks import FILE_HEADER_BYTES
from magnetar.storage.manifest import LevelZero, Manifest
from magnetar.storage.segments.level_one import LevelOneRewrite
from tests.support.properties import fails
from tests.unit.storage.gc_bundles import BUNDLES

HISTORIES = 250
BROKERS = ("a.1", "b.1", "c.1")


@dataclass
class Entry:
    """Something published: where it was written, whether it still exists, whether a segment has
    it."""

    bundle: str
    file: LogFile
    epoch: int
    alive: bool = True
    in_segment: bool = False


@dataclass
class ModelCluster:
    """Brokers that write one log each, and bundles that move between them; every step uses the
    broker's own rules."""

    logs: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BROKERS, 0))
    offsets: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(BROKERS, FILE_HEADER_BYTES)
    )
    records: dict[str, BundleRecord] = field(default_factory=dict)
    manifests: dict[str, Manifest] = field(
        default_factory=lambda: {name: Manifest(name, 0) for name in BUNDLES}
    )
    entries: list[Entry] = field(default_factory=list)
    cursors: set[tuple[str, LogFile]] = field(default_factory=set)
    revision: int = 1

    def position(self, broker: str) -> LogPosition:
        return LogPosition(self.logs[broker], self.offsets[broker])

    def write(self, bundle: str, entry: bool) -> None:
        """An entry, or something that only recovery reads (a cursor)."""
        record = self.records.get(bundle)
        if record is None or record.state is not BundleState.OWNED:
            return
        file = record.incarnation, self.logs[record.incarnation]
        self.offsets[record.incarnation] += 100
        if entry:
            self.entries.append(Entry(bundle, file, record.epoch))
        else:
            self.cursors.add((bundle, file))

    def roll(self, broker: str) -> None:
        self.logs[broker] += 1
        self.offsets[broker] = FILE_HEADER_BYTES

    def move(self, bundle: str, broker: str) -> None:
        """A planned move, or the first assignment."""
        self.revision += 1
        record = self.records.get(bundle)
        if record is None:
            assigned = rules.assign(None, broker, "test")
        elif record.incarnation == broker:
            return
        else:
            self.offsets[record.incarnation] += 10  # RELEASE
            released = rules.release(record, broker, "test")
            assigned = rules.released(released, broker, end=self.position(record.incarnation))
        self.records[bundle] = rules.own(
            assigned, broker, epoch=self.revision, start=self.position(broker)
        )

    def checkpoint(self, bundle: str, point_to_it: bool) -> None:
        """Cover everything before the current file; the checkpoint's pointer may be lost."""
        record = self.records.get(bundle)
        if record is None:
            return
        position = LogPosition(self.logs[record.incarnation], FILE_HEADER_BYTES)
        if (position.file, position.offset) < (
            record.chain[-1].start.file,
            record.chain[-1].start.offset,
        ):
            return
        if any(
            span.end is not None and span.end.file == self.logs[span.incarnation]
            for span in record.chain
        ):
            return  # a file that another broker still writes is not sealed
        files = []
        for term, span in zip(record.epochs, record.chain, strict=True):
            last = span.end.file if span.end is not None else position.file - 1
            for number in range(span.start.file, last + 1):
                place = span.incarnation, number
                written = any(
                    (e.file, e.epoch, e.bundle) == (place, term, bundle) for e in self.entries
                )
                files += [LevelZero(*place, 1000, (term,))] if written else []
        merged: dict[LogFile, LevelZero] = {}
        for file in files:
            known = merged.get((file.incarnation, file.file))
            epochs = tuple(sorted({*file.epochs, *(known.epochs if known else ())}))
            merged[file.incarnation, file.file] = LevelZero(
                file.incarnation, file.file, 1000, epochs
            )
        manifest = self.manifests[bundle]
        self.manifests[bundle] = manifest.with_files(
            list(merged.values()), (record.epochs[-1], position.file)
        )
        if point_to_it:
            pointer = CheckpointPointer("c", record.incarnation, position)
            self.records[bundle] = rules.advance_checkpoint(record, pointer)

    def checkpoint_all(self) -> None:
        """Every log rolls, every bundle writes a checkpoint and points to it: what remains is on
        lists."""
        for name in BROKERS:
            self.roll(name)
        for name in BUNDLES:
            self.checkpoint(name, True)

    def rewrite(self, bundle: str, number: int) -> None:
        """One listed file goes into segments."""
        listed = self.manifests[bundle].level0
        if not listed:
            return
        file = listed[number % len(listed)]
        changed = LevelOneRewrite("", (file,)).apply(self.manifests[bundle])
        assert changed is not None
        self.manifests[bundle] = changed
        for entry in self.entries:
            if (
                entry.bundle == bundle
                and entry.file == (file.incarnation, file.file)
                and entry.epoch in file.epochs
            ):
                entry.in_segment = True

    # --- what the collector sees, and what is true ------------------------------------------------

    def sealed(self) -> dict[LogFile, LogFileRecord]:
        """Sealed files with their keys, as their owners write them."""
        found = {}
        for broker, current in self.logs.items():
            for number in range(current):
                bundles: dict[str, set[int]] = {}
                for entry in self.entries:
                    if entry.file == (broker, number):
                        bundles.setdefault(entry.bundle, set()).add(entry.epoch)
                found[broker, number] = LogFileRecord(
                    1000, {name: tuple(sorted(epochs)) for name, epochs in bundles.items()}
                )
        return found

    def facts(self) -> dict[str, BundleFacts]:
        return {name: BundleFacts(self.records.get(name), self.manifests[name]) for name in BUNDLES}

    def needed(self, file: LogFile) -> bool:
        """The truth: a new owner that recovers a bundle now opens it, or a reader finds an entry
        nowhere else."""
        for record in self.records.values():
            for span in record.chain:
                last = span.end.file if span.end is not None else self.logs[span.incarnation]
                if span.incarnation == file[0] and span.start.file <= file[1] <= last:
                    return True
        return any(
            entry.file == file and entry.alive and not entry.in_segment for entry in self.entries
        )


bundle = st.sampled_from(BUNDLES)
broker = st.sampled_from(BROKERS)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), bundle, st.booleans()),
        st.tuples(st.just("roll"), broker),
        st.tuples(st.just("move"), bundle, broker),
        st.tuples(st.just("checkpoint"), bundle, st.booleans()),
        st.tuples(st.just("checkpoint_all")),
        st.tuples(st.just("rewrite"), bundle, st.integers(0, 5)),
    ),
    min_size=5,
    max_size=60,
)


def played(steps: list[tuple[object, ...]]) -> ModelCluster:
    cluster = ModelCluster()
    for name in BUNDLES:
        cluster.move(name, BROKERS[0])
    for kind, *arguments in steps:
        getattr(cluster, str(kind))(*arguments)
    return cluster


def dead(cluster: ModelCluster) -> list[LogFile]:
    return dead_log_files(cluster.sealed(), cluster.facts())


@pytest.mark.slow
@settings(max_examples=HISTORIES, deadline=None)
@given(STEPS, STEPS)
def test_a_file_that_is_given_up_is_never_needed_again(
    steps: list[tuple[object, ...]], later: list[tuple[object, ...]]
) -> None:
    """Neither now nor after anything else that may happen, though the collector acts on what it
    saw before that."""
    cluster = played(steps)
    given_up = dead(cluster)
    assert not any(cluster.needed(file) for file in given_up)
    for kind, *arguments in later:
        getattr(cluster, str(kind))(*arguments)
        assert not any(cluster.needed(file) for file in given_up), (kind, arguments)


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_everything_goes_once_it_is_covered_and_rewritten(steps: list[tuple[object, ...]]) -> None:
    """No file is kept permanently: after a roll, a checkpoint and a rewriting of each bundle every
    sealed file is given up."""
    cluster = played(steps)
    cluster.checkpoint_all()
    for name in BUNDLES:
        while cluster.manifests[name].level0:
            cluster.rewrite(name, 0)
    assert dead(cluster) == sorted(cluster.sealed())


@settings(max_examples=100, deadline=None)
@given(STEPS, st.sets(st.tuples(broker, st.integers(0, 3))), st.sets(bundle))
def test_pins_hold(steps: list[tuple[object, ...]], files: set[LogFile], bundles: set[str]) -> None:
    """A pinned file stays, and every file that holds something of a pinned bundle."""
    cluster = played(steps)
    sealed = cluster.sealed()
    given_up = dead_log_files(sealed, cluster.facts(), pinned_files=files, pinned_bundles=bundles)
    assert not files & set(given_up)
    assert all(bundles.isdisjoint(sealed[file].bundles) for file in given_up)
    assert set(given_up) <= set(dead(cluster))


def breaks(patch: pytest.MonkeyPatch, planted: object, attribute: str) -> bool:
    """Whether the first property notices a broken decision within many runs."""
    patch.setattr(BundleFacts, attribute, planted)
    return fails(
        test_a_file_that_is_given_up_is_never_needed_again, STEPS, STEPS, examples=HISTORIES
    )


@pytest.mark.slow
@pytest.mark.parametrize("attribute", ["lists", "replays"])
def test_the_model_notices_a_collector_that_ignores_a_fact(
    monkeypatch: pytest.MonkeyPatch, attribute: str
) -> None:
    """Planted: the manifest, or the chain, is not asked."""
    assert breaks(monkeypatch, lambda _facts, _file: False, attribute)


@pytest.mark.slow
def test_the_model_notices_a_collector_that_does_not_wait_for_coverage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: what no manifest has taken in yet counts as passed. The chain alone hides that
    for most files: only with it broken too does a file go that is needed, so both are planted."""
    monkeypatch.setattr(BundleFacts, "replays", lambda _facts, _file: False)
    assert breaks(monkeypatch, lambda _facts, _number, _epochs: True, "covered")
