"""The ledger table maps positions and ordinals onto each other, across ledgers, terms and
replays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import CorruptData
from magnetar.topics.ledgers import EARLIEST, LATEST, LedgerTable, Position

LEDGERS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), max_size=6).map(
    lambda steps: [
        (sum(step for step, _ in steps[: index + 1]), count)
        for index, (_, count) in enumerate(steps)
    ]
)


def positions_of(ledgers: list[tuple[int, int]]) -> list[Position]:
    return [Position(ledger, entry) for ledger, count in ledgers for entry in range(count)]


@given(LEDGERS)
def test_positions_and_ordinals_are_one_to_one(ledgers: list[tuple[int, int]]) -> None:
    """Every entry has one ordinal, in order, and both directions agree."""
    table = LedgerTable(ledgers)
    known = positions_of(ledgers)
    assert [table.position(ordinal) for ordinal in range(table.first, table.end)] == known
    assert [table.find(position) for position in known] == list(range(table.end))
    assert table.ledgers() == ledgers
    assert table.last_position == (known[-1] if known else EARLIEST)


@given(LEDGERS, st.integers(-1, 32), st.integers(-1, 8))
def test_any_position_clamps_to_the_next_valid_one(
    ledgers: list[tuple[int, int]], ledger: int, entry: int
) -> None:
    """clamp, find, next and previous answer by comparison of positions, whether the position
    exists or not."""
    table, known, asked = LedgerTable(ledgers), positions_of(ledgers), Position(ledger, entry)
    assert table.clamp(asked) == sum(position < asked for position in known)
    assert table.ordinal_after(asked) == sum(position <= asked for position in known)
    assert table.find(asked) == (known.index(asked) if asked in known else None)
    assert table.next(asked) == next((position for position in known if position > asked), None)
    assert table.previous(asked) == next(
        (position for position in reversed(known) if position < asked), None
    )


@given(LEDGERS, st.integers(0, 30))
def test_a_mark_delete_survives_being_written_as_a_position(
    ledgers: list[tuple[int, int]], ordinal: int
) -> None:
    """ordinal_after(position_before(x)) == x for every x a cursor can have."""
    table = LedgerTable(ledgers)
    ordinal = min(ordinal, table.end)
    assert table.ordinal_after(table.position_before(ordinal)) == ordinal


@given(LEDGERS, st.integers(0, 30), st.integers(0, 30))
def test_runs_cover_exactly_the_range(ledgers: list[tuple[int, int]], one: int, other: int) -> None:
    """runs and span are inverse: no entry is lost or added at a ledger's edge."""
    table = LedgerTable(ledgers)
    start, end = sorted((min(one, table.end), min(other, table.end)))
    runs = list(table.runs(start, end))
    assert [number for run in runs for number in range(*table.span(*run))] == list(
        range(start, end)
    )
    assert len({ledger for ledger, _, _ in runs}) == len(runs)


def test_earliest_and_latest_are_the_ends() -> None:
    """The protocol's special ids need no special case."""
    table = LedgerTable([(3, 2), (7, 3)])
    assert (table.clamp(EARLIEST), table.clamp(LATEST)) == (0, 5)
    assert LedgerTable().clamp(EARLIEST) == LedgerTable().clamp(LATEST) == 0


def test_entries_of_a_ledger_come_without_gaps() -> None:
    """A hole in the log is reported as corruption, never numbered over."""
    table = LedgerTable([(3, 2)])
    for ledger, first in ((3, 3), (3, 1), (2, 0), (5, 1)):
        with pytest.raises(CorruptData, match=f"entry \\({ledger}, {first}\\) does not follow"):
            table.append(ledger, first, 1)
    assert table.append(3, 2, 4) == 2
    assert table.append(5, 0, 1) == 6


def test_replay_passes_over_known_entries() -> None:
    """Extending by what is there already, wholly or in part, adds only the rest."""
    table = LedgerTable([(3, 2), (7, 3)])
    assert table.extend(3, 0, 2) == 0
    assert table.extend(7, 1, 2) == 0
    assert table.extend(7, 1, 4) == 2
    assert table.extend(9, 0, 1) == 1
    assert table.ledgers() == [(3, 2), (7, 5), (9, 1)]
    assert table.extend(1, 0, 9) == 0, "a ledger before the first one has been trimmed"


