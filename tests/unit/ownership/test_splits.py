"""Where bundles are divided: Pulsar's vectors, and a namespace whose bundles are split, merged,
moved and overridden at random."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from magnetar.errors import InvalidRequest, NotAllowed
from magnetar.metadata.records import BundleRecord, BundleState, CheckpointPointer, LogPosition
from magnetar.names import (
    FULL_RANGE_END,
    BundleName,
    NamespaceName,
    bundle_of,
    bundles_of,
    initial_boundaries,
)
from magnetar.ownership import rules as rules
from magnetar.ownership import splits
from magnetar.ownership.merges import Neighbours, without_edge
from magnetar.ownership.states import Change, states_that_allow

NAMESPACE = NamespaceName("public", "default")


def bundle(low: int, high: int) -> BundleName:
    return BundleName(NAMESPACE, low, high)


@pytest.mark.parametrize(
    ("low", "high", "middle"),
    [
        (0, 0x80000000, 0x40000000),
        (0, 0x8000, 0x4000),
        (0xC0000000, FULL_RANGE_END, 0xDFFFFFFF),
        (0, FULL_RANGE_END, 0x7FFFFFFF),
        (4, 6, 5),
    ],
)
def test_range_equally_divide(low: int, high: int, middle: int) -> None:
    """Vectors R1 and R2; the last bundle of a namespace ends at 0xffffffff, not at 2^32."""
    assert splits.range_equally_divide(bundle(low, high)) == (middle,)


@pytest.mark.parametrize("low", [0, 17, FULL_RANGE_END - 1])
def test_a_bundle_of_width_one_is_not_divided(low: int) -> None:
    """Vector R2, and the endless splits of #11937."""
    with pytest.raises(NotAllowed, match="too narrow"):
        splits.range_equally_divide(bundle(low, low + 1))


def test_a_split_layout_covers_what_it_covered() -> None:
    """Vector R3: [0, 8000, FFFF] split at 4000."""
    after = splits.with_boundaries((0, 0x8000, 0xFFFF), bundle(0, 0x8000), (0x4000,))
    assert after == (0, 0x4000, 0x8000, 0xFFFF)
    assert splits.with_boundaries((0, 0x8000, 0xFFFF), bundle(0, 0x4000), (0x2000,)) is None, (
        "#25031: it does not exist any more"
    )


def test_specified_positions_divide() -> None:
    """Vectors P1 and P2: what lies at the ends or outside is dropped."""
    whole = bundle(0, 0x40000000)
    assert splits.specified_positions_divide(whole, [0x33000000]) == (0x33000000,)
    assert splits.specified_positions_divide(whole, [0, 0x40000000, 0x50000000]) == ()
    assert splits.specified_positions_divide(whole, [9, 7, 9, 0]) == (7, 9)


def test_what_is_asked_for_by_name() -> None:
    """Each refusal names what would be accepted."""
    whole = bundle(0, 0x40000000)
    assert (
        splits.boundaries_of(whole, "")
        == splits.boundaries_of(whole, "range_equally_divide")
        == (0x20000000,)
    )
    assert splits.boundaries_of(whole, "specified_positions_divide", [3, 5]) == (3, 5)
    with pytest.raises(InvalidRequest, match="range_equally_divide, specified_positions_divide"):
        splits.boundaries_of(whole, "topic_count_equally_divide")
    with pytest.raises(InvalidRequest, match="at least one position"):
        splits.boundaries_of(whole, "specified_positions_divide")
    with pytest.raises(NotAllowed, match="none of"):
        splits.boundaries_of(whole, "specified_positions_divide", [0])
    with pytest.raises(InvalidRequest, match="splitBoundaries"):
        splits.boundaries_of(whole, "", [3])


@pytest.mark.parametrize("count", [1, 2, 4])
def test_initial_layouts(count: int) -> None:
    """Vectors N1."""
    step = (1 << 32) // count
    assert initial_boundaries(count) == (*(index * step for index in range(count)), FULL_RANGE_END)


def test_initial_layouts_with_a_remainder() -> None:
    """Vectors N2: the last bundle takes it."""
    assert initial_boundaries(3) == (0, 0x55555555, 0xAAAAAAAA, FULL_RANGE_END)
    assert initial_boundaries(7)[1:-1] == (
        0x24924924,
        0x49249248,
        0x6DB6DB6C,
        0x92492490,
        0xB6DB6DB4,
        0xDB6DB6D8,
    )


