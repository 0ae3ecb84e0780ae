"""What a backlog beyond its quota leads to.

Owns: the decision. Imports: policies. Pure. Producer_request_hold and producer_exception keep
producers away; consumer_backlog_eviction moves the slowest cursors on until nine tenths of the
limit are left. Invariants: within all quotas nothing happens; producers are kept away as long as
one of the quotas that say so is exceeded, and an exception counts before a hold; eviction touches
only subscriptions that are beyond the limit, and only entries that bring them below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from magnetar.policies import BacklogQuota
from magnetar.policy_shapes import DESTINATION_STORAGE, EVICT, HOLD, MESSAGE_AGE, REFUSE

EVICTION_SHARE = 0.9


class Verdict(NamedTuple):
    """`block` is HOLD, REFUSE or "". Backlogs are to shrink to `evict_to_bytes` and to lose what
    is older than `evict_older_s`, -1 = not at all."""

    block: str = ""
    evict_to_bytes: int = -1
    evict_older_s: int = -1


WITHIN = Verdict()


def judge(quotas: Mapping[str, BacklogQuota], backlog_bytes: int, oldest_age_s: float) -> Verdict:
    """What to do about a topic whose slowest subscription has `backlog_bytes` before it, the
    first of them of `oldest_age_s`."""
    size, age = quotas.get(DESTINATION_STORAGE), quotas.get(MESSAGE_AGE)
    exceeded = []
    verdict = WITHIN
    if size is not None and 0 <= size.limit_bytes < backlog_bytes:
        exceeded.append(size.policy)
        if size.policy == EVICT:
            verdict = verdict._replace(evict_to_bytes=int(size.limit_bytes * EVICTION_SHARE))
    if age is not None and 0 <= age.limit_s < oldest_age_s:
        exceeded.append(age.policy)
        if age.policy == EVICT:
            verdict = verdict._replace(evict_older_s=age.limit_s)
    block = next((policy for policy in (REFUSE, HOLD) if policy in exceeded), "")
    return verdict._replace(block=block)
