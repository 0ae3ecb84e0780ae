"""The bundle record's transitions, by example and over random courses."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from magnetar.errors import NotAllowed
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    CheckpointPointer,
    LogPosition,
    LogRange,
)
from magnetar.names import BundleName
from magnetar.ownership import rules as rules
from magnetar.ownership.merges import Neighbours
from magnetar.ownership.rules import TransitionRefused
from magnetar.ownership.states import BUNDLES, Change, states_that_allow

A, B, C = "a-1", "b-1", "c-1"
EXCEPTIONS = (Change.OVERRIDE, Change.REASSIGN, Change.PIN, Change.ADVANCE_CHECKPOINT)
"""Tested on their own."""
PARENT = BundleName.parse("public/default/0x00000000_0x80000000")


def owned_by(incarnation: str, epoch: int = 7, start: LogPosition | None = None) -> BundleRecord:
    assigned = rules.assign(None, incarnation, "lookup")
    return rules.own(assigned, incarnation, epoch=epoch, start=start or LogPosition(0, 10))


def test_a_new_bundle_is_assigned_then_owned() -> None:
    """The Assigning record has no epoch of its own yet; Owned carries the one made of its
    revision."""
    assigned = rules.assign(None, A, "lookup")
    assert assigned == BundleRecord(BundleState.ASSIGNING, epoch=0, incarnation=A, reason="lookup")
    owned = rules.own(assigned, A, epoch=7, start=LogPosition(0, 10))
    assert (owned.state, owned.epoch, owned.epochs) == (BundleState.OWNED, 7, (7,))
    assert owned.chain == (LogRange(A, LogPosition(0, 10), None),)


def test_a_planned_move_transfers_chain_and_checkpoint() -> None:
    """Release, released with a checkpoint, owned: the chain holds exactly what the checkpoint
    does not."""
    releasing = rules.release(owned_by(A), B, "drain")
    assert (releasing.incarnation, releasing.destination) == (A, B)
    checkpoint = CheckpointPointer("x", A, LogPosition(1, 5))
    assigned = rules.released(releasing, B, end=LogPosition(1, 90), checkpoint=checkpoint)
    assert (assigned.incarnation, assigned.source, assigned.destination) == (B, A, "")
    assert assigned.chain == (LogRange(A, LogPosition(1, 5), LogPosition(1, 90)),)
    owned = rules.own(assigned, B, epoch=9, start=LogPosition(3, 0))
    assert owned.chain == (*assigned.chain, LogRange(B, LogPosition(3, 0), None))
    assert (owned.epochs, owned.checkpoint) == ((7, 9), checkpoint)


def test_a_release_to_nobody_frees_the_bundle() -> None:
    """Free keeps chain and epoch, so that the next owner recovers everything and counts on."""
    free = rules.released(rules.release(owned_by(A), "", "unload"), "", end=LogPosition(0, 50))
    assert (free.state, free.incarnation, free.source, free.epoch) == (BundleState.FREE, "", "", 7)
    owned = rules.own(rules.assign(free, A, "lookup"), A, epoch=8, start=LogPosition(0, 60))
    assert owned.chain == (
        LogRange(A, LogPosition(0, 10), LogPosition(0, 50)),
        LogRange(A, LogPosition(0, 60), None),
    )


def test_an_override_keeps_the_range_open_until_the_new_owner_has_sealed_it() -> None:
    """The new owner must bring the sealed end, even if the first new owner died too."""
    first = rules.override(owned_by(A), B, owner_is_dead=True, reason="a is gone")
    second = rules.override(first, C, owner_is_dead=True, reason="b is gone")
    assert (second.incarnation, second.source, second.chain[-1].end) == (C, A, None)
    with pytest.raises(TransitionRefused, match="sealed_end"):
        rules.own(second, C, epoch=9, start=LogPosition(0, 0))
    owned = rules.own(second, C, epoch=9, start=LogPosition(0, 0), sealed_end=LogPosition(2, 2))
    assert [known.end for known in owned.chain] == [LogPosition(2, 2), None]


def test_a_log_sealed_before_the_range_began_leaves_it_empty() -> None:
    """The owner died before anything of its term was durable."""
    taken = rules.override(owned_by(A, start=LogPosition(1, 10)), B, owner_is_dead=True, reason="")
    owned = rules.own(taken, B, epoch=9, start=LogPosition(0, 0), sealed_end=LogPosition(0, 99))
    assert owned.chain[0] == LogRange(A, LogPosition(1, 10), LogPosition(1, 10))


def splitting() -> BundleRecord:
    return rules.split(owned_by(A), PARENT, (1 << 30,), "large")


def test_a_split_hands_everything_to_children_of_one_epoch() -> None:
    """Chain and checkpoint of the parent, closed at RELEASE, then the owner's log from there on."""
    checkpoint = CheckpointPointer("x", A, LogPosition(1, 5))
    record = rules.split(
        rules.advance_checkpoint(owned_by(A), checkpoint), PARENT, (1 << 20, 1 << 30), "large"
    )
    assert (record.state, record.boundaries, record.incarnation) == (
        BundleState.SPLITTING,
        (1 << 20, 1 << 30),
        A,
    )
    deleted, children = rules.divided(record, PARENT, epoch=9, end=LogPosition(1, 90))
    assert (deleted.state, deleted.epoch, deleted.incarnation, deleted.chain) == (
        BundleState.DELETED,
        7,
        "",
        (),
    )
    assert [name.range for name in children] == [
        "0x00000000_0x00100000",
        "0x00100000_0x40000000",
        "0x40000000_0x80000000",
    ]
    for child in children.values():
        assert (child.state, child.incarnation, child.epoch, child.epochs) == (
            BundleState.OWNED,
            A,
            9,
            (7, 9),
        )
        end = LogPosition(1, 90)
        assert child.chain == (LogRange(A, LogPosition(1, 5), end), LogRange(A, end, None))
        assert (child.checkpoint, child.boundaries) == (checkpoint, ())


