"""A stored topic over a durable metadata store, for tests of jobs."""

from __future__ import annotations

from magnetar.clock import SystemClock
from magnetar.metadata.backends.embedded import EmbeddedStore
from tests.spark.topics import StoredTopic


class DurableTopic(StoredTopic):
    """A topic whose store is on disk, closed while the command has it."""

    async def _open(self) -> None:
        await super()._open()
        memory, self.store = (
            self.store,
            await EmbeddedStore.open(self.directory.parent / "metadata", SystemClock()),
        )
        for item in (await memory.range("")).items:
            await self.store.put(item.key, item.value)
        await memory.close()

    async def reopen(self) -> None:
        self.store = await EmbeddedStore.open(self.directory.parent / "metadata", SystemClock())
