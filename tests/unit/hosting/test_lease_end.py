"""ThreadedLeaseKeeper: a caller that stops it may be cancelled, and another may stop it again."""

from __future__ import annotations

import asyncio
import threading

import pytest

from magnetar.clock import SystemClock
from magnetar.hosting.lease_thread import ThreadedLeaseKeeper
from magnetar.metadata.backends.memory import MemoryStore

CLOCK = SystemClock()


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancelled_stop_does_not_keep_the_next_one_from_ending_the_thread(
    turns: int,
) -> None:
    """A broker that fails while it registers again cancels that, and stops the same keeper once
    more."""

    keeper = ThreadedLeaseKeeper(lambda: MemoryStore(CLOCK), CLOCK, 5.0, lambda _reason: None)
    await keeper.start()
    first = asyncio.create_task(keeper.stop(revoke=False))
    for _ in range(turns):
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await asyncio.wait_for(keeper.stop(revoke=True), 120)
    assert "lease" not in {thread.name for thread in threading.enumerate()}
