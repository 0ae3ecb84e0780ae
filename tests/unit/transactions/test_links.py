"""Where committed entries came from: against a table, entry by entry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnetar.transactions.links import Links

MARKERS = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 3), st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=4)
    ),
    max_size=15,
)


@given(MARKERS, st.data())
def test_every_entry_is_found_where_it_came_from(
    markers: list[tuple[int, int, list[tuple[int, int]]]], data: st.DataObject
) -> None:
    """Whatever lies between the markers and between their spans, across ledgers, and after any trimming."""
    links, table = Links(), {}
    ledger, entry, source = 15, 0, 0
    for ledgers, between, spans in markers:
        ledger, entry = (ledger + 2 * ledgers, 0) if ledgers else (ledger, entry)
        entry += between
        for skipped, count in spans:
            source += skipped
            links.add((ledger, entry), (14, source, count))
            table.update({(ledger, entry + n): (14, source + n) for n in range(count)})
            entry, source = entry + count, source + count
    if table:
        first = data.draw(st.sampled_from(sorted(table)), label="trimmed")
        links.trim(first)
        table = {position: found for position, found in table.items() if position >= first}
    for (at, number), wanted in table.items():
        found = links.find((at, number))
        assert found is not None
        place, left = found
        assert place == wanted
        for n in range(left):
            assert table[at, number + n] == (wanted[0], wanted[1] + n)
    for position in [(ledger, entry), (ledger + 2, 0), (13, 0)]:
        assert links.find(position) is None
    assert links.memory_bytes <= 36 * max(len(table) + 4, 1)
