"""Finding whose a sidecar entry is, against walking all open transactions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import Span
from magnetar.transactions.topic import parts as open_parts
from magnetar.transactions.topic.parts import GONE_HELD_MAX, OpenSpans

STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("send"), st.integers(0, 3), st.integers(1, 4), st.booleans(), st.integers(0, 1)
        ),
        st.tuples(st.just("end"), st.integers(0, 3)),
        st.tuples(st.just("again"), st.integers(0, 60)),
        st.tuples(st.just("restore")),
    ),
    max_size=60,
)


@given(STEPS, st.integers(0, 5))
def test_an_entry_is_found_as_if_all_transactions_were_walked(
    steps: list[tuple[object, ...]], gone_held_max: int
) -> None:
    """However transactions are mixed, in several ledgers, through repetitions of what replay
    brings, and from a checkpoint."""
    still_open, sent = dict[TxnId, list[Span]](), list[tuple[TxnId, Span]]()
    spans = OpenSpans(still_open.__contains__)
    ledger, entry, begun = 2, 0, list(range(4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_parts, "GONE_HELD_MAX", gone_held_max)
        for step in steps:
            match step:
                case ("send", int(slot), int(count), bool(rolled), int(point)):
                    if rolled:
                        ledger, entry = ledger + 2, 0
                    txn, span = TxnId(0, begun[slot]), Span(ledger, entry, count, (3, point))
                    entry += count
                    still_open.setdefault(txn, []).append(span)
                    sent.append((txn, span))
                    spans.add(txn, span)
                case ("end", int(slot)):
                    ended = still_open.pop(TxnId(0, begun[slot]), [])
                    begun[slot] += 4
                    spans.ended(len(ended))
                case ("again", int(at)) if sent:
                    spans.add(*sent[at % len(sent)])
                case ("restore",):
                    spans = OpenSpans(
                        still_open.__contains__,
                        ((span, txn) for txn, known in still_open.items() for span in known),
                    )
            for _, span in sent:
                for position in (
                    (span.ledger, span.first + at) for at in range(-1, span.entries + 1)
                ):
                    found = spans.find(position)
                    assert (found.send_point if found is not None else None) == _walked(
                        still_open, position
                    )


def _walked(
    still_open: dict[TxnId, list[Span]], position: tuple[int, int]
) -> tuple[int, int] | None:
    for spans in still_open.values():
        for span in spans:
            if span.ledger == position[0] and span.first <= position[1] < span.first + span.entries:
                return span.send_point
    return None


def test_spans_of_ended_transactions_are_let_go_of() -> None:
    """While one that is older than all of them stays open."""
    still_open, asked = {TxnId(1, 0)}, list[TxnId]()

    def is_open(txn: TxnId) -> bool:
        asked.append(txn)
        return txn in still_open

    spans = OpenSpans(is_open)
    spans.add(TxnId(1, 0), Span(2, 0, 1, (3, 0)))
    for number in range(1, 10 * GONE_HELD_MAX):
        spans.add(TxnId(0, number), Span(2, number, 1, (3, number)))
        spans.ended(1)
    assert len(asked) < 20 * GONE_HELD_MAX, "each is looked at a few times at most"
    asked.clear()
    assert all(spans.find((2, number)) is None for number in range(1, 10 * GONE_HELD_MAX))
    assert len(asked) <= 2 * GONE_HELD_MAX, "few are there still"
    assert spans.find((2, 0)) == Span(2, 0, 1, (3, 0))
