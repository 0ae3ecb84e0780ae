"""What the collector gives up, against a model that knows what everybody will still ask for."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    CheckpointPointer,
    CoordinatorRecord,
    CoordinatorState,
    IntentRecord,
    LogFileRecord,
    LogPosition,
    LogRange,
)
from magnetar.names import BundleName
from magnetar.ownership import rules as rules
from magnetar.storage import gc as collection
from magnetar.storage import names
from magnetar.storage.gc import BundleFacts, Grace, LogFile, dead_log_files, destinations
from magnetar.storage.log.blocks import FILE_HEADER_BYTES
from magnetar.storage.manifest import (
    Compacted,
    LevelZero,
    Manifest,
    SegmentReference,
    TopicSegments,
)
from magnetar.storage.segments.level_one import LevelOneRewrite
from tests.support.properties import fails

HISTORIES = 250
BROKERS = ("a.1", "b.1", "c.1")
BUNDLES = ("t/n/0x00000000_0x80000000", "t/n/0x80000000_0xffffffff")
TOPIC = "persistent://t/n/x"


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
            return  # a file that somebody else still writes is not sealed
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
        """The truth: somebody who recovers a bundle now opens it, or a reader finds an entry
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


# --- splits, deletions ----------------------------------------------------------------------------

FILE = ("a.1", 0)
SEALED = {FILE: LogFileRecord(1000, {BUNDLES[0]: (5,)})}
CHILDREN = ("t/n/0x00000000_0x40000000", "t/n/0x40000000_0x80000000")


def owned(epoch: int = 9) -> BundleRecord:
    return BundleRecord(
        BundleState.OWNED,
        epoch,
        "b.1",
        chain=(LogRange("b.1", LogPosition(0, 4096), None),),
        epochs=(epoch,),
    )


def passed(name: str) -> BundleFacts:
    return BundleFacts(owned(), Manifest(name, 3, covered=(9, 0)))


def test_a_split_bundle_has_passed_when_all_its_children_have() -> None:
    """And not while one of them lists the file, or is not known."""
    parent = BundleFacts(
        BundleRecord(BundleState.DELETED, 5), Manifest(BUNDLES[0], 2), heirs=CHILDREN
    )
    first, second = (passed(name) for name in CHILDREN)
    facts = {BUNDLES[0]: parent, CHILDREN[0]: first, CHILDREN[1]: second}
    assert dead_log_files(SEALED, facts) == [FILE]
    listing = Manifest(CHILDREN[1], 3, level0=(LevelZero("a.1", 0, 1000, (5,)),), covered=(9, 0))
    assert dead_log_files(SEALED, {**facts, CHILDREN[1]: BundleFacts(owned(), listing)}) == []
    assert dead_log_files(SEALED, {BUNDLES[0]: parent, CHILDREN[0]: first}) == []


def test_a_deleted_bundle_has_passed_and_an_unknown_one_has_not() -> None:
    gone = BundleFacts(None, Manifest(BUNDLES[0], 0), deleted=True)
    assert dead_log_files(SEALED, {BUNDLES[0]: gone}) == [FILE]
    assert dead_log_files(SEALED, {}) == []
    assert dead_log_files(SEALED, {BUNDLES[0]: BundleFacts(None, Manifest(BUNDLES[0], 0))}) == []


def test_a_bundle_whose_manifest_cannot_be_read_keeps_what_it_may_list_and_what_it_replays_and_nothing_else() -> (
    None
):
    """It may list whatever it wrote in; and its chain counts as that of any other bundle does,
    also where it wrote no entries."""
    replayed, other = ("b.1", 0), ("c.1", 0)
    files = {
        **SEALED,
        replayed: LogFileRecord(1000, {BUNDLES[1]: (9,)}),
        other: LogFileRecord(1000, {BUNDLES[1]: (9,)}),
    }
    second = BundleFacts(BundleRecord(BundleState.FREE, 9), Manifest(BUNDLES[1], 3, covered=(9, 1)))
    assert dead_log_files(files, {BUNDLES[0]: BundleFacts(owned(), None), BUNDLES[1]: second}) == [
        other
    ]
    parent = BundleFacts(
        BundleRecord(BundleState.DELETED, 5), Manifest(BUNDLES[0], 0), heirs=CHILDREN
    )
    split = {
        BUNDLES[0]: parent,
        CHILDREN[0]: passed(CHILDREN[0]),
        CHILDREN[1]: BundleFacts(owned(), None),
    }
    assert dead_log_files(SEALED, split) == []