def test_a_split_whose_owner_died_has_not_happened() -> None:
    """The parent is recovered as after any crash; RELEASE, if it was written, ends the term."""
    taken = rules.override(splitting(), B, owner_is_dead=True, reason="a is gone")
    assert (taken.state, taken.incarnation, taken.source, taken.boundaries) == (
        BundleState.ASSIGNING,
        B,
        A,
        (),
    )
    assert taken.chain == owned_by(A).chain


def test_a_split_that_is_called_off_leaves_the_bundle_free() -> None:
    """Its owner's term is over: the next candidate begins one, even if it is the same broker."""
    free = rules.called_off(splitting(), "no namespace", end=LogPosition(0, 50))
    assert (free.state, free.incarnation, free.boundaries, free.epoch) == (
        BundleState.FREE,
        "",
        (),
        7,
    )
    owned = rules.own(rules.assign(free, A, "lookup"), A, epoch=8, start=LogPosition(0, 50))
    assert owned.chain == (
        LogRange(A, LogPosition(0, 10), LogPosition(0, 50)),
        LogRange(A, LogPosition(0, 50), None),
    )


LEFT, RIGHT = (
    BundleName(PARENT.namespace, 0, 1 << 30),
    BundleName(PARENT.namespace, 1 << 30, 1 << 31),
)
PAIR = Neighbours(LEFT, RIGHT)


def owned_in(epoch: int) -> BundleRecord:
    """A bundle of A whose term began at 10 of its log."""
    return rules.own(rules.assign(None, A, ""), A, epoch=epoch, start=LogPosition(0, 10))


def merging(left: int = 7, right: int = 5) -> tuple[BundleRecord, BundleRecord]:
    """Two neighbours of these epochs, about to be merged."""
    return rules.merge(owned_in(left), owned_in(right), PAIR, "cold")


BOTH = CheckpointPointer("x", A, LogPosition(0, 40))


