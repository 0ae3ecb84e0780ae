"""Fences and translations: compact, canonical, and equal to a plain set or dict after any
course."""

from __future__ import annotations

from array import array
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import Outcome
from magnetar.transactions.topic.fences import Fences, IdSet
from magnetar.transactions.topic.translations import Translated, Translations

NUMBERS = st.integers(0, 40) | st.integers(2**64 - 5, 2**64 - 1)


@given(st.lists(st.tuples(st.booleans(), NUMBERS), max_size=60))
def test_a_set_of_ids_is_a_set(steps: list[tuple[bool, int]]) -> None:
    """Adding and dropping from below, in any order, with runs that neither overlap nor touch."""
    known, model = IdSet(), set[int]()
    for drop, number in steps:
        if drop:
            known.drop_below(number)
            model = {found for found in model if found >= number}
        else:
            known.add(number)
            model.add(number)
        bounds = known.bounds()
        runs = list(zip(bounds[0::2], bounds[1::2], strict=True))
        assert {number for first, last in runs for number in range(first, last + 1)} == model
        assert all(last + 1 < first for (_, last), (first, _) in pairwise(runs))
        assert all(number in known for number in model)
        assert not any(number in known for number in {*range(45), 2**64 - 6} - model)
    assert IdSet(known.bounds()).bounds() == known.bounds()


def test_below_the_floor_everything_has_ended() -> None:
    """The floor only rises; what ended below it is not distinguished, and costs nothing."""
    fences = Fences()
    fences.end(TxnId(1, 4), Outcome.COMMITTED)
    fences.end(TxnId(1, 5), Outcome.ABORTED)
    fences.end(TxnId(2, 5), Outcome.ABORTED)
    assert [fences.outcome(TxnId(1, least)) for least in (3, 4, 5, 6)] == [
        None,
        Outcome.COMMITTED,
        Outcome.ABORTED,
        None,
    ]
    assert fences.raise_floor(1, 5)
    assert not fences.raise_floor(1, 3)
    assert [fences.outcome(TxnId(1, least)) for least in (0, 4, 5)] == [
        Outcome.ENDED,
        Outcome.ENDED,
        Outcome.ABORTED,
    ]
    assert fences.outcome(TxnId(2, 5)) is Outcome.ABORTED, "floors are per coordinator"
    fences.end(TxnId(1, 2), Outcome.ABORTED)
    assert [(found.floor, *found.committed, *found.aborted) for found in fences.to_state()] == [
        (5, 5, 5),
        (0, 5, 5),
    ]
    assert Fences(fences.to_state()).to_state() == fences.to_state()


@given(st.permutations(range(12)), st.data())
def test_translations_do_not_depend_on_the_order_in_which_transactions_end(
    order: list[int], data: st.DataObject
) -> None:
    """Runs of sidecar entries that end in any order come to the same state, which answers for
    each entry."""
    kinds = [data.draw(st.sampled_from(("committed", "aborted", "open"))) for _ in order]
    entry, targets = 0, list[Translated]()
    for number, kind in enumerate(kinds):
        if kind == "committed":
            entry += data.draw(st.sampled_from((0, 0, 5)))  # ordinary entries between two markers
            targets.append(Translated((9 if number < 6 else 11, entry), True))
            entry += 3
        else:
            targets.append(Translated((9, data.draw(st.sampled_from((2, 2, 7)))), False))
    ended = [number for number in order if kinds[number] != "open"]
    translations, in_order = Translations(), Translations()
    for course, chosen in ((ended, translations), (sorted(ended), in_order)):
        for number in course:
            chosen.add(
                (8, 3 * number, 3), targets[number].position, committed=targets[number].exact
            )
    assert translations.to_state() == in_order.to_state()
    assert Translations(translations.to_state()).to_state() == translations.to_state()
    for number, (position, exact) in enumerate(targets):
        for step in range(3):
            expected = (
                None
                if kinds[number] == "open"
                else Translated((position[0], position[1] + step * exact), exact)
            )
            assert translations.find((8, 3 * number + step)) == expected
    assert translations.find((10, 0)) is None


def test_translations_that_go_on_from_each_other_are_one_run_and_go_with_their_target() -> None:
    """A partition that only transactions write to needs one run, however many there were;
    trimming past it forgets it."""
    translations = Translations()
    for number in range(1000):
        translations.add((8, 2 * number, 2), (9, 2 * number), committed=True)
    assert [[*found.firsts] for found in translations.to_state()] == [[0]]
    translations.add((8, 2000, 5), (9, 1999), committed=False)
    translations.trim((9, 1999))
    assert translations.find((8, 0)) == Translated((9, 0), True), (
        "the run is needed still, as a whole"
    )
    translations.trim((9, 2000))
    assert translations.to_state() == ()


def test_targets_of_a_restored_map_are_found_again() -> None:
    """A restored map names ledgers by their order, one that has grown by when they came: both
    answer alike."""
    translations = Translations()
    translations.add((10, 0, 1), (11, 3), committed=True)
    translations.add((10, 4, 1), (9, 3), committed=True)
    [state] = translations.to_state()
    assert (state.targets, state.codes) == ((9, 11), array("I", [3, 1]))
    restored = Translations((state,))
    restored.add((12, 0, 1), (9, 9), committed=False)
    assert [restored.find(position) for position in ((10, 0), (10, 4), (12, 0))] == [
        Translated((11, 3), True),
        Translated((9, 3), True),
        Translated((9, 9), False),
    ]