DEAD = BundleRecord(BundleState.DELETED, 5)


@pytest.mark.parametrize(
    ("record", "current", "others", "over"),
    [
        pytest.param(DEAD, None, {}, True, id="retired with its namespace"),
        pytest.param(None, None, {}, True, id="and forgotten since"),
        pytest.param(
            DEAD,
            BUNDLES,
            {},
            True,
            id="its namespace is there again, and nobody has asked for the bundle",
        ),
        pytest.param(None, BUNDLES, {}, False, id="nobody has ever asked for it"),
        pytest.param(owned(), BUNDLES, {}, False, id="it lives"),
        pytest.param(
            owned(), None, {}, False, id="its namespace is gone, and it is not retired yet"
        ),
        pytest.param(
            DEAD,
            (*CHILDREN, BUNDLES[1]),
            {},
            True,
            id="its namespace is there again, divided as it was: the children of a split have records",
        ),
        pytest.param(
            DEAD,
            ("t/n/0x00000000_0xffffffff",),
            {},
            True,
            id="its namespace is there again with other boundaries",
        ),
        pytest.param(
            None, ("t/n/0x00000000_0xffffffff",), {}, True, id="the same, and forgotten since"
        ),
        pytest.param(
            DEAD,
            ("t/n/0x00000000_0xffffffff",),
            {"t/n/0x00000000_0xffffffff": owned()},
            False,
            id="it was merged",
        ),
        pytest.param(
            DEAD,
            ("t/n/0x00000000_0x40000000", "t/n/0x40000000_0xffffffff"),
            {"t/n/0x40000000_0xffffffff": owned(), CHILDREN[0]: DEAD},
            False,
            id="it was split, and one of its children was merged with a neighbour",
        ),
        pytest.param(
            DEAD,
            None,
            {CHILDREN[0]: owned()},
            False,
            id="it was split, and a child is not retired yet",
        ),
        pytest.param(
            DEAD,
            BUNDLES,
            {CHILDREN[0]: owned()},
            False,
            id="the record of its namespace was lost, and written with old boundaries",
        ),
        pytest.param(
            DEAD,
            None,
            {CHILDREN[0]: DEAD, CHILDREN[1]: DEAD},
            True,
            id="it was split, and all are retired",
        ),
        pytest.param(
            DEAD,
            None,
            {BUNDLES[1]: owned(), CHILDREN[0].replace("t/n", "t/m"): owned()},
            True,
            id="others live",
        ),
    ],
)
def test_a_bundle_is_over_when_nobody_can_ask_for_what_it_wrote(
    record: BundleRecord | None,
    current: tuple[str, ...] | None,
    others: dict[str, BundleRecord],
    over: bool,
) -> None:
    """And a file that it wrote goes, unless a late commit has listed it."""
    bundle = BundleName.parse(BUNDLES[0])
    there = tuple(map(BundleName.parse, current)) if current is not None else None
    records = {**others, **({BUNDLES[0]: record} if record is not None else {})}
    assert collection.is_over(bundle, record, there, records) is over
    if over:
        listing = Manifest(BUNDLES[0], 1, level0=(LevelZero("a.1", 0, 1000, (5,)),))
        assert dead_log_files(
            SEALED, {BUNDLES[0]: BundleFacts(record, Manifest(BUNDLES[0], 0), deleted=True)}
        ) == [FILE]
        assert (
            dead_log_files(SEALED, {BUNDLES[0]: BundleFacts(record, listing, deleted=True)}) == []
        )


