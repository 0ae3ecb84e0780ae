"""Level-1 rewriting: which inputs a round takes, what its commit compares, and blocks made of
whole runs."""

from __future__ import annotations

import dataclasses
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.storage.log.index import Run
from magnetar.storage.manifest import (
    Compacted,
    LevelZero,
    Manifest,
    SegmentReference,
    TopicSegments,
)
from magnetar.storage.segments.format import (
    BLOCK_BYTES_MAX,
    BLOCK_ROWS_MAX,
    UNPARSED,
    RunColumns,
    encode_run_block,
)
from magnetar.storage.segments.level_one import (
    SHARED_OBJECTS_MAX,
    SHARED_TOPIC_BYTES_MAX,
    FileState,
    LevelOneRewrite,
    Round,
    TopicChange,
    choose,
    choose_merge,
    outside,
)
from magnetar.storage.segments.segment import RunSegmentWriter, SegmentReader

BUNDLE = "t/n/0x00000000_0x80000000"
TOPIC, OTHER = "persistent://t/n/x", "persistent://t/n/y"
HOUR_MS = 3_600_000
NOW_MS = 10 * HOUR_MS


def file(number: int, *epochs: int) -> LevelZero:
    return LevelZero("a.1", number, 1000, epochs or (5,))


def state(number: int, live: int, age_ms: int = 0, size: int = 100) -> FileState:
    return FileState(file(number), size, live, NOW_MS - age_ms)


def segment(
    name: str, first: int, last: int, length: int = 1000, offset: int = 0
) -> SegmentReference:
    return SegmentReference(
        name, length, last - first + 1, length - 100, (11, first), (11, last), offset
    )


# --- the choice -----------------------------------------------------------------------------------


def test_dead_files_go_and_old_or_mostly_dead_ones_are_rewritten() -> None:
    """A young file that is mostly alive stays as it is."""
    found = choose(
        [state(0, 0), state(1, 90), state(2, 50), state(3, 90, HOUR_MS)], NOW_MS, HOUR_MS, 0.5
    )
    assert (found.drop, found.rewrite) == ((file(0),), (file(3), file(2)))


def test_a_round_is_bounded_but_takes_at_least_one_file() -> None:
    """The oldest first, so that none waits permanently."""
    states = [state(number, 100, (10 - number) * HOUR_MS) for number in range(5)]
    assert choose(states, NOW_MS, HOUR_MS, 0.5, bytes_max=250).rewrite == (file(0), file(1))
    assert choose(states, NOW_MS, HOUR_MS, 0.5, bytes_max=10).rewrite == (file(0),)


def test_a_pinned_file_is_rewritten_in_part_once_that_is_due() -> None:
    """Only what can be rewritten counts for the bound of a round; what was rewritten before is
    not done again, whatever is dead."""
    old, young = state(0, 90, HOUR_MS), state(1, 90)

    def pinned(found: FileState, loose: int, *, wanted: bool = False) -> FileState:
        return dataclasses.replace(found, pinned=True, loose_bytes=loose, wanted=wanted)

    found = choose([pinned(old, 40), state(2, 90, HOUR_MS)], NOW_MS, HOUR_MS, 0.5, bytes_max=130)
    assert (found.drop, found.rewrite, found.partly) == ((), (file(2),), (file(0),))
    none = Round((), ())
    assert choose([pinned(old, 0), pinned(young, 40)], NOW_MS, HOUR_MS, 0.5) == none
    assert choose([pinned(state(3, 10), 5)], NOW_MS, HOUR_MS, 0.5) == none
    assert choose([pinned(state(4, 0), 0)], NOW_MS, HOUR_MS, 0.5) == none
    assert choose([pinned(young, 40, wanted=True)], NOW_MS, HOUR_MS, 0.5).partly == (file(1),)
    assert choose([dataclasses.replace(young, wanted=True)], NOW_MS, HOUR_MS, 0.5).rewrite == (
        file(1),
    )


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=6),
    st.integers(0, 20),
    st.integers(1, 12),
)
def test_what_segments_hold_of_a_run_does_not_count(
    stretches: list[tuple[int, int]], first: int, count: int
) -> None:
    """Entry by entry, with the bytes where they lie; segments may begin and end in other
    ledgers."""
    held: set[int] = set()
    segments, entry = [], 0
    for gap, size in stretches:
        segments.append(segment("s", entry + gap, entry + gap + size - 1))
        held.update(range(entry + gap, entry + gap + size))
        entry += gap + size
    if segments and segments[-1].last[1] >= 15:  # the last one goes on in the next ledger
        segments[-1] = dataclasses.replace(segments[-1], last=(13, 4))
        held.update(range(segments[-1].first[1], 100))
    lengths = array("I", [100 + number for number in range(first, first + count)])
    counts = array("I", [number + 1 for number in range(first, first + count)])
    run = Run(5, 11, first, 0, 4096, lengths, counts)
    found = {}
    for part in outside(run, segments):
        at = part.offset
        for number, (length, messages) in enumerate(
            zip(part.lengths, part.message_counts, strict=True), part.first_entry
        ):
            found[number] = (at, length, messages)
            at += length
    wanted, at = {}, 4096
    for number in range(first, first + count):
        if number not in held:
            wanted[number] = (at, 100 + number, number + 1)
        at += 100 + number
    assert found == wanted


