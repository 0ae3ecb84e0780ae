"""Who serves which hashes: every division covers what it must, and a change moves no more than
it has to."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.errors import ConsumerAssignError
from magnetar.hashes import murmur3
from magnetar.topics.dispatch.base import Consumer, KeySharedMode, KeySharedPolicy
from magnetar.topics.dispatch.hash_ranges import (
    SLOTS,
    HashRanges,
    HashRing,
    SplitRanges,
    StickyRanges,
    hash_ranges,
    ring_slot_of,
    slot_of,
)

STICKY = KeySharedMode.STICKY
PROBES = range(1, SLOTS, 97)
NAMES = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=8)


def sticky(name: str, *ranges: tuple[int, int]) -> Consumer:
    return Consumer(name, name, key_shared=KeySharedPolicy(STICKY, False, ranges))


def owners(ranges: HashRanges) -> list[Consumer | None]:
    return [ranges.owner(slot) for slot in PROBES]


def check_ranges(ranges: HashRanges) -> None:
    """What is shown is what is served: the ranges do not overlap, and name the owner of each
    slot."""
    shown = sorted(
        (start, end, consumer.handle)
        for consumer, found in ranges.ranges().items()
        for start, end in found
    )
    assert all(before[1] < after[0] for before, after in itertools.pairwise(shown))
    by_slot = {
        slot: handle for slot in PROBES for start, end, handle in shown if start <= slot <= end
    }
    for slot in PROBES:
        owner = ranges.owner(slot)
        assert by_slot.get(slot) == (owner.handle if owner is not None else None)


def test_the_division_follows_the_policy() -> None:
    """Sticky if asked for, else as the broker is set."""
    assert isinstance(hash_ranges(KeySharedPolicy(STICKY), consistent_hashing=True), StickyRanges)
    assert isinstance(hash_ranges(KeySharedPolicy(), consistent_hashing=True), HashRing)
    assert isinstance(hash_ranges(KeySharedPolicy(), consistent_hashing=False), SplitRanges)


def test_slots_begin_at_one() -> None:
    """A hash of slot 0 falls into slot 1."""
    assert [slot_of(number) for number in (0, SLOTS, 1, SLOTS - 1, 0x7FFFFFFF)] == [
        1,
        1,
        1,
        SLOTS - 1,
        SLOTS - 1,
    ]


@settings(max_examples=30, deadline=None)
@given(NAMES, st.data())
def test_a_ring_moves_only_what_a_consumer_gains_or_loses(
    names: list[str], data: st.DataObject
) -> None:
    """Everything is served; a newcomer takes slots, nobody else does; one that leaves loses its
    own only."""
    ring = HashRing()
    consumers = [Consumer(number, name) for number, name in enumerate(names)]
    for consumer in consumers:
        before = owners(ring)
        ring.add(consumer)
        after = owners(ring)
        assert all(new is consumer or new is old for old, new in zip(before, after, strict=True))
        assert consumer in after
    check_ranges(ring)
    for consumer in data.draw(st.permutations(consumers)):
        before = owners(ring)
        ring.remove(consumer)
        after = owners(ring)
        assert consumer not in after
        assert all(new is old or old is consumer for old, new in zip(before, after, strict=True))
    assert set(owners(ring)) == {None}


def test_the_ring_divides_keys_as_apache_pulsar_does() -> None:
    """Its answer for two consumers, as its REST reports it (4.2.4), and who got which key."""
    ring = HashRing()
    consumers = [Consumer(number, f"c{number}") for number in range(2)]
    for consumer in consumers:
        ring.add(consumer)
    ends = [(end, owner.name) for owner, ranges in ring.ranges().items() for _, end in ranges]
    assert [found for found in sorted(ends) if found[0] in (1031, 1299, 1551, 1626, 2409, 2507)] == [
        (1031, "c1"), (1299, "c0"), (1551, "c1"), (1626, "c0"), (2409, "c1"), (2507, "c0"),
    ]  # fmt: skip
    owners_of_keys = [ring.owner(ring.slot_of(murmur3(f"k{key}".encode()))) for key in range(12)]
    assert [owner.name for owner in owners_of_keys if owner is not None] == [
        "c0", "c0", "c1", "c0", "c0", "c1", "c0", "c1", "c1", "c0", "c1", "c0",
    ]  # fmt: skip


def test_the_ring_has_pulsars_points() -> None:
    """Name, number among consumers of that name, index of the point, with NUL between them; the
    ceiling of a slot owns it, with wrap-around."""
    ring = HashRing()
    consumers = [Consumer(number, name) for number, name in enumerate(("a", "b", "a"))]
    for consumer in consumers:
        ring.add(consumer)
    points: dict[int, int] = {}
    for number, (name, twin) in enumerate((("a", 0), ("b", 0), ("a", 1))):
        for index in range(100):
            points.setdefault(ring_slot_of(murmur3(f"{name}\0{twin}\0{index}".encode())), number)
    for slot in PROBES:
        owner = ring.owner(slot)
        assert owner is not None
        assert (
            owner.handle
            == points[min((point for point in points if point >= slot), default=min(points))]
        )


def test_numbers_of_a_name_are_used_again() -> None:
    """The twin that comes back has the points that its predecessor had."""
    ring = HashRing()
    first, second = Consumer(1, "a"), Consumer(2, "a")
    ring.add(first)
    ring.add(second)
    before = [owner is first for owner in owners(ring)]
    ring.remove(first)
    again = Consumer(3, "a")
    ring.add(again)
    assert [owner is again for owner in owners(ring)] == before


def test_a_newcomer_gets_the_lower_half_of_the_biggest_range() -> None:
    """As the suites of several clients compute it themselves."""
    split = SplitRanges()
    a, b, c, d = (Consumer(name, name) for name in "abcd")
    for consumer in (a, b, c, d):
        split.add(consumer)
    assert split.ranges() == {
        c: [(0, 16384)],
        b: [(16385, 32768)],
        d: [(32769, 49152)],
        a: [(49153, 65535)],
    }
    check_ranges(split)
    split.remove(b)
    assert split.owner(20000) is d, "its range falls to the one above"
    split.remove(a)
    assert split.owner(65535) is d, "that of the uppermost to the one below"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=40))
def test_halving_serves_everything(course: list[int]) -> None:
    """Through any course of joins and leaves every slot has an owner as long as there is
    anybody."""
    split, there = SplitRanges(), []
    for number, event in enumerate(course):
        if event < 6 or not there:
            there.append(Consumer(number))
            split.add(there[-1])
        else:
            split.remove(there.pop(event % len(there)))
        assert set(owners(split)) <= set(there) or not there
        check_ranges(split)


def test_halving_ends_when_nothing_is_left_to_split() -> None:
    """The consumer after the last slot is refused."""
    split = SplitRanges()
    split._ends, split._owners = list(range(1, SLOTS + 1)), [Consumer(0)] * SLOTS
    with pytest.raises(ConsumerAssignError, match="no range"):
        split.add(Consumer(1))


def test_sticky_ranges_are_respected() -> None:
    """Inclusive at both ends; what nobody named has no owner."""
    ranges = StickyRanges()
    a, b = sticky("a", (0, 9), (30, 39)), sticky("b", (20, 29))
    ranges.add(a)
    ranges.add(b)
    assert [ranges.owner(slot) for slot in (0, 9, 10, 19, 20, 29, 30, 39, 40)] == [
        a,
        a,
        None,
        None,
        b,
        b,
        a,
        a,
        None,
    ]
    check_ranges(ranges)
    ranges.remove(a)
    assert [ranges.owner(slot) for slot in (0, 25, 35)] == [None, b, None]


@pytest.mark.parametrize("wanted", [(29, 35), (0, 0), (5, 50), (20, 29), (39, 65535)])
def test_sticky_ranges_that_overlap_are_refused(wanted: tuple[int, int]) -> None:
    """And leave no trace."""
    ranges = StickyRanges()
    a = sticky("a", (0, 9), (20, 29), (39, 39))
    ranges.add(a)
    with pytest.raises(ConsumerAssignError, match="taken by consumer 'a'"):
        ranges.add(sticky("b", wanted))
    assert set(ranges.ranges()) == {a}


@pytest.mark.parametrize("wanted", [(), ((5, 4),), ((-1, 3),), ((0, 65536),), ((0, 5), (5, 9))])
def test_sticky_ranges_must_be_ranges(wanted: tuple[tuple[int, int], ...]) -> None:
    """None, upside down, out of bounds, or overlapping each other."""
    with pytest.raises(ConsumerAssignError):
        StickyRanges().add(sticky("a", *wanted))
