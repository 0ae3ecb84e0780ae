"""How a coordinator sends many decisions to participants: in turn, a bounded number at once, and
never for long without letting others go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from magnetar.coordinator.metrics import CoordinatorMetrics
from magnetar.coordinator.transactions import DRIVEN_AT_ONCE_MAX, DRIVEN_PER_TURN_MAX, Transactions
from magnetar.errors import ServiceNotReady
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.transactions.coordinator.events import Caller
from magnetar.transactions.ids import TxnId
from magnetar.transactions.records import Action, Participant
from tests.support.brokers import CLOCK, SETTINGS, volume_in
from tests.support.coordinators import begin_life

MANY = 2 * DRIVEN_AT_ONCE_MAX + 100
TIMEOUT_S = 120.0

FULL = "persistent://public/default/"
"""What participants are asked by, whatever the client wrote."""


class Topics:
    """Topics of this process, which carry decisions out while they are `open`: each is
    notified at once, as a topic without entries is."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.notified: list[str] = []
        self.being_notified = self.most_at_once = 0
        self.in_this_turn = self.most_in_a_turn = 0
        self.refusals: dict[str, int] = {}

    async def end_on_partition(self, topic: str, *_how: Any, **_named: Any) -> None:
        if not self.in_this_turn:
            asyncio.get_running_loop().call_soon(self._turn_ends)
        self.in_this_turn += 1
        self.most_in_a_turn = max(self.most_in_a_turn, self.in_this_turn)
        self.being_notified += 1
        self.most_at_once = max(self.most_at_once, self.being_notified)
        try:
            if not self.open.is_set():
                await self.open.wait()
            if self.refusals.get(topic, 0):
                self.refusals[topic] -= 1
                raise ServiceNotReady("not now")
            self.notified.append(topic)
        finally:
            self.being_notified -= 1

    async def end_on_subscription(self, *what: Any, **_named: Any) -> None:
        raise AssertionError(f"{what}: no subscription takes part in anything")

    def _turn_ends(self) -> None:
        self.in_this_turn = 0


@asynccontextmanager
async def driving(
    directory: Path, topics: Topics, store: MemoryStore | None = None, name: str = "life"
) -> AsyncIterator[Transactions]:
    """An incarnation that has begun, and that nothing ends but its end here; over the same
    `store` the next one."""
    settings, failures = replace(SETTINGS, transaction_end_patience_s=0), list[str]()
    async with volume_in(directory) as volume:
        life = await begin_life(store or MemoryStore(CLOCK), volume, name)
        found = Transactions(
            life.core, life.log, topics, CLOCK, settings, CoordinatorMetrics(), failures.append
        )
        found.begin()
        try:
            yield found
        finally:
            await found.stop()
            await life.log.close()
            await life.claim.release(life.core.live)
        assert failures == []


async def begin(found: Transactions, *topics: str) -> TxnId:
    txn = await found.new(60_000, "")
    await found.join(txn.least, tuple(map(Participant, topics)), Caller())
    return txn


async def until_settled(found: Transactions) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while found.live:
            await asyncio.sleep(0)


async def test_one_of_many_participants_is_notified_in_turn_with_others(tmp_path: Path) -> None:
    """A few in each turn of the loop, again those that refused, and one that was decided later
    does not wait for all of them."""

    topics = Topics()
    topics.open.set()
    topics.refusals = {f"{FULL}t1": 2, f"{FULL}t{MANY - 1}": 1}
    async with driving(tmp_path, topics) as found:
        large = await begin(found, *(f"t{number}" for number in range(MANY)))
        small = await begin(found, "small")
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(
                *(found.end(txn.least, Action.COMMIT, Caller()) for txn in (large, small))
            )
        await until_settled(found)
        assert (len(topics.notified), len({*topics.notified})) == (MANY + 1, MANY + 1)
        assert topics.most_in_a_turn <= DRIVEN_PER_TURN_MAX
        assert topics.notified.index(f"{FULL}small") <= 2 * DRIVEN_PER_TURN_MAX


async def test_participants_that_do_not_answer_are_so_many_at_most(tmp_path: Path) -> None:
    """All others wait, and are notified as those answer."""

    topics = Topics()
    async with driving(tmp_path, topics) as found:
        txn = await begin(found, *(f"t{number}" for number in range(MANY)))
        await found.end(txn.least, Action.ABORT, Caller())
        async with asyncio.timeout(TIMEOUT_S):
            while topics.being_notified < DRIVEN_AT_ONCE_MAX:
                await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert topics.being_notified == DRIVEN_AT_ONCE_MAX
        topics.open.set()
        await until_settled(found)
        assert (len(topics.notified), topics.most_at_once) == (MANY, DRIVEN_AT_ONCE_MAX)


async def test_decisions_of_the_previous_incarnation_are_sent_in_turn(tmp_path: Path) -> None:
    """Hundreds of decisions that nobody learned of: the next incarnation sends a few in each
    turn of its loop."""

    store, deaf, topics = MemoryStore(CLOCK), Topics(), Topics()
    number = 3 * DRIVEN_PER_TURN_MAX
    async with driving(tmp_path, deaf, store) as found:
        decided = [await begin(found, f"t{at}") for at in range(number)]
        await asyncio.gather(*(found.end(txn.least, Action.COMMIT, Caller()) for txn in decided))
    topics.open.set()
    async with driving(tmp_path, topics, store, "next") as found:
        assert found.live == number
        await until_settled(found)
    assert (deaf.notified, len(topics.notified), topics.most_in_a_turn) == (
        [],
        number,
        DRIVEN_PER_TURN_MAX,
    )