def test_a_merged_bundle_recovers_all_that_its_parents_would() -> None:
    """One checkpoint of both, and from its position on the log of both terms, the older first; then
    its own, in an epoch above both."""
    left, right = merging()
    assert (left.state, left.boundaries) == (BundleState.MERGING, (0, 1 << 30, 1 << 31))
    end = LogPosition(0, 90)
    deleted, whole = rules.merged(left, right, PAIR, epoch=9, end=end, checkpoint=BOTH)
    assert [(record.state, record.epoch, record.chain) for record in deleted] == [
        (BundleState.DELETED, 7, ()),
        (BundleState.DELETED, 5, ()),
    ]
    assert (whole.state, whole.incarnation, whole.epoch, whole.epochs) == (
        BundleState.OWNED,
        A,
        9,
        (5, 7, 9),
    )
    written = LogRange(A, BOTH.position, end)
    assert whole.chain == (written, written, LogRange(A, end, None))
    assert (whole.checkpoint, whole.boundaries) == (BOTH, ())


def test_siblings_that_are_merged_share_the_range_of_their_term() -> None:
    """Children of one split have one epoch, whose records are replayed once."""
    left, right = merging(7, 7)
    end = LogPosition(0, 90)
    _, whole = rules.merged(left, right, PAIR, epoch=9, end=end, checkpoint=BOTH)
    assert whole.epochs == (7, 9)
    assert whole.chain == (LogRange(A, BOTH.position, end), LogRange(A, end, None))


def test_a_merge_that_is_called_off_leaves_both_bundles() -> None:
    """Before RELEASE in service, in their terms; after it free."""
    left, _ = merging()
    kept = rules.merge_kept_apart(left)
    assert replace(kept, reason=owned_in(7).reason) == owned_in(7)
    free = rules.called_off(left, "no namespace", end=LogPosition(0, 50))
    assert (free.state, free.incarnation, free.boundaries, free.epoch) == (
        BundleState.FREE,
        "",
        (),
        7,
    )
    taken = rules.override(left, B, owner_is_dead=True, reason="a is gone")
    assert (taken.state, taken.boundaries, taken.chain) == (
        BundleState.ASSIGNING,
        (),
        owned_in(7).chain,
    )


def test_a_merged_bundle_keeps_the_longer_pin() -> None:
    left, right = rules.merge(rules.pin(owned_in(7), 50), rules.pin(owned_in(5), 90), PAIR, "x")
    _, whole = rules.merged(left, right, PAIR, epoch=9, end=LogPosition(0, 90), checkpoint=BOTH)
    assert whole.pinned_until_ms == 90


def test_a_bundle_that_nobody_has_is_retired_and_a_next_incarnation_owes_it_nothing() -> None:
    """What it had to recover is over with its namespace; its epoch stays, so that a rebuilt
    store knows that no copy is newer."""
    free = rules.released(
        rules.release(owned_by(A), "", "its namespace was deleted"), "", end=LogPosition(0, 50)
    )
    over = rules.retire(free)
    assert over == BundleRecord(BundleState.DELETED, free.epoch, reason="its namespace was deleted")
    for record in (owned_by(A), over, splitting()):
        with pytest.raises(TransitionRefused):
            rules.retire(record)


@pytest.mark.parametrize(
    "boundaries", [(), (0,), (1 << 31,), (1 << 32,), (5, 5), (7, 6), tuple(range(1, 33))]
)
def test_a_split_outside_the_bundle_is_refused(boundaries: tuple[int, ...]) -> None:
    """Before anything is written: none, the ends, beyond them, twice, out of order, or too many."""
    with pytest.raises(NotAllowed, match="boundaries"):
        rules.split(owned_by(A), PARENT, boundaries, "")


