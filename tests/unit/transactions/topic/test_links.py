"""Where committed entries came from: against a table, entry by entry."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from magnetar.transactions.topic.links import Links
from magnetar.transactions.topic.translations import Translations

MARKERS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 3),
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=4),
    ),
    max_size=15,
)


def laid_out(
    markers: list[tuple[int, int, list[tuple[int, int]]]],
) -> tuple[Links, dict[tuple[int, int], tuple[int, int]], tuple[int, int]]:
    """The links of these markers, the same entry by entry, and where the next entry would lie."""
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
    return links, table, (ledger, entry)


@given(MARKERS, st.data())
def test_every_entry_is_found_where_it_came_from(
    markers: list[tuple[int, int, list[tuple[int, int]]]], data: st.DataObject
) -> None:
    """Whatever lies between the markers and between their spans, across ledgers, and after any
    trimming."""
    links, table, (ledger, entry) = laid_out(markers)
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


@given(MARKERS, st.integers(1, 40))
def test_what_transactions_published_without_a_gap_is_counted(
    markers: list[tuple[int, int, list[tuple[int, int]]]], most: int
) -> None:
    """From every entry on, over any number of links, to the next plain entry or the ledger's
    end."""
    links, linked, (ledger, _) = laid_out(markers)
    for at in {known for known, _ in linked} | {ledger}:
        for number in range(max((known for of, known in linked if of == at), default=0) + 2):
            wanted = next(n for n in range(most + 1) if n == most or (at, number + n) not in linked)
            assert links.unbroken((at, number), most) == wanted


@given(MARKERS, st.data())
def test_the_first_link_outside_of_spans_is_found(
    markers: list[tuple[int, int, list[tuple[int, int]]]], data: st.DataObject
) -> None:
    """Whatever the spans begin and end in, and wherever the search begins."""
    links, linked, places, source = Links(), set(), [], 0
    ledger, entry = 15, 0
    for ledgers, between, spans in markers:
        ledger, entry = (ledger + 2 * ledgers, 0) if ledgers else (ledger, entry)
        places += [(ledger, entry + n) for n in range(between)]
        entry += between
        for skipped, count in spans:
            source += skipped
            links.add((ledger, entry), (14, source, count))
            linked.update(new := [(ledger, entry + n) for n in range(count)])
            places += new
            entry, source = entry + count, source + count
    held: set[tuple[int, int]] = set()
    spans_held = []
    at = 0
    while at < len(places) and data.draw(st.booleans(), label="another"):
        low = data.draw(st.integers(at, len(places) - 1), label="first")
        high = data.draw(st.integers(low, min(low + 5, len(places) - 1)), label="last")
        spans_held.append((places[low], places[high]))
        held.update(places[low : high + 1])
        at = high + 1
    after = data.draw(st.sampled_from([(-1, -1), *places]), label="after")
    wanted = min((place for place in linked if place > after and place not in held), default=None)
    assert links.first_outside(spans_held, after) == wanted


@given(MARKERS, st.randoms())
def test_links_made_of_a_checkpoint_are_those_that_were_made_one_by_one(
    markers: list[tuple[int, int, list[tuple[int, int]]]], random: Random
) -> None:
    """Whatever the order of commits was, beside aborted ones, in sidecar and partition of
    several terms."""
    links, translations = Links(), Translations()
    ledger, entry, found = 15, 0, []
    for ledgers, between, spans in markers:
        ledger, entry = (ledger + 2 * ledgers, 0) if ledgers else (ledger, entry)
        entry += between
        for gap, count in spans:
            found.append(((ledger, entry), gap, count))
            entry += count
    places, at = {}, 0
    for number in random.sample(range(len(found)), len(found)):
        at += found[number][1]
        places[number] = (14 + 2 * (number % 2), at, found[number][2])
        at += found[number][2]
    for number, (target, _, _) in enumerate(found):
        links.add(target, places[number])
        translations.add(places[number], target, committed=True)
    translations.add((14, at + 5, 3), (15, 0), committed=False)
    restored = Translations(translations.to_state()).links()
    for (into, first), _, count in found:
        for number in range(count):
            one, other = links.find((into, first + number)), restored.find((into, first + number))
            assert one is not None
            assert other is not None
            assert one[0] == other[0]