def test_replay_detects_missing_records() -> None:
    """Entries that should have been there between known ledgers are corruption."""
    table = LedgerTable([(3, 2), (7, 3)])
    for ledger, first, count in ((5, 0, 1), (3, 1, 2), (7, 4, 1), (9, 1, 1)):
        with pytest.raises(CorruptData):
            table.extend(ledger, first, count)


def test_dropping_from_the_front_keeps_ordinals_and_the_last_ledger() -> None:
    """What remains keeps its ordinals, within a ledger as well; the topic always remembers its
    last position."""
    table = LedgerTable([(3, 2), (7, 3), (9, 1)])
    assert table.drop_before(4) == 4
    assert (table.first, table.end, table.position(4)) == (4, 6, Position(7, 2))
    assert table.ledgers() == [(7, 3), (9, 1)], (
        "a ledger counts its dropped beginning: that is how a checkpoint numbers it"
    )
    assert table.clamp(EARLIEST) == table.clamp((7, 0)) == 4
    assert table.find((3, 1)) is table.find((7, 1)) is None
    assert table.position_before(4) == Position(7, 1)
    assert table.span(7, 0, 9) == (4, 5)
    assert table.drop_before(100) == 2
    assert table.drop_before(100) == 0
    assert table.ledgers() == [(9, 1)]
    assert table.last_position == table.position_before(6) == Position(9, 0)
    assert (table.clamp(EARLIEST), table.find((9, 0)), table.first) == (6, None, 6)
    assert table.append(9, 1, 2) == 6, "ids go on behind what was dropped"
    assert table.find((9, 1)) == 6


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2), st.integers(1, 5)),
        st.tuples(st.just("drop"), st.integers(0, 12), st.just(0)),
    ),
    max_size=25,
)


@given(STEPS, st.integers(-1, 20), st.integers(-1, 12))
def test_any_history_of_appends_and_drops_answers_as_a_plain_list_does(
    steps: list[tuple[str, int, int]], ledger: int, entry: int
) -> None:
    """Against all positions ever given, and how many of them are gone: every question, and a
    copy made from a checkpoint's values."""
    table, given_ids, gone, current = LedgerTable(), [], 0, 1
    for kind, number, count in steps:
        if kind == "append":
            current += number
            first = sum(position.ledger == current for position in given_ids)
            assert table.append(current, first, count) == len(given_ids)
            given_ids += [Position(current, first + offset) for offset in range(count)]
        else:
            wanted = min(gone + number, len(given_ids))
            assert table.drop_before(wanted) == wanted - gone
            gone = wanted
    kept, asked = given_ids[gone:], Position(ledger, entry)
    assert (table.first, table.end) == (gone, len(given_ids))
    assert [table.position(ordinal) for ordinal in range(gone, table.end)] == kept
    assert [table.find(position) for position in given_ids] == [None] * gone + list(
        range(gone, table.end)
    )
    assert table.clamp(asked) == gone + sum(position < asked for position in kept)
    assert table.ordinal_after(asked) == gone + sum(position <= asked for position in kept)
    assert table.next(asked) == next((position for position in kept if position > asked), None)
    assert table.previous(asked) == next(
        (position for position in reversed(kept) if position < asked), None
    )
    for ordinal in range(gone, table.end + 1):
        assert table.ordinal_after(table.position_before(ordinal)) == ordinal
    runs = list(table.runs(gone, table.end))
    assert [
        Position(run, number) for run, low, high in runs for number in range(low, high + 1)
    ] == kept
    for run_ledger, known in table.ledgers():
        assert table.extend(run_ledger, 0, known) == 0, (
            "replaying what is there, dropped or not, changes nothing"
        )
    again = LedgerTable(table.ledgers())
    if given_ids:
        again.drop_before(again.ordinal_after(table.position_before(gone)))
    assert [again.position(ordinal) for ordinal in range(again.first, again.end)] == kept
    assert again.last_position == table.last_position