def test_small_objects_are_merged_once_there_are_many() -> None:
    small = {
        f"{TOPIC}{n}": TopicSegments((segment(f"s{n}", 0, 9, 100 + n),))
        for n in range(SHARED_OBJECTS_MAX)
    }
    large = {OTHER: TopicSegments((segment("large", 0, 9, SHARED_TOPIC_BYTES_MAX),))}
    few = dict(list(small.items())[1:])
    assert choose_merge(Manifest(BUNDLE, 1, topics={**few, **large})) == frozenset()
    assert choose_merge(Manifest(BUNDLE, 1, topics={**small, **large})) == {
        f"s{n}" for n in range(SHARED_OBJECTS_MAX)
    }
    assert choose_merge(Manifest(BUNDLE, 1, topics=small), bytes_max=320) == {"s0", "s1", "s2"}


# --- the commit -----------------------------------------------------------------------------------


def rewrite(*files: LevelZero, generation: int = 0, **change: object) -> LevelOneRewrite:
    topic = TopicChange(generation, **{"added": (segment("new", 0, 9),), **change})  # type: ignore[arg-type]
    return LevelOneRewrite("i", files, {TOPIC: topic})


LISTED = Manifest(BUNDLE, 4, level0=(file(0), file(1)), covered=(5, 2))


def test_inputs_leave_the_list_and_outputs_take_their_place() -> None:
    applied = rewrite(file(0)).apply(LISTED)
    assert applied is not None
    assert applied.level0 == (file(1),)
    assert applied.topic(TOPIC).level1 == (segment("new", 0, 9),)


def test_files_and_segments_that_came_in_between_stay() -> None:
    """Only my inputs are compared: a move or a roll never fails a rewrite."""
    later = dataclasses.replace(
        LISTED,
        level0=(*LISTED.level0, file(2)),
        topics={OTHER: TopicSegments((segment("o", 0, 3),))},
    )
    applied = rewrite(file(0)).apply(later)
    assert applied is not None
    assert applied.level0 == (file(1), file(2))
    assert applied.topic(OTHER) == later.topic(OTHER)


def test_a_file_that_was_rewritten_in_part_stays_and_must_still_be_there() -> None:
    change = dataclasses.replace(rewrite(), partly=(file(0),))
    applied = change.apply(LISTED)
    assert applied is not None
    assert applied.level0 == LISTED.level0
    assert applied.topic(TOPIC).level1 == (segment("new", 0, 9),)
    assert change.apply(dataclasses.replace(LISTED, level0=(file(1),))) is None
    assert change.apply(dataclasses.replace(LISTED, level0=(file(0, 7), file(1)))) is None
    assert change.apply(applied) is None, "another owner has done the same concurrently"


