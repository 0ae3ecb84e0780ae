"""Lives of a transaction coordinator for tests.

Owns: a number held on a store in memory, its log on a volume in a temporary directory, and a core that was recovered from it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from magnetar.errors import StorageError
from magnetar.metadata.memory import MemoryStore
from magnetar.server.coordinator.claim import CoordinatorClaim
from magnetar.server.coordinator.identity import CoordinatorIdentity
from magnetar.server.coordinator.transaction_log import TransactionLog
from magnetar.storage.volume import Volume
from magnetar.transactions.coordinator import CoordinatorCore, Limits
from magnetar.transactions.coordinator_events import Answer, Event, NewRequested, Write
from tests.unit.server.brokers import CLOCK

FILE_BYTES = 64 << 10
CHECKPOINT_BYTES = 4 << 10


@dataclass
class Life:
    """One life: `answers` are what left it, in order; `failed` is done, with the reason, once nothing leaves it any more."""

    claim: CoordinatorClaim
    lease: int
    log: TransactionLog
    core: CoordinatorCore
    failed: asyncio.Future[StorageError]
    answers: list[Answer] = field(default_factory=list)

    def handle(self, event: Event) -> None:
        for effect in self.core.handle(event):
            if isinstance(effect, Answer):
                self.answers.append(effect)
            elif effect.lazy:
                self.log.hold_back(effect.changes)
            else:
                self.log.append(effect.changes, lambda write=effect: self._durable(write))

    def _durable(self, write: Write) -> None:
        self.answers += [then for then in write.then if isinstance(then, Answer)]

    async def begin(self) -> int:
        """A transaction that was told of; its sequence."""
        self.handle(NewRequested("new", 60_000, "", CLOCK.wall_ms()))
        await self.settled()
        return self.answers.pop().least

    async def settled(self) -> None:
        """Everything appended so far is durable, or never will be."""
        done = asyncio.get_running_loop().create_future()
        self.log.append((), lambda: done.set_result(None))
        await asyncio.wait([done, self.failed], return_when=asyncio.FIRST_COMPLETED)


async def held(store: MemoryStore, name: str, *, tcid: int = 0, restore: int = 0) -> tuple[CoordinatorClaim, int]:
    """A number that was just taken."""
    identity = CoordinatorIdentity(tcid, f"tx-coordinator-{tcid}", f"tx-coordinator-{tcid}.{name}", "pulsar://x:1", "http://x:2")
    claim = CoordinatorClaim(store, CLOCK, identity, restore)
    lease = await store.grant_lease(60)
    await claim.acquire(lease)
    return claim, lease


async def begin_life(
    store: MemoryStore, volume: Volume, name: str, *, tcid: int = 0, restore: int = 0, settle: bool = True
) -> Life:
    """A life that has recovered, and answers if it has settled."""
    claim, lease = await held(store, name, tcid=tcid, restore=restore)
    failed: asyncio.Future[StorageError] = asyncio.get_running_loop().create_future()
    log = TransactionLog(volume, CLOCK, claim, failed.set_result, file_bytes=FILE_BYTES, checkpoint_bytes=CHECKPOINT_BYTES)
    core = CoordinatorCore(tcid, Limits())
    await log.recover(core)
    core.recovered(CLOCK.wall_ms())
    if settle:
        await claim.settle(core.live)
    return Life(claim, lease, log, core, failed)
