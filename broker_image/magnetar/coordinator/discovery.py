"""How clients find the transaction coordinators.

Owns: the answer to look-ups of `transaction_coordinator_assign`. Imports: metadata, names, errors,
broker.ports. Source: Pulsar's protocol: clients ask for the partitions of that topic, look each of
them up and connect there; partition i is coordinator i. Invariants: without a registered set of
coordinators the topic is one like any other, as it is for Apache Pulsar with transactions switched
off; the number of coordinators never names one that has not been ready; while a coordinator
restarts look-ups of it wait; when the set is withdrawn (its resource was deleted, and no number is
held), those look-ups fail at once. Nothing is watched or kept: only the clients of transactions
ask, once each. In a standalone server the only broker is where coordinator 0 is, on every listener:
look-ups are answered as those of any topic.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from magnetar.clock import Clock
from magnetar.errors import Compacted, ServiceNotReady
from magnetar.hosting.settings import BrokerSettings
from magnetar.metadata import keys
from magnetar.metadata.records import CoordinatorClaimRecord, CoordinatorSetRecord
from magnetar.metadata.store import Delete, MetadataStore
from magnetar.names import COORDINATOR_TOPIC, TopicName

FIRST = 0
"""The coordinator that answers for numbers that are not there any more."""


class CoordinatorDiscovery:
    """Answers from the metadata store."""

    def __init__(self, store: MetadataStore, clock: Clock, settings: BrokerSettings) -> None:
        self._store, self._clock, self._settings = store, clock, settings
        self.here = False
        """Whether this process has coordinator 0, and there is no other."""

    async def announced(self, topic: TopicName) -> int:
        """Number of coordinators if `topic` is the one that stands for them and there are any,
        else 0. Raises StoreError."""
        if topic != COORDINATOR_TOPIC:
            return 0
        if self.here:
            return 1
        item = await self._store.get(keys.COORDINATOR_SET)
        return CoordinatorSetRecord.decode(item.value).announced if item is not None else 0

    async def holder_of(self, topic: TopicName) -> CoordinatorClaimRecord | None:
        """Who serves the coordinator that `topic` stands for; None if it stands for none. Raises
        ServiceNotReady, StoreError."""
        if topic.partition < 0 or topic.base != COORDINATOR_TOPIC or self.here:
            return None
        return await self._holder(topic.partition)

    async def _holder(self, tcid: int) -> CoordinatorClaimRecord | None:
        """The holder of a number, or of the first one if that number is not announced and has no
        holder any more; None if none is announced."""
        deadline = self._clock.monotonic() + self._settings.park_timeout_s
        while True:
            present = await self._store.range(keys.COORDINATOR_PRESENCE)
            found = {item.key: item for item in present.items}
            known = found.get(keys.COORDINATOR_SET)
            announced = (
                CoordinatorSetRecord.decode(known.value).announced if known is not None else 0
            )
            if not announced:
                return None
            item = found.get(keys.coordinator_claim(tcid))
            if item is None and tcid >= announced:
                item = found.get(keys.coordinator_claim(FIRST))
            if item is not None:
                return CoordinatorClaimRecord.decode(item.value)
            remaining_s = deadline - self._clock.monotonic()
            if remaining_s <= 0 or not await self._changed(present.revision, remaining_s):
                raise ServiceNotReady(
                    f"transaction coordinator {tcid} of {announced} is not there; look at its pod "
                    "and at kubectl get transactioncoordinators "
                    "(Failed to acquire ownership: its number has no holder)"
                )

    async def _changed(self, revision: int, seconds: float) -> bool:
        """Wait for a change of claims or set after `revision`; False if none came in time.
        Raises StoreError."""
        try:
            async with (
                asyncio.timeout(seconds),
                aclosing(self._store.watch(keys.COORDINATOR_PRESENCE, revision + 1)) as watch,
            ):
                async for _ in watch:
                    return True
        except TimeoutError:
            return False
        except Compacted:
            return True
        return False


async def withdraw(store: MetadataStore) -> None:
    """A server that has no coordinator leads no client to its former one. Raises StoreError."""
    if await store.get(keys.COORDINATOR_SET) is not None:
        await store.transact([], [Delete(keys.COORDINATOR_SET)])