def test_how_far_a_topic_is_complete_never_goes_back_and_goes_with_the_topic() -> None:
    """It outlives the last segment: what comes later begins behind it."""
    manifest = LISTED.with_topic(TOPIC, TopicSegments(complete=(11, 50)))
    applied = rewrite(file(0), added=(), complete=(11, 40)).apply(manifest)
    assert applied is not None
    assert applied.topics == {TOPIC: TopicSegments(complete=(11, 50))}
    further = rewrite(file(0), added=(), complete=(13, 0)).apply(manifest)
    assert further is not None
    assert further.topic(TOPIC).complete == (13, 0)
    gone = rewrite(file(0), added=(), gone=True, forgotten=True).apply(manifest)
    assert gone is not None
    assert gone.topics == {}


def test_a_later_term_in_the_same_file_stays_listed() -> None:
    """What a term wrote that was listed after the inputs were read has not been rewritten."""
    later = dataclasses.replace(LISTED, level0=(file(0, 5, 9),))
    applied = rewrite(file(0, 5)).apply(later)
    assert applied is not None
    assert applied.level0 == (file(0, 9),)


@pytest.mark.parametrize(
    "changed",
    [
        dataclasses.replace(LISTED, level0=(file(1),)),
        dataclasses.replace(LISTED, level0=(file(0, 7), file(1))),
        LISTED.with_topic(TOPIC, TopicSegments(compacted=Compacted(1, (11, 3), ()))),
    ],
    ids=["input gone", "input of other terms", "compacted"],
)
def test_a_rewrite_declines_what_it_was_not_made_from(changed: Manifest) -> None:
    assert rewrite(file(0)).apply(changed) is None


def test_a_merged_segment_must_still_be_listed() -> None:
    change = rewrite(removed=frozenset({("old", 64)}))
    with_old = LISTED.with_topic(TOPIC, TopicSegments((segment("old", 20, 29, offset=64),)))
    applied = change.apply(with_old)
    assert applied is not None
    assert applied.topic(TOPIC).level1 == (segment("new", 0, 9),)
    assert change.apply(LISTED) is None
    assert (
        change.apply(LISTED.with_topic(TOPIC, TopicSegments((segment("old", 20, 29, offset=0),))))
        is None
    )


def test_a_deleted_topic_leaves_the_manifest_and_is_remembered_while_a_listed_file_holds_it() -> (
    None
):
    """Else a job could take its entries for those of a topic of the same name."""
    view = TopicSegments((segment("old", 0, 9),), Compacted(2, (11, 3), ()))
    manifest = LISTED.with_topic(TOPIC, view)
    gone = {"added": (), "removed": frozenset({("old", 0)}), "gone": True}
    held = rewrite(file(0), generation=2, trimmed=(11, 40), **gone).apply(manifest)
    assert held is not None
    assert held.topics == {TOPIC: TopicSegments(trimmed=(11, 40))}
    forgotten = rewrite(file(1), forgotten=True, added=(), gone=True).apply(held)
    assert forgotten is not None
    assert forgotten.topics == {}


def test_trimmed_never_goes_back() -> None:
    manifest = LISTED.with_topic(TOPIC, TopicSegments(trimmed=(11, 50)))
    applied = rewrite(file(0), trimmed=(11, 40)).apply(manifest)
    assert applied is not None
    assert applied.topic(TOPIC).trimmed == (11, 50)


# --- covering -------------------------------------------------------------------------------------


def test_what_was_covered_is_never_listed_again() -> None:
    """A cover that comes late, from an owner that has been followed, changes nothing."""
    manifest = dataclasses.replace(LISTED, level0=(), covered=(7, 3))
    assert manifest.with_files([file(0, 5), file(2, 7)], (5, 2)) == manifest
    taken = manifest.with_files([file(2, 7), file(3, 5, 7), file(4, 7)], (7, 5))
    assert taken.level0 == (file(3, 7), file(4, 7))
    assert taken.covered == (7, 5)


# --- blocks of runs -------------------------------------------------------------------------------

