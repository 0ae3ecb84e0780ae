"""A topic's control records: anchors, replay, snapshots, trimming, limits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.errors import CorruptData, LimitExceeded
from magnetar.transactions.ids import TxnId
from magnetar.watermarks import timeline as timelines
from magnetar.watermarks.records import (
    NOWHERE,
    START,
    Anchor,
    Assertion,
    Event,
    Idle,
    Snapshot,
    marker_end,
)
from magnetar.watermarks.timeline import Anchored, SnapshotInterval, Timeline, TimelineState
from tests.unit.watermarks.reference import Reference
from tests.unit.watermarks.world import World, random_steps

SEEDS = st.integers(0, 10_000)


def grown(*events: tuple[int, Event], interval: SnapshotInterval | None = None) -> Timeline:
    """Events behind entries of ledger 1."""
    timeline = Timeline(interval=interval)
    for entry, event in events:
        timeline.apply(*timeline.queue((1, entry), event))
    return timeline


def random_world(seed: int) -> World:
    world = World()
    for step in random_steps(seed, 40):
        if step[0] not in ("trim", "recover", "seek"):
            world.step(step)
    return world


def test_anchors_are_behind_the_last_entry_of_any_ledger() -> None:
    timeline = Timeline()
    places = [NOWHERE, NOWHERE, (1, 0), (1, 0), (3, 2)]
    assert [timeline.queue(place, Idle("p")).anchor for place in places] == [
        (-1, -1, 0), (-1, -1, 1), (1, 0, 0), (1, 0, 1), (3, 2, 0),
    ]  # fmt: skip


def test_a_commit_takes_effect_at_the_last_entry_of_its_marker() -> None:
    assert marker_end((4, 10), 3, (4, 12)) == (4, 12)
    assert marker_end(NOWHERE, 0, (3, 7)) == (3, 7)


@given(SEEDS)
@settings(max_examples=40)
def test_the_standing_at_every_position_is_the_references(seed: int) -> None:
    """From the nearest snapshot on, reading no more than lies between."""
    world = random_world(seed)
    reference = Reference(world.events)
    for place in {NOWHERE, *world.places}:
        cut = sum(other <= place for other in world.places)
        standing, sequence = world.timeline.standing_at(place)
        assert standing.exact_ms == reference.exact(cut)
        assert dict(standing.to_snapshot().producers) == reference.active(cut)
        assert world.timeline.run(sequence, place, 1) == []


@given(SEEDS, st.data())
@settings(max_examples=40)
def test_trimming_keeps_the_standing_at_what_is_left(seed: int, data: st.DataObject) -> None:
    world = random_world(seed)
    places = sorted({NOWHERE, *world.places})
    before = {place: world.timeline.standing_at(place)[0].to_snapshot() for place in places}
    trimmed = data.draw(st.sampled_from(places))
    horizon = world.timeline.horizon(trimmed)
    if horizon is not None:
        world.timeline.trim(horizon)
    for place in places:
        if place >= trimmed:
            assert world.timeline.standing_at(place)[0].to_snapshot() == before[place]
    assert world.timeline.head.to_snapshot() == before[places[-1]]


@given(SEEDS, st.data())
@settings(max_examples=40)
def test_a_state_and_the_records_since_give_an_equal_timeline(
    seed: int, data: st.DataObject
) -> None:
    """Wherever the checkpoint was, and wherever before it the replay begins."""
    whole = random_world(seed).timeline.to_state()
    cut = data.draw(st.integers(0, len(whole.records)))
    start = data.draw(st.integers(0, cut))
    restored = Timeline(TimelineState(whole.base, whole.records[:cut]))
    for anchored in whole.records[start:]:
        restored.apply(*anchored)
    assert restored.to_state() == whole
    assert restored.head.to_snapshot() == Timeline(whole).head.to_snapshot()


def test_a_state_keeps_anchors_and_goes_on_behind_them() -> None:
    timeline = grown((0, Assertion("p", 1)), (5, Assertion("p", 2)))
    restored = Timeline(timeline.to_state())
    assert restored.last == (1, 5, 0)
    assert restored.queue((1, 5), Idle("p")).anchor == (1, 5, 1)


def test_a_reader_may_begin_at_a_snapshot() -> None:
    """Attach and seek need no more than one snapshot and what follows it."""
    timeline = grown((0, Assertion("p", 4)), (1, Idle("p")), (2, Assertion("q", 6)))
    snapshot = timeline.snapshot((1, 3))
    later = Timeline(TimelineState(snapshot, ()))
    later.apply(*later.queue((1, 4), Idle("q")))
    assert later.head.exact_ms == 6
    assert later.base_place == (1, 3)


def test_snapshots_are_due_by_records_and_by_bytes() -> None:
    by_records = grown(*((at, Assertion("p", at)) for at in range(3)), interval=SnapshotInterval(3))
    assert by_records.snapshot_due
    by_records.apply(*by_records.snapshot((1, 3)))
    assert not by_records.snapshot_due
    by_bytes = Timeline(interval=SnapshotInterval(message_bytes=100))
    by_bytes.grew(100)
    assert not by_bytes.snapshot_due, "nothing was asserted"
    by_bytes.apply(*by_bytes.queue((1, 0), Assertion("p", 1)))
    assert by_bytes.snapshot_due
    by_bytes.apply(*by_bytes.snapshot((1, 0)))
    by_bytes.apply(*by_bytes.queue((1, 1), Assertion("p", 2)))
    assert not by_bytes.snapshot_due


def test_a_snapshot_costs_no_more_than_the_records_since() -> None:
    many = grown(*((0, Assertion(f"p{at}", at)) for at in range(50)), interval=SnapshotInterval(10))
    many.apply(*many.snapshot((1, 0)))
    for at in range(50):
        assert not many.snapshot_due
        many.apply(*many.queue((1, 1), Assertion("p0", at)))
    assert many.snapshot_due


def test_a_snapshot_holds_what_is_in_flight() -> None:
    """Under load something always is."""
    timeline = grown((0, Assertion("p", 1)), interval=SnapshotInterval(1))
    ahead = [timeline.queue((1, 1), Assertion("p", 7)), timeline.queue((1, 2), Assertion("q", 8))]
    snapshot = timeline.snapshot((1, 2))
    assert snapshot == Anchored(Anchor(1, 2, 1), Snapshot((("p", 7), ("q", 8))))
    assert not timeline.snapshot_due, "it is queued"
    later = timeline.queue((1, 2), Assertion("q", 9))
    for anchored in (*ahead, snapshot, later):
        timeline.apply(*anchored)
    assert timeline.standing_at((1, 2))[0].to_snapshot() == Snapshot((("p", 7), ("q", 9)))
    assert timeline.standing_at((1, 1))[0].to_snapshot() == Snapshot((("p", 7),))


def test_a_horizon_that_skips_records_is_refused() -> None:
    timeline = grown((0, Assertion("p", 1)))
    with pytest.raises(CorruptData, match="records between are missing"):
        timeline.trim(Anchored(Anchor(1, 9, 0), Snapshot()))
    timeline.trim(Anchored(START, Snapshot()))
    assert timeline.end == 1
    assert grown().horizon((1, 0)) is None


def test_too_many_producers_and_transactions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timelines, "PRODUCERS_MAX", 1)
    timeline = grown((0, Assertion("p", 1)))
    timeline.check_room("p", 2)
    with pytest.raises(LimitExceeded, match="mark those that are not needed as idle"):
        timeline.check_room("q", 2)
    with pytest.raises(LimitExceeded, match="event time"):
        timeline.check_room("p", -1)
    monkeypatch.setattr(timelines, "ELEMENTS_MAX", 2)
    timeline.check_hold()
    timeline.apply(*timeline.queue((1, 1), Assertion("p", 1, TxnId(0, 1))))
    with pytest.raises(LimitExceeded, match="commit or abort"):
        timeline.check_hold()