REFUSED = {
    "assign to a bundle that is owned": lambda: rules.assign(owned_by(A), B, ""),
    "assign to nobody": lambda: rules.assign(None, "", ""),
    "own by another broker": lambda: rules.own(
        rules.assign(None, A, ""), B, epoch=7, start=LogPosition(0, 0)
    ),
    "own twice": lambda: rules.own(owned_by(A), A, epoch=8, start=LogPosition(0, 0)),
    "an epoch that does not grow": lambda: rules.own(
        rules.override(owned_by(A), B, owner_is_dead=True, reason=""),
        B,
        epoch=7,
        start=LogPosition(0, 0),
    ),
    "release to oneself": lambda: rules.release(owned_by(A), A, ""),
    "release while releasing": lambda: rules.release(rules.release(owned_by(A), B, ""), C, ""),
    "released to oneself": lambda: rules.released(
        rules.release(owned_by(A), "", ""), A, end=LogPosition(0, 50)
    ),
    "released without release": lambda: rules.released(owned_by(A), B, end=LogPosition(0, 50)),
    "released before it began": lambda: rules.released(
        rules.release(owned_by(A), B, ""), B, end=LogPosition(0, 5)
    ),
    "override of the living": lambda: rules.override(
        owned_by(A), B, owner_is_dead=False, reason=""
    ),
    "override to the dead": lambda: rules.override(owned_by(A), A, owner_is_dead=True, reason=""),
    "another destination for a term that has begun": lambda: rules.reassign(owned_by(A), B, ""),
    "the same destination again": lambda: rules.reassign(rules.assign(None, A, ""), A, ""),
    "another destination that is to be fenced": lambda: rules.reassign(
        rules.override(owned_by(A), B, owner_is_dead=True, reason=""), A, ""
    ),
    "split while releasing": lambda: rules.split(
        rules.release(owned_by(A), B, ""), PARENT, (1 << 30,), ""
    ),
    "split of what nobody has": lambda: rules.split(
        rules.assign(None, A, ""), PARENT, (1 << 30,), ""
    ),
    "divided without a request": lambda: rules.divided(
        owned_by(A), PARENT, epoch=9, end=LogPosition(0, 50)
    ),
    "divided before it began": lambda: rules.divided(
        splitting(), PARENT, epoch=9, end=LogPosition(0, 5)
    ),
    "divided by a store that went back": lambda: rules.divided(
        splitting(), PARENT, epoch=7, end=LogPosition(0, 50)
    ),
    "release of a split": lambda: rules.release(splitting(), B, ""),
    "merge of bundles of two owners": lambda: rules.merge(
        owned_in(7),
        rules.own(rules.assign(None, B, ""), B, epoch=8, start=LogPosition(0, 10)),
        PAIR,
        "",
    ),
    "merge while splitting": lambda: rules.merge(splitting(), owned_in(8), PAIR, ""),
    "split while merging": lambda: rules.split(merging()[0], LEFT, (1 << 20,), ""),
    "release while merging": lambda: rules.release(merging()[0], B, ""),
    "merged without a request": lambda: rules.merged(
        owned_in(7), merging()[1], PAIR, epoch=9, end=LogPosition(0, 90), checkpoint=BOTH
    ),
    "merged in the term of a parent": lambda: rules.merged(
        *merging(), PAIR, epoch=7, end=LogPosition(0, 90), checkpoint=BOTH
    ),
    "merged from a checkpoint before a term": lambda: rules.merged(
        *merging(),
        PAIR,
        epoch=9,
        end=LogPosition(0, 90),
        checkpoint=CheckpointPointer("x", A, LogPosition(0, 9)),
    ),
    "merged from a checkpoint of another": lambda: rules.merged(
        *merging(),
        PAIR,
        epoch=9,
        end=LogPosition(0, 90),
        checkpoint=CheckpointPointer("x", B, LogPosition(0, 40)),
    ),
    "kept apart without a request": lambda: rules.merge_kept_apart(owned_in(7)),
    "called off without a request": lambda: rules.called_off(
        owned_by(A), "", end=LogPosition(0, 50)
    ),
    "checkpoint by a stranger": lambda: rules.advance_checkpoint(
        owned_by(A), CheckpointPointer("x", B, LogPosition(9, 0))
    ),
    "checkpoint going back": lambda: rules.advance_checkpoint(
        owned_by(A), CheckpointPointer("x", A, LogPosition(0, 9))
    ),
    "checkpoint without an owner": lambda: rules.advance_checkpoint(
        rules.assign(None, A, ""), CheckpointPointer("x", A, LogPosition(0, 9))
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_rules_refuse(case: str) -> None:
    """Each is a typed error that names the field."""
    with pytest.raises(
        TransitionRefused, match=r"^(state|incarnation|destination|epoch|end|owner|checkpoint)"
    ):
        REFUSED[case]()


def pinned_to_b() -> BundleRecord:
    return rules.released(
        rules.release(owned_by(A), B, "by hand", pinned_until_ms=90), B, end=LogPosition(0, 50)
    )


ENDS_OF_PINS = {
    "the next move": lambda owned: rules.release(owned, C, "drain"),
    "a move to nowhere": lambda owned: rules.release(owned, "", "broker stops", pinned_until_ms=90),
    "the death of its broker": lambda owned: rules.override(
        owned, C, owner_is_dead=True, reason="b is gone"
    ),
    "being taken back": lambda owned: rules.pin(owned, 0),
    "a split called off": lambda owned: rules.called_off(
        rules.split(owned, PARENT, (1 << 30,), "test"), "full", end=LogPosition(0, 70)
    ),
}


@pytest.mark.parametrize("end", sorted(ENDS_OF_PINS))
def test_a_pin_ends_with(end: str) -> None:
    """It holds through the move that brought it, checkpoints and a split, until the time that it
    names."""
    owned = rules.own(pinned_to_b(), B, epoch=9, start=LogPosition(0, 60))
    kept = rules.advance_checkpoint(owned, CheckpointPointer("x", B, LogPosition(0, 60)))
    assert rules.is_pinned(kept, 89)
    assert not rules.is_pinned(kept, 90)
    _, children = rules.divided(
        rules.split(kept, PARENT, (1 << 30,), "test"), PARENT, epoch=10, end=LogPosition(0, 70)
    )
    assert all(rules.is_pinned(child, 89) for child in children.values())
    assert ENDS_OF_PINS[end](owned).pinned_until_ms == 0


def test_a_pin_is_to_the_broker_that_was_named() -> None:
    """One that is gone when the bundle goes on its way, or does not take it over, is replaced:
    its successor holds nothing by hand."""
    releasing = rules.release(owned_by(A), B, "by hand", pinned_until_ms=90)
    assert rules.released(releasing, C, end=LogPosition(0, 50)).pinned_until_ms == 0
    assert rules.released(releasing, "", end=LogPosition(0, 50)).pinned_until_ms == 0
    assert rules.reassign(pinned_to_b(), C, "too slow").pinned_until_ms == 0
    with pytest.raises(TransitionRefused, match="must be Owned"):
        rules.pin(releasing, 90)


class History:
    """Applies calls at random; keeps every record that was allowed, and how it came about."""

    def __init__(self) -> None:
        self.record: BundleRecord | None = None
        self.revision = 1
        self.logs: dict[str, int] = dict.fromkeys((A, B, C), 0)
        self.owners: dict[int, str] = {}
        self.pinned_to = ""
        self.checkpointed: list[LogRange] = []

    def position(self, incarnation: str, grow: int) -> LogPosition:
        self.logs[incarnation] += grow
        return LogPosition(self.logs[incarnation] // 50, self.logs[incarnation] % 50)

    def call(self, name: str, who: str, grow: int) -> bool:
        """One call with plausible or wrong arguments; False if it was refused."""
        before = self.record
        owner = before.incarnation if before is not None and before.incarnation else who
        try:
            after = self.transition(name, who, owner, grow)
        except TransitionRefused:
            return False
        self.revision += 1
        if after.state is BundleState.OWNED:
            assert self.owners.setdefault(after.epoch, after.incarnation) == after.incarnation
        self.check_step(name, before, after)
        self.record = after
        return True

    def transition(self, name: str, who: str, owner: str, grow: int) -> BundleRecord:
        if name == "assign":
            return rules.assign(self.record, who, "test")
        if self.record is None:
            raise TransitionRefused("the other calls take a record")
        if name == "own":
            last = self.record.chain[-1] if self.record.chain else None
            sealed = (
                self.position(last.incarnation, grow)
                if last is not None and last.end is None
                else None
            )
            return rules.own(
                self.record,
                who,
                epoch=self.revision,
                start=self.position(who, grow),
                sealed_end=sealed,
            )
        if name == "release":
            return rules.release(self.record, who, "test", pinned_until_ms=grow % 2)
        if name == "pin":
            return rules.pin(self.record, grow % 2)
        if name == "released":
            return rules.released(
                self.record, who if grow % 3 else "", end=self.position(owner, grow)
            )
        if name == "override":
            return rules.override(self.record, who, owner_is_dead=grow % 4 > 0, reason="test")
        if name == "reassign":
            return rules.reassign(self.record, who, "test")
        return rules.advance_checkpoint(
            self.record, CheckpointPointer("x", owner, self.position(owner, grow))
        )

    def check_step(self, name: str, before: BundleRecord | None, after: BundleRecord) -> None:
        state = before.state if before is not None else None
        if name in ("release", "pin"):
            self.pinned_to = after.destination or after.incarnation
        assert not after.pinned_until_ms or self.pinned_to == (
            after.destination or after.incarnation
        ), "nobody inherits a pin"
        if name in ("advance_checkpoint", "pin"):
            assert after.state is state
        elif name == "override":
            assert state in states_that_allow(Change.OVERRIDE)
            assert after.state is BundleState.ASSIGNING
        elif name == "reassign":
            assert state is after.state is BundleState.ASSIGNING
            assert before is not None
            assert (after.chain, after.epochs, after.source) == (
                before.chain,
                before.epochs,
                before.source,
            )
            assert after.incarnation != before.incarnation
        else:
            assert after.state in {
                target
                for (source, change), target in BUNDLES.transitions.items()
                if source is state and change not in EXCEPTIONS
            }
        if after.state is BundleState.OWNED and name == "own":
            assert after.epoch > (before.epoch if before is not None else 0), (
                "epochs strictly increase"
            )
        else:
            assert before is None or after.epoch == before.epoch, (
                "only a new term changes the epoch"
            )
        assert len(after.chain) == len(after.epochs)
        assert list(after.epochs) == sorted(set(after.epochs))
        assert all(known.end is not None for known in after.chain[:-1]), (
            "only the last range is open"
        )
        if after.state in states_that_allow(Change.ADVANCE_CHECKPOINT):
            assert after.chain[-1].incarnation == after.incarnation
            assert after.chain[-1].end is None
        for incarnation in (A, B, C):
            bounds = [
                place
                for known in after.chain
                if known.incarnation == incarnation
                for place in (known.start, known.end or LogPosition(1 << 60, 0))
            ]
            assert bounds == sorted(bounds, key=lambda place: (place.file, place.offset)), (
                "ranges never overlap"
            )
        if before is not None and name != "advance_checkpoint":
            assert [known.start for known in after.chain[: len(before.chain)]] == [
                known.start for known in before.chain
            ]
            assert after.checkpoint == before.checkpoint


CALLS = [
    "assign",
    "own",
    "own",
    "release",
    "released",
    "override",
    "reassign",
    "advance_checkpoint",
    "pin",
]


@pytest.mark.parametrize("seed", range(20))
def test_any_course_keeps_the_invariants(seed: int) -> None:
    """One owner per epoch, growing epochs, a chain that can be recovered, no transition outside
    the table."""
    history, chance, seen = History(), random.Random(seed), set()
    for _ in range(500):
        if history.call(chance.choice(CALLS), chance.choice((A, B, C)), chance.randint(1, 60)):
            assert history.record is not None
            seen.add(history.record.state)
    assert seen == {
        BundleState.ASSIGNING,
        BundleState.OWNED,
        BundleState.RELEASING,
        BundleState.FREE,
    }
    assert len(history.owners) >= 10, "a course of mostly refused calls would prove nothing"


def test_records_survive_the_store() -> None:
    """What the rules make can be encoded and decoded."""
    record = rules.override(owned_by(A), B, owner_is_dead=True, reason="gone")
    assert BundleRecord.decode(record.encode()) == record