HASHES = (0, 1, 0x7FFFFFFF, 0x80000000, 0xDEADBEEF, 0xFFFFFFFE, FULL_RANGE_END)
BROKERS = ("a-1", "b-1", "c-1")


class Namespace(RuleBasedStateMachine):
    """Bundles of one namespace that are assigned, owned, moved, overridden, shortened, split and
    merged, each call with any of them.

    Each hash of HASHES gets a mark in every term, and a model of what its records must still
    recover: all marks of all terms.
    """

    def __init__(self) -> None:
        super().__init__()
        self.boundaries = initial_boundaries(2)
        self.records: dict[BundleName, BundleRecord] = {}
        self.revision = 1
        self.logs = dict.fromkeys(BROKERS, 10)
        self.owners: dict[tuple[int, BundleName], str] = {}
        self.terms: dict[int, list[int]] = {position: [] for position in HASHES}
        self.covered: dict[str, set[int]] = {}
        self.checkpoints = 0

    def current(self, pick: int) -> BundleName:
        found = bundles_of(NAMESPACE, self.boundaries)
        return found[pick % len(found)]

    def place(self, broker: str) -> LogPosition:
        self.logs[broker] += 7
        return LogPosition(self.logs[broker] // 50, self.logs[broker] % 50)

    def write(self, name: BundleName, record: BundleRecord) -> None:
        self.revision += 1
        self.records[name] = record

    def began(self, name: BundleName, record: BundleRecord) -> None:
        assert (
            self.owners.setdefault((record.epoch, name), record.incarnation) == record.incarnation
        )
        for position in HASHES:
            if name.contains_hash(position):
                assert not self.terms[position] or record.epoch > self.terms[position][-1], (
                    "epochs of a topic strictly increase"
                )
                self.terms[position].append(record.epoch)

    @rule(pick=st.integers(0, 99), broker=st.sampled_from(BROKERS))
    def take(self, pick: int, broker: str) -> None:
        name = self.current(pick)
        record = self.records.get(name)
        if record is None or record.state is BundleState.FREE:
            self.write(name, rules.assign(record, broker, "test"))
        elif record.state is BundleState.ASSIGNING:
            last = record.chain[-1] if record.chain else None
            sealed = self.place(last.incarnation) if last is not None and last.end is None else None
            owner = record.incarnation
            owned = rules.own(
                record, owner, epoch=self.revision, start=self.place(owner), sealed_end=sealed
            )
            self.write(name, owned)
            self.began(name, owned)

    @rule(pick=st.integers(0, 99), broker=st.sampled_from(BROKERS))
    def move(self, pick: int, broker: str) -> None:
        name = self.current(pick)
        record = self.records.get(name)
        if (
            record is not None
            and record.state is BundleState.OWNED
            and broker != record.incarnation
        ):
            self.write(name, rules.release(record, broker, "test"))
        elif record is not None and record.state is BundleState.RELEASING:
            to = record.destination if pick % 2 else ""
            self.write(name, rules.released(record, to, end=self.place(record.incarnation)))

    @rule(pick=st.integers(0, 99), broker=st.sampled_from(BROKERS))
    def override(self, pick: int, broker: str) -> None:
        name = self.current(pick)
        record = self.records.get(name)
        if (
            record is not None
            and record.state in states_that_allow(Change.OVERRIDE)
            and broker not in rules.former_owners(record)
        ):
            self.write(name, rules.override(record, broker, owner_is_dead=True, reason="test"))

    @rule(pick=st.integers(0, 99))
    def checkpoint_if_long(self, pick: int) -> None:
        name = self.current(pick)
        record = self.records.get(name)
        if record is not None and record.state is BundleState.OWNED:
            self.checkpoints += 1
            pointer = CheckpointPointer(
                f"{name}/{self.checkpoints}", record.incarnation, self.place(record.incarnation)
            )
            known = (
                self.covered.get(record.checkpoint.object, set())
                if record.checkpoint is not None
                else set()
            )
            self.covered[pointer.object] = known | set(record.epochs)
            self.write(name, rules.advance_checkpoint(record, pointer))

    @rule(pick=st.integers(0, 99), positions=st.lists(st.integers(0, FULL_RANGE_END), max_size=3))
    def begin_split(self, pick: int, positions: list[int]) -> None:
        name = self.current(pick)
        record = self.records.get(name)
        found = splits.specified_positions_divide(name, positions)
        if record is not None and record.state is BundleState.OWNED and found:
            self.write(name, rules.split(record, name, found, "test"))

    @precondition(
        lambda self: any(record.state is BundleState.SPLITTING for record in self.records.values())
    )
    @rule(pick=st.integers(0, 99))
    def end_split(self, pick: int) -> None:
        name, record = next(
            item for item in self.records.items() if item[1].state is BundleState.SPLITTING
        )
        if pick % 5 == 0:
            self.write(name, rules.called_off(record, "test", end=self.place(record.incarnation)))
            return
        deleted, children = rules.divided(
            record, name, epoch=self.revision, end=self.place(record.incarnation)
        )
        after = splits.with_boundaries(self.boundaries, name, record.boundaries)
        assert after is not None
        self.boundaries = after
        self.write(name, deleted)
        for child, owned in children.items():
            before = self.records.get(child)
            assert before is None or before.state is BundleState.DELETED
            self.records[child] = owned
            self.began(child, owned)

    @rule(pick=st.integers(0, 99))
    def begin_merge(self, pick: int) -> None:
        found = bundles_of(NAMESPACE, self.boundaries)
        at = pick % len(found)
        if at + 1 == len(found):
            return
        pair = Neighbours(found[at], found[at + 1])
        records = [self.records.get(name) for name in (pair.left, pair.right)]
        left, right = records
        if left is None or right is None or {left.state, right.state} != {BundleState.OWNED}:
            return
        if left.incarnation == right.incarnation:
            merging = rules.merge(left, right, pair, "test")
            self.write(pair.left, merging[0])
            self.records[pair.right] = merging[1]

    @precondition(
        lambda self: any(record.state is BundleState.MERGING for record in self.records.values())
    )
    @rule(pick=st.integers(0, 99))
    def end_merge(self, pick: int) -> None:
        low, edge, high = next(
            record.boundaries
            for record in self.records.values()
            if record.state is BundleState.MERGING
        )
        pair = Neighbours(bundle(low, edge), bundle(edge, high))
        left, right = (self.records[name] for name in (pair.left, pair.right))
        if {left.state, right.state} != {BundleState.MERGING}:
            return  # one of them was taken: the owner of both is fenced
        if pick % 5 == 0:
            for name in (pair.left, pair.right):
                self.write(name, rules.merge_kept_apart(self.records[name]))
            return
        owner = left.incarnation
        self.checkpoints += 1
        pointer = CheckpointPointer(f"{pair.merged}/{self.checkpoints}", owner, self.place(owner))
        end = self.place(owner)
        if pick % 5 == 1:
            for name in (pair.left, pair.right):
                self.write(name, rules.called_off(self.records[name], "test", end=end))
            return
        self.covered[pointer.object] = {
            term
            for record in (left, right)
            for term in (
                *record.epochs,
                *(self.covered.get(record.checkpoint.object, ()) if record.checkpoint else ()),
            )
        }
        deleted, whole = rules.merged(
            left, right, pair, epoch=self.revision, end=end, checkpoint=pointer
        )
        after = without_edge(self.boundaries, pair)
        assert after is not None
        self.boundaries = after
        for name, record in zip((pair.left, pair.right), deleted, strict=True):
            self.write(name, record)
        self.records[pair.merged] = whole
        self.began(pair.merged, whole)

    @invariant()
    def every_hash_falls_into_one_live_bundle(self) -> None:
        live = [
            name for name, record in self.records.items() if record.state is not BundleState.DELETED
        ]
        for position in HASHES:
            assert bundle_of(NAMESPACE, self.boundaries, position).contains_hash(position)
            assert sum(name.contains_hash(position) for name in live) <= 1

    @invariant()
    def nothing_that_was_written_is_out_of_reach(self) -> None:
        for position, terms in self.terms.items():
            record = self.records.get(bundle_of(NAMESPACE, self.boundaries, position))
            if record is None:
                assert not terms
                continue
            held = (
                self.covered.get(record.checkpoint.object, set())
                if record.checkpoint is not None
                else set()
            )
            assert held | set(record.epochs) >= set(terms), "checkpoint and chain hold every term"
            assert len(record.chain) == len(record.epochs)
            assert all(span.end is not None for span in record.chain[:-1])
            if record.state in states_that_allow(Change.ADVANCE_CHECKPOINT):
                assert record.chain[-1].incarnation == record.incarnation
                assert record.chain[-1].end is None


TestNamespace = Namespace.TestCase
TestNamespace.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