LENGTHS = st.lists(st.integers(0, 400), min_size=1, max_size=60)
RUNS = st.lists(st.tuples(LENGTHS, st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=12)


def runs_from(shape: list[tuple[list[int], int, int]]) -> list[RunColumns]:
    """Runs in position order: (lengths, gap before, ledgers skipped)."""
    runs = []
    ledger, entry = 1, 0
    for number, (lengths, gap, skip) in enumerate(shape):
        ledger, entry = (ledger + 2 * skip, gap) if skip else (ledger, entry + gap)
        payload = b"".join(bytes([number % 251]) * length for length in lengths)
        runs.append(
            RunColumns(
                ledger,
                entry,
                1000 + number,
                lengths,
                [1 + at % 3 for at in range(len(lengths))],
                payload,
            )
        )
        entry += len(lengths)
    return runs


@settings(max_examples=80, deadline=None)
@given(RUNS)
def test_a_segment_of_runs_reads_back_entry_by_entry(
    shape: list[tuple[list[int], int, int]],
) -> None:
    """Positions, times, counts and bytes, however runs fall into blocks; and no entry that was
    not written."""
    runs = runs_from(shape)
    writer = RunSegmentWriter({"topic": TOPIC})
    for run in runs:
        writer.add(run)
    pieces, footer = writer.finish()
    data = b"".join(pieces)
    assert writer.length == len(data)
    reader = SegmentReader(lambda at, size: data[at : at + size], len(data), "s")
    found = [
        (
            block.ledgers[row],
            block.entries[row],
            block.append_times[row],
            block.message_counts[row],
            bytes(block.payload(row)),
        )
        for block in reader.blocks()
        for row in range(block.count)
    ]
    wanted = []
    for run in runs:
        at = 0
        for row, length in enumerate(run.lengths):
            payload = bytes(memoryview(run.payload)[at : at + length])
            wanted.append(
                (run.ledger, run.first_entry + row, run.append_ms, run.message_counts[row], payload)
            )
            at += length
    assert found == wanted
    assert footer.rows == len(wanted)
    assert all(block.flags[0] == UNPARSED and block.key(0) is None for block in reader.blocks())


def test_blocks_of_runs_are_bounded_in_rows_and_bytes() -> None:
    writer = RunSegmentWriter({})
    rows = 3 * BLOCK_ROWS_MAX + 1
    writer.add(RunColumns(1, 0, 7, [1] * rows, [1] * rows, bytes(rows)))
    writer.add(
        RunColumns(
            3,
            0,
            7,
            [BLOCK_BYTES_MAX - 10, 20, 3 * BLOCK_BYTES_MAX, 5],
            [1] * 4,
            bytes(4 * BLOCK_BYTES_MAX + 15),
        )
    )
    _, footer = writer.finish()
    assert [block.rows for block in footer.blocks] == [BLOCK_ROWS_MAX] * 3 + [2, 1, 1, 1]
    assert footer.rows == rows + 4


GOLDEN_BLOCK = bytes.fromhex(
    "4d53424b0200000003000000c000000003000000000000000500000000000000000000000000000004000000000000000000000000000000"
    "00000000f6e0724d000000000200000003000000040000000000000000000000000000000000000003000000000000000300000000000000"
    "0500000000000000050000000000000006000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000004600000000000000460000000000000050000000000000000100000004000000"
    "0100000000000000200000002000000020000000000000006162636400000000"
)


def test_golden_run_block() -> None:
    """Version 2 never changes."""
    block, entry = encode_run_block(
        [RunColumns(3, 5, 70, [2, 1], [1, 4], b"abc"), RunColumns(5, 0, 80, [1], [1], b"d")], 64
    )
    assert block.hex() == GOLDEN_BLOCK.hex()
    assert entry[:7] == (64, len(block), 3, 3, 5, 5, 0)
    assert entry[7:] == (-(1 << 63), (1 << 63) - 1, -(1 << 63), (1 << 63) - 1, 70, 80, 6, 4, 0)


def test_an_owner_that_judges_by_an_earlier_term_changes_nothing() -> None:
    """A former owner that has not learned of its end takes what its successor wrote for trimmed:
    its round is refused."""
    file = LevelZero("i.1", 0, 4096, (7,))
    manifest = Manifest("public/default/0x00000000_0xffffffff", 1, level0=(file,), covered=(7, 1))
    assert LevelOneRewrite("", (file,), {}, 6).apply(manifest) is None
    changed = LevelOneRewrite("", (file,), {}, 7).apply(manifest)
    assert changed is not None
    assert changed.level0 == ()
