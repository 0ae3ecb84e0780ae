"""Where entries lie: the index against a list, and the tail cache against its limit."""

from __future__ import annotations

import weakref

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.reading.entry_index import RELEASED_HELD_MAX, EntryIndex, Run, TailCache

LENGTHS = st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=5), max_size=12)


def build(first: int, runs: list[list[int]]) -> tuple[EntryIndex, list[tuple[int, int, int]]]:
    """An index, and the same as a list: (run, offset in the file, length) per entry."""
    index, model, ordinal = EntryIndex(), [], first
    for number, lengths in enumerate(runs):
        offset = 4096 + 10_000 * number
        index.add(Run(ordinal, "broker-0.1", number, offset, lengths, [2] * len(lengths)))
        at = offset
        for length in lengths:
            model.append((number, at, length))
            at += length
        ordinal += len(lengths)
    return index, model


@given(st.integers(0, 1000), LENGTHS)
def test_every_ordinal_is_found_where_it_was_put(first: int, runs: list[list[int]]) -> None:
    """The run, the offset and the length of every entry; nothing before and nothing behind."""
    index, model = build(first, runs)
    assert index.first == (first if runs else None)
    for position, (number, offset, length) in enumerate(model):
        found = index.run_of(first + position)
        assert found == number
        run = index.runs[number]
        low = first + position - run.first
        offsets = run.offsets()
        assert (run.offset + offsets[low], offsets[low + 1] - offsets[low]) == (offset, length)
    assert index.run_of(first - 1) is None
    assert index.run_of(first + len(model)) is None
    for before, after in zip(index.runs, list(index.runs)[1:], strict=False):
        assert before.end == after.first
        assert before.bytes == before.offsets()[-1]


@given(st.lists(st.integers(1, 100), min_size=1, max_size=50), st.integers(1, 400))
def test_the_tail_cache_drops_the_oldest_runs_first(sizes: list[int], limit: int) -> None:
    """It holds the longest tail of runs within its limit, and always the newest one, however
    large."""
    cache, runs = TailCache(limit), []
    for number, size in enumerate(sizes):
        run = Run(number, "broker-0.1", 0, number, [size], [1])
        cache.keep(run, bytes(size))
        runs.append(run)
        kept, total = 1, size
        while kept < len(runs) and total + runs[-kept - 1].bytes <= limit:
            kept += 1
            total += runs[-kept].bytes
        assert [held.payload is not None for held in runs] == [False] * (len(runs) - kept) + [
            True
        ] * kept
        assert cache.bytes == total


@given(
    st.lists(
        st.tuples(st.integers(1, 100), st.booleans(), st.integers(0, 60)), min_size=1, max_size=60
    ),
    st.integers(1, 400),
)
def test_the_tail_cache_lets_go_of_what_nobody_will_read(
    steps: list[tuple[int, bool, int]], limit: int
) -> None:
    """What was released takes no room, at once, and its place goes to others; releasing what is
    not held changes nothing."""
    cache, runs, released = TailCache(limit), list[Run](), set[int]()
    for number, (size, release, at) in enumerate(steps):
        run = Run(number, "broker-0.1", 0, number, [size], [1])
        cache.keep(run, bytes(size))
        runs.append(run)
        if release:
            cache.release(runs[at % len(runs)])
            released.add(at % len(runs))
        held = [run for run in runs if run.payload is not None]
        assert cache.bytes == sum(run.bytes for run in held)
        assert cache.bytes <= limit or held == [run]
        assert all(runs[index].payload is None for index in released)


def test_runs_of_which_nothing_is_left_are_not_held_for_the_sake_of_an_old_one() -> None:
    """A million aborted transactions behind one message that stays."""
    cache = TailCache(1 << 20)
    cache.keep(Run(0, "broker-0.1", 0, 0, [1], [1]), b"x")
    gone = []
    for number in range(1, 4 * RELEASED_HELD_MAX):
        run = Run(number, "broker-0.1", 0, number, [1], [1])
        gone.append(weakref.ref(run.lengths))
        cache.keep(run, b"x")
        cache.release(run)
        del run
    assert sum(found() is not None for found in gone) <= 2 * RELEASED_HELD_MAX