def test_a_child_without_a_record_has_not_passed() -> None:
    """The facts were read at different moments: whatever its manifest says, nobody knows its
    chain."""
    parent = BundleFacts(
        BundleRecord(BundleState.DELETED, 5), Manifest(BUNDLES[0], 0), heirs=CHILDREN
    )
    second = BundleFacts(None, Manifest(CHILDREN[1], 3, covered=(9, 0)))
    assert (
        dead_log_files(
            SEALED, {BUNDLES[0]: parent, CHILDREN[0]: passed(CHILDREN[0]), CHILDREN[1]: second}
        )
        == []
    )


def test_a_parent_whose_record_is_gone_has_passed_with_its_children() -> None:
    """A key that names it was written late."""
    parent = BundleFacts(None, Manifest(BUNDLES[0], 0), heirs=CHILDREN)
    facts = {BUNDLES[0]: parent, **{name: passed(name) for name in CHILDREN}}
    assert dead_log_files(SEALED, facts) == [FILE]


def test_heirs_are_the_living_bundles_that_share_its_hashes() -> None:
    """However it was split and merged since, and its parts with others."""
    beyond = "t/n/0x40000000_0xc0000000"
    records = {
        BUNDLES[0]: DEAD,
        CHILDREN[0]: owned(),
        CHILDREN[1]: DEAD,
        beyond: owned(),
        "t/n/0xc0000000_0xffffffff": owned(),
        CHILDREN[0].replace("t/n", "t/m"): owned(),
    }
    assert collection.heirs_of(BundleName.parse(BUNDLES[0]), records) == (CHILDREN[0], beyond)
    assert collection.heirs_of(BundleName.parse(CHILDREN[1]), records) == (beyond,)


# --- objects --------------------------------------------------------------------------------------


def test_checkpoints_before_the_one_pointed_to_go_and_a_later_one_only_after_its_term() -> None:
    bundle_name = BundleName.parse(BUNDLES[0])
    old, pointed, next_one, later = (
        names.checkpoint(bundle_name, *place) for place in ((4, 7), (5, 2), (5, 3), (6, 1))
    )
    record = BundleRecord(
        BundleState.OWNED, 5, checkpoint=CheckpointPointer(pointed, "a.1", LogPosition(0, 0))
    )
    assert collection.superseded_checkpoints([old, pointed, next_one, later], record) == [old]
    ended = BundleRecord(
        BundleState.OWNED, 6, checkpoint=CheckpointPointer(pointed, "a.1", LogPosition(0, 0))
    )
    assert collection.superseded_checkpoints([old, pointed, next_one, later], ended) == [
        old,
        next_one,
    ]
    assert collection.superseded_checkpoints([old], None) == []


def test_checkpoints_of_a_split_bundle_go_when_no_child_begins_with_them() -> None:
    parent, child = BundleName.parse(BUNDLES[0]), BundleName.parse(CHILDREN[0])
    old, pointed = names.checkpoint(parent, 4, 7), names.checkpoint(parent, 5, 2)
    deleted = BundleRecord(BundleState.DELETED, 5)
    assert collection.superseded_checkpoints([old, pointed], deleted, {pointed}) == [old]
    assert collection.superseded_checkpoints([old, pointed], deleted) == [old, pointed]
    inherited = BundleRecord(
        BundleState.OWNED, 8, checkpoint=CheckpointPointer(pointed, "a.1", LogPosition(0, 0))
    )
    on_its_way, of_another_life = names.checkpoint(child, 8, 1), names.checkpoint(child, 3, 1)
    assert pointed > on_its_way, "names of two bundles say nothing about which is newer"
    assert collection.superseded_checkpoints([on_its_way, of_another_life], inherited) == [
        of_another_life
    ]


def test_manifests_up_to_the_current_generation_go_but_for_later_ones() -> None:
    bundle_name = BundleName.parse(BUNDLES[0])
    old, lost, pointed, coming = (
        names.manifest(bundle_name, *place) for place in ((1, 1), (3, 1), (3, 2), (4, 1))
    )
    assert collection.superseded_manifests([old, lost, pointed, coming], pointed, 3) == [old, lost]


