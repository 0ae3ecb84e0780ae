"""Ledger ids: their layout, and that a term gives each of them once."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import LedgerIdsExhausted, LimitExceeded, Retry
from magnetar.metadata.records import RESTORE_STRIDE, RESTORES_MAX
from magnetar.topics import ledger_ids
from magnetar.topics.ledger_ids import (
    EPOCH_END,
    NUMBERS_MAX,
    LedgerIds,
    epoch_of,
    is_sidecar,
    ledger_of,
    sidecar_ledger,
)
from magnetar.topics.ledgers import LATEST

EPOCHS = st.one_of(
    st.integers(1, EPOCH_END - 1),
    st.builds(
        lambda restore, revision: restore * RESTORE_STRIDE + revision,
        st.integers(0, RESTORES_MAX),
        st.integers(1, 1 << 35),
    ),
)
NUMBERS = st.integers(0, NUMBERS_MAX - 1)
TERMS = st.tuples(EPOCHS, NUMBERS)


@given(TERMS, TERMS)
def test_ids_are_positive_ordered_by_epoch_and_number_and_disjoint(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    """In 63 bits, below LATEST; a sidecar's stands right before its partition's, and after those
    of all terms and numbers before."""
    for epoch, number in (one, other):
        ledger = ledger_of(epoch, number)
        sidecar = sidecar_ledger(ledger)
        assert 0 < sidecar < ledger < LATEST.ledger < 1 << 63
        assert (is_sidecar((sidecar, 0)), is_sidecar((ledger, 0))) == (True, False)
        assert epoch_of(sidecar) == epoch_of(ledger) == epoch
        assert LedgerIds(epoch).floor <= sidecar
        assert ledger < ledger_of(epoch + 1, 0) - 1
    first, second = sorted((one, other))
    if first != second:
        assert ledger_of(*first) < sidecar_ledger(ledger_of(*second))
    if first[0] < second[0]:
        assert ledger_of(*first) < LedgerIds(second[0]).floor


def test_the_greatest_id_is_not_that_of_latest() -> None:
    """The last number of the last epoch: clients name the end of a topic by the ledger of which
    every bit is set."""
    assert ledger_of(EPOCH_END - 1, NUMBERS_MAX - 1) == LATEST.ledger - 2


def test_positions_before_all_are_none_of_a_sidecar() -> None:
    assert not is_sidecar((-1, -1))


@given(EPOCHS, st.integers(1, 50))
def test_a_term_gives_each_id_once_and_rising(epoch: int, count: int) -> None:
    """The children of a split share the ids of their epoch."""
    ids = LedgerIds(epoch)
    given_ids = [ids.take() for _ in range(count)]
    assert given_ids == sorted(set(given_ids))
    assert {epoch_of(ledger) for ledger in given_ids} == {epoch}
    assert given_ids[0] > ids.floor


def test_an_epoch_that_ids_have_no_room_for_is_refused() -> None:
    with pytest.raises(LimitExceeded, match="does not fit"):
        LedgerIds(EPOCH_END)


def test_a_term_says_that_it_runs_low_and_refuses_what_it_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From three quarters on, with every id that is wanted, so that a renewal that failed is
    asked for again."""
    monkeypatch.setattr(ledger_ids, "NUMBERS_MAX", 8)
    ids, asked = LedgerIds(5), list[LedgerIds]()
    ids.running_low = asked.append
    assert list(islice(iter(ids.take, None), 6)) == [ledger_of(5, number) for number in range(6)]
    assert not asked
    assert [ids.take(), ids.take()] == [ledger_of(5, 6), ledger_of(5, 7)]
    for _ in range(2):
        with pytest.raises(LedgerIdsExhausted, match="all 8 ledger ids of its epoch 5") as error:
            ids.take()
    assert error.value.retry is Retry.AFTER_LOOKUP
    assert asked == [ids] * 4
