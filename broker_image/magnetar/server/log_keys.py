"""Keys of sealed log files.

Owns: the entry of each file this broker seals in the metadata store: whose bundles it holds. Imports: metadata, names, server siblings.
Invariants: a roll never waits for a key; a key that cannot be written now is tried until it is, or until the broker stops (takers list the
incarnation's files from storage, so a missing key loses nothing).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from magnetar.errors import NamespaceNotFound, StoreError
from magnetar.metadata import keys
from magnetar.metadata.records import LogFileRecord
from magnetar.names import BundleName, TopicName
from magnetar.server.context import BrokerContext

log = structlog.get_logger(__name__)

STORE_RETRY_S = 0.1


class LogKeys:
    """Writes the keys of one incarnation's log files."""

    def __init__(self, context: BrokerContext, bundle_of: Callable[[TopicName], Awaitable[BundleName]]) -> None:
        self._context, self._bundle_of = context, bundle_of
        self._publishing: dict[asyncio.Task[None], None] = {}

    def publish(self, number: int, length: int, topics: dict[str, list[int]]) -> None:
        """Make file `number`, sealed at `length` bytes, known; `topics` has the epochs of each topic in it."""
        task = asyncio.create_task(self._publish(number, length, topics), name="log key")
        self._publishing[task] = None
        task.add_done_callback(lambda done: self._publishing.pop(done, None))

    async def _publish(self, number: int, length: int, topics: dict[str, list[int]]) -> None:
        bundles: dict[str, set[int]] = {}
        for topic, epochs in topics.items():
            if (bundle := await self._bundle_if_any(TopicName.parse(topic))) is not None:
                bundles.setdefault(str(bundle), set()).update(epochs)
        record = LogFileRecord(length=length, bundles={name: tuple(sorted(epochs)) for name, epochs in sorted(bundles.items())})
        while True:
            try:
                await self._context.store.put(keys.log_file(self._context.incarnation, number), record.encode())
                return
            except StoreError as error:
                log.warning("log.key_delayed", file=number, error=str(error))
                await asyncio.sleep(STORE_RETRY_S)

    async def _bundle_if_any(self, topic: TopicName) -> BundleName | None:
        """The bundle of a topic; None once its namespace is deleted: nobody needs its files then."""
        while True:
            try:
                return await self._bundle_of(topic)
            except NamespaceNotFound:
                return None
            except StoreError as error:
                log.warning("log.key_delayed", topic=str(topic), error=str(error))
                await asyncio.sleep(STORE_RETRY_S)

    async def stop(self) -> None:
        """Cancel what is under way."""
        tasks = list(self._publishing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
