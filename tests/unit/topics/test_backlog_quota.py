"""Backlog quotas: within them nothing happens, and what happens beyond them is what their
policies say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnetar.policies import BacklogQuota
from magnetar.policy_shapes import DESTINATION_STORAGE, EVICT, HOLD, MESSAGE_AGE, REFUSE
from magnetar.topics.quota import WITHIN, judge

POLICIES = st.sampled_from([HOLD, REFUSE, EVICT])
LIMITS = st.integers(-1, 100)


@given(LIMITS, POLICIES, LIMITS, POLICIES, st.integers(0, 120), st.integers(0, 120))
def test_each_limit_acts_as_its_own_policy_says(
    size: int, size_policy: str, age: int, age_policy: str, backlog: int, oldest_s: int
) -> None:
    """Of two exceeded limits the stricter refusal counts, and both evictions are asked for."""
    quotas = {
        DESTINATION_STORAGE: BacklogQuota(size, -1, size_policy),
        MESSAGE_AGE: BacklogQuota(-1, age, age_policy),
    }
    too_big, too_old = 0 <= size < backlog, 0 <= age < oldest_s
    verdict = judge(quotas, backlog, oldest_s)
    exceeded = {
        policy for policy, beyond in ((size_policy, too_big), (age_policy, too_old)) if beyond
    }
    assert verdict.block == (REFUSE if REFUSE in exceeded else HOLD if HOLD in exceeded else "")
    assert (verdict.evict_to_bytes >= 0) == (too_big and size_policy == EVICT)
    assert verdict.evict_to_bytes <= size
    assert verdict.evict_older_s == (age if too_old and age_policy == EVICT else -1)
    if not exceeded:
        assert verdict == WITHIN


def test_without_quotas_nothing_is_too_much() -> None:
    assert judge({}, 1 << 60, 1e9) == WITHIN
