"""Which messages survive where one process counts them: the rule of the Spark job's phases,
against the reference compactor."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from magnetar.compaction.newest import Newest, by_row
from magnetar.compaction.view_rows import view_row
from magnetar.errors import LimitExceeded
from magnetar.storage.segments.format import Row
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.entries import parse_entry
from tests.spark.histories import Described, History, Sent, reference, visible

PLENTY = 1 << 30


def stored(found: Described) -> Row:
    """An entry as a log file has it."""
    count = max(1, parse_entry(found.data).metadata.num_messages_in_batch)
    return Row(found.ledger, found.entry, 0, 0, 1, count, 0, None, found.data)


def compacted(rows: Sequence[Row], *, retain_keyless: bool = False) -> list[Row]:
    """Both phases over these rows."""
    newest = Newest(PLENTY, retain_keyless=retain_keyless)
    for number, row in enumerate(rows):
        newest.add(row, number)
    survivors, at, view = newest.survivors(), 0, []
    while at < len(survivors):
        number, keep, at = by_row(survivors, at)
        view.append(view_row(rows[number], keep))
    return view


def shown(rows: Sequence[Row]) -> list[tuple[tuple[int, int, int], str | None, bytes]]:
    return visible((row.ledger, row.entry, bytes(row.payload)) for row in rows)


@pytest.mark.parametrize("seed", range(12))
def test_rounds_of_random_histories_equal_the_reference(seed: int) -> None:
    """#12429, #12522: the input of each round is the view before and what came since, never an
    original again."""
    history, retain = History(random.Random(seed)), seed % 2 == 0
    view: list[Row] = []
    for _ in range(4):
        start = len(history.entries)
        history.grow(60, keys=25)
        view = compacted(
            [*view, *map(stored, history.entries[start:])],
            retain_keyless=retain,
        )
        assert shown(view) == reference(history.entries, retain_keyless=retain)


def test_a_deletion_goes_and_takes_its_key_with_it() -> None:
    history = History(random.Random(1))
    history.single("a", b"1")
    history.batch([Sent("b", b"1"), Sent("a", b""), Sent("c", b"1")])
    history.single("b", b"")
    assert [key for _, key, _ in shown(compacted(list(map(stored, history.entries))))] == ["c"]


def test_no_entry_without_messages_is_written() -> None:
    """#21916, #21917: a batch all of whose messages are gone is left out, not written empty."""
    history = History(random.Random(1))
    history.batch([Sent("a", b"1"), Sent("b", b"1")])
    last = history.batch([Sent("a", b"2"), Sent("b", b"2"), Sent(None, b"3")])
    kept = compacted(list(map(stored, history.entries)))
    assert [row.entry for row in kept] == [last.entry]
    deletions = history.batch([Sent("a", b""), Sent("b", b"")])
    assert compacted([*kept, stored(deletions)]) == []


def test_chunks_survive_together_and_an_unfinished_message_waits() -> None:
    history = History(random.Random(1))
    first = history.chunks("k", [b"1", b"2"])
    unfinished = history.chunks("u", [b"3", b"4"], only=[0])
    history.single("u", b"5")
    kept = compacted(list(map(stored, history.entries)))
    assert [(row.ledger, row.entry) for row in kept] == [
        (found.ledger, found.entry) for found in (*first, *unfinished, history.entries[-1])
    ]
    again = history.chunks("k", [b"6", b"7"])
    rows = [*kept, *map(stored, again)]
    assert shown(compacted(rows))[-1][1:] == ("k", b"67")
    assert len(compacted(rows)) == 4, "both chunks of the older message are gone"


def test_what_cannot_be_opened_stays_and_markers_do_not() -> None:
    """#15672 of Redpanda: a marker is never keyed data."""
    history = History(random.Random(1))
    history.single("k", b"1")
    sealed = history.sealed_batch(None, 2, b"secret")
    garbage = history.garbage()
    history.marker(22, key="k")
    kept = compacted(list(map(stored, history.entries)))
    assert [row.entry for row in kept] == [0, sealed.entry, garbage.entry]


def test_a_deletion_behind_a_commit_marker_stays() -> None:
    """KAFKA-8351: the marker's messages are kept elsewhere and may have the same key."""
    history = History(random.Random(1))
    history.single("k", b"")
    marker = history.marker(21)
    deletion = history.single("k", b"", api.LZ4)
    kept = compacted(list(map(stored, history.entries)))
    assert [row.entry for row in kept] == [marker.entry, deletion.entry]


def test_memory_is_bounded_and_the_refusal_names_setting_and_remedy() -> None:
    """#7223: keys beyond the limit end the compaction instead of the process."""
    history = History(random.Random(1))
    newest = Newest(2_000)

    def add_all() -> None:
        for number in range(100):
            newest.add(stored(history.single(f"key-{number}", b"v")), number)

    with pytest.raises(LimitExceeded, match=r"compaction_keys_bytes_max=2000.*DataJob"):
        add_all()
    assert newest.keys <= 10


def test_values_of_known_keys_cost_nothing() -> None:
    history = History(random.Random(1))
    newest = Newest(2_000)
    for number in range(1_000):
        newest.add(stored(history.single("key", b"v")), number)
    assert newest.held_bytes < 300
    assert len(newest.survivors()) == 1
