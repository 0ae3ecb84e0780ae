"""Which attempt at a micro-batch is committed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import CorruptData, InvalidRequest
from magnetar.transactions.ids import TxnId
from magnetar_jobs.batch_commits import Decision, is_decided

NUMBERS = st.integers(0, (1 << 63) - 1)


def test_one_attempt_at_each_micro_batch_is_committed() -> None:
    """The first that is decided; one of an older checkpoint is an error."""
    assert is_decided(None, 0) is False
    last = Decision(4, (TxnId(0, 1),))
    assert is_decided(last, 5) is is_decided(last, 9) is False
    assert is_decided(last, 4) is True
    with pytest.raises(InvalidRequest, match="micro-batch 3 comes after 4 was published"):
        is_decided(last, 3)


@given(NUMBERS, st.lists(st.builds(TxnId, NUMBERS, NUMBERS), max_size=5), st.booleans())
def test_decisions_come_back_as_they_were(batch: int, found: list[TxnId], done: bool) -> None:
    decision = Decision(batch, tuple(found), done)
    assert Decision.decode(decision.encode()) == decision


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"batch": 1, "transactions": [[1]]}'])
def test_what_is_no_decision_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptData, match="is no decision"):
        Decision.decode(data)