def test_manifests_of_a_deleted_bundle_stay_while_one_of_them_may_become_current() -> None:
    """It has a pointer, or an intent, or a split of its namespace may make it a child; and while
    it has no record nobody knows."""
    bundle_name, other = BundleName.parse(BUNDLES[0]), BundleName.parse("t/m/0x00000000_0xffffffff")
    listed = {
        str(name): [names.manifest(name, 2, 1), names.manifest(name, 1, 1)]
        for name in (bundle_name, other)
    }
    records = {BUNDLES[0]: DEAD, str(other): owned()}
    all_of_it = sorted(listed[BUNDLES[0]])
    intent = IntentRecord("compaction", BUNDLES[0], TOPIC, "j", "r", 0)
    splitting = BundleRecord(BundleState.SPLITTING, 9)
    assert collection.manifests_of_the_dead(listed, [], records, ()) == all_of_it
    assert collection.manifests_of_the_dead(listed, [intent], records, ()) == []
    assert collection.manifests_of_the_dead(listed, [], records, (BUNDLES[0],)) == []
    assert (
        collection.manifests_of_the_dead(listed, [], {**records, BUNDLES[1]: splitting}, ()) == []
    )
    assert (
        collection.manifests_of_the_dead(listed, [], {**records, str(other): splitting}, ())
        == all_of_it
    )
    assert collection.manifests_of_the_dead(listed, [], {str(other): owned()}, ()) == []


def test_a_segment_goes_when_no_manifest_names_it_and_no_intent_can() -> None:
    base = f"segments/{BUNDLES[0]}"
    first, compacted, coming, orphan = (
        f"{base}/{stem}.seg"
        for stem in ("rewrite-1-0", "compact-2-0", "compact-3-0", "rewrite-4-0")
    )

    def reference(name: str) -> SegmentReference:
        return SegmentReference(name, 1, 1, 1, (3, 0), (3, 0))

    topic = TopicSegments((reference(first),), Compacted(1, (3, 0), (reference(compacted),)))
    manifest = Manifest(BUNDLES[0], 1, topics={TOPIC: topic})
    found = collection.orphaned_segments(
        [first, compacted, coming, orphan], ["compact-3"], [manifest]
    )
    assert found == [orphan]


def test_grace_counts_from_when_a_thing_was_given_up_and_forgets_what_is_needed_again() -> None:
    grace = Grace(100)
    assert grace.over(["x"], 1000) == []
    assert grace.over(["x", "y"], 1099) == []
    assert grace.over(["x", "y"], 1100) == ["x"]
    assert grace.over(["y"], 1150) == []
    assert grace.over(["x", "y"], 1199) == ["y"]
    assert Grace(0).over(["x"], 5) == ["x"]


def test_what_a_coordinator_replays_is_kept() -> None:
    """Its log names no bundle: without its chain every file of it would be dead. What lies
    before the chain is."""
    files = {("tx-coordinator-0.a", number): LogFileRecord(5000, {}) for number in range(3)}
    chain = (LogRange("tx-coordinator-0.a", LogPosition(1, 4096), None),)
    record = CoordinatorRecord("tx-coordinator-0.b", 2, CoordinatorState.RECOVERING, chain=chain)
    assert dead_log_files(files, {}, coordinators=[record]) == [("tx-coordinator-0.a", 0)]
    assert dead_log_files(files, {}) == sorted(files)


def test_files_of_whoever_a_bundle_is_assigned_to_stay() -> None:
    """Though it is dead, its change to Owned may be on its way, with a start in any file of its
    log: that would have to be recovered."""
    facts = {
        BUNDLES[0]: passed(BUNDLES[0]),
        BUNDLES[1]: BundleFacts(rules.assign(None, "a.1", "test"), Manifest(BUNDLES[1], 0)),
    }
    assert destinations(facts.values()) == {"a.1"}
    assert dead_log_files(SEALED, facts, beginning=destinations(facts.values())) == []
    assert dead_log_files(SEALED, facts, beginning={"c.1"}) == [FILE]
