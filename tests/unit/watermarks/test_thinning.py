"""A timeline keeps a bounded number of records; what it forgets leaves bounds, and no watermark is
wrong for it."""

from __future__ import annotations

import random

import pytest

from magnetar.transactions.ids import TxnId
from magnetar.watermarks import bounds
from magnetar.watermarks import timeline as timelines
from magnetar.watermarks.bounds import Bound, Bounds
from magnetar.watermarks.generator import Generator, Reset, Watermark
from magnetar.watermarks.records import (
    NOWHERE,
    Anchor,
    Assertion,
    End,
    Event,
    Hold,
    Idle,
    Snapshot,
)
from magnetar.watermarks.replay import TopicWatermarks, controls_of
from magnetar.watermarks.timeline import Anchored, Timeline, TimelineState
from tests.unit.watermarks.world import CHECKS, play, random_steps

MOST, PARTS = 20, 4
THINNED = MOST // PARTS
TXNS = (TxnId(0, 1), TxnId(0, 2))


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few records, and fewer bounds."""
    monkeypatch.setattr(timelines, "RECORDS_MAX", MOST)
    monkeypatch.setattr(timelines, "THINNED_PARTS", PARTS)
    monkeypatch.setattr(bounds, "BOUNDS_MAX", 4)


def grow(timeline: Timeline, first: int, end: int) -> None:
    """Behind each of these entries its number is asserted."""
    for entry in range(first, end):
        timeline.apply(*timeline.queue((1, entry), Assertion("p", entry)))
        timeline.thin()


def exact_at(timeline: Timeline, entry: int) -> int | None:
    return timeline.standing_at((1, entry))[0].exact_ms


def test_the_newer_records_stay() -> None:
    """With the standing at each of their entries, and at the last one that went."""
    timeline = Timeline()
    grow(timeline, 0, MOST)
    assert not timeline.thin()
    grow(timeline, MOST, MOST + 1)
    assert (timeline.first, timeline.end) == (THINNED, MOST + 1)
    for entry in range(THINNED - 1, MOST + 1):
        assert exact_at(timeline, entry) == entry
    assert timeline.head.exact_ms == MOST


def test_as_many_go_as_the_snapshot_has_elements() -> None:
    """So a snapshot costs O(1) a record; half of them at most."""
    timeline, gone = Timeline(), list[int]()
    for entry in range(3 * MOST):
        name, first = f"p{entry % (THINNED + 2)}", timeline.first
        timeline.apply(*timeline.queue((1, entry), Assertion(name, entry)))
        if timeline.thin():
            gone.append(timeline.first - first)
    assert gone[:2] == [THINNED, THINNED], "by then not all have asserted"
    assert {*gone[2:]} == {THINNED + 2}


def test_a_subscription_further_behind_has_the_least_of_the_stretch() -> None:
    """It advances from stretch to stretch, and has what stands there once it has caught up."""
    timeline = Timeline()
    grow(timeline, 0, MOST + THINNED + 1)
    assert timeline.first == 2 * THINNED
    generator = Generator(timeline, NOWHERE)
    assert generator.watermark_ms is None
    assert generator.gains((1, 0))
    assert generator.advance((1, 0)) == Watermark(0)
    assert not generator.gains((1, THINNED - 2))
    assert generator.advance((1, THINNED - 2)) is None
    assert generator.advance((1, THINNED)) == Watermark(THINNED - 1)
    assert not generator.behind
    assert generator.advance((1, 2 * THINNED)) == Watermark(2 * THINNED)
    assert generator.seek((1, 2)) == Reset(0)


def test_one_that_was_reading_goes_on() -> None:
    """What it would have read next is in a bound; a seek resets to the bound there."""
    timeline = Timeline()
    grow(timeline, 0, MOST)
    generator = Generator(timeline, (1, 3))
    assert generator.watermark_ms == 3
    grow(timeline, MOST, 2 * MOST)
    assert timeline.first > 4
    assert generator.advance((1, 3)) is None
    assert generator.watermark_ms == 3
    assert generator.advance((1, 2 * MOST)) == Watermark(2 * MOST - 1)
    assert generator.seek((1, 8)) == Reset(timeline.bound_ms((1, 8)))


def test_neighbours_are_joined() -> None:
    """There are never more than so many, and the first position that had one still has one."""
    timeline = Timeline()
    grow(timeline, 0, 40 * MOST)
    assert len(timeline.to_state().bounds) <= bounds.BOUNDS_MAX
    assert exact_at(timeline, 0) == 0
    for entry in range(1, 40 * MOST):
        found = exact_at(timeline, entry)
        assert found is not None
        assert found <= entry


def test_trimming_forgets_bounds() -> None:
    """No subscription is before what the topic has dropped."""
    timeline = Timeline()
    grow(timeline, 0, 2 * MOST)
    horizon = timeline.horizon((1, 2 * MOST - 3))
    assert horizon is not None
    assert timeline.to_state().bounds
    timeline.trim(horizon)
    assert timeline.to_state().bounds == ()
    assert exact_at(timeline, 2 * MOST - 3) == 2 * MOST - 3


def test_a_checkpoint_has_the_bounds() -> None:
    """And a timeline that it restores goes on as the other one."""
    timeline = Timeline()
    grow(timeline, 0, 3 * MOST)
    restored = TopicWatermarks(controls_of(timeline)).timeline
    assert restored.to_state() == timeline.to_state()
    for one in (timeline, restored):
        grow(one, 3 * MOST, 6 * MOST)
    assert restored.to_state() == timeline.to_state()


def test_a_bound_without_a_watermark_survives_a_checkpoint() -> None:
    """A stretch in which the watermark stood still for a while has none."""
    state = TimelineState(
        Anchored(Anchor(1, 9, 0), Snapshot((("p", 9),))),
        (),
        (Bound(Anchor(1, 2, 0), 2), Bound(Anchor(1, 4, 1), None)),
    )
    restored = TopicWatermarks(controls_of(Timeline(state))).timeline
    assert restored.to_state() == state
    assert [exact_at(restored, entry) for entry in (1, 3, 4, 9)] == [None, 2, None, 9]


def events(seed: int) -> list[tuple[int, Event]]:
    """Of three producers and two transactions, each behind some entry."""
    chance = random.Random(seed)
    entry, found = 0, list[tuple[int, Event]]()
    for _ in range(chance.randrange(1, 8 * MOST)):
        entry += chance.randrange(2)
        name, txn = chance.choice("abc"), chance.choice(TXNS)
        kinds: list[Event] = [
            Assertion(name, entry + chance.randrange(9)),
            Assertion(name, entry + chance.randrange(9)),
            Assertion(name, entry + chance.randrange(9), txn),
            Idle(name),
            Hold(name, txn),
            End(txn, chance.random() < 0.7),
        ]
        found.append((entry, chance.choice(kinds)))
    return found


@pytest.mark.parametrize("part", range(4))
def test_a_bound_is_never_more_than_what_stood_there(part: int) -> None:
    """In random histories, at every position; behind the horizon it is the same."""
    better = 0
    for seed in range(50 * part, 50 * part + 50):
        thinned, whole = Timeline(), Timeline()
        for entry, event in events(seed):
            thinned.apply(*thinned.queue((1, entry), event))
            whole.apply(*whole.queue((1, entry), event))
            thinned.thin()
        for place in (NOWHERE, *((1, entry) for entry in range(thinned.last.entry + 2))):
            got = thinned.standing_at(place)[0].exact_ms
            exact = whole.standing_at(place)[0].exact_ms
            if thinned.knows(place):
                assert got == exact, (seed, place)
            elif got is not None:
                better += 1
                assert exact is not None, (seed, place)
                assert got <= exact, (seed, place)
    assert better > 100, "bounds were there"


def test_histories_on_a_timeline_that_forgets_keep_every_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The invariant, recovery and progress; the watermark need not be the exact one."""
    monkeypatch.setattr(timelines, "RECORDS_MAX", 6)
    bounded = 0
    for seed in range(150):
        world = play(random_steps(seed), CHECKS - {"exact"})
        bounded += bool(world.timeline.to_state().bounds)
        assert world.timeline.end - world.timeline.first <= 6
    assert bounded > 20


def test_there_is_no_bound_before_the_first() -> None:
    found = Bounds([Bound(Anchor(1, 3, 0), 5)])
    assert (found.at(NOWHERE), found.at((1, 2)), found.at((1, 3))) == (None, None, 5)
