"""Keys of sealed log files.

Owns: `logs/<incarnation>/<n>`, the store's record of the bundles that have entries in a sealed
file. Imports: metadata, names, storage's names of files. Invariants: a roll never waits for the
store: the key follows when the store answers; a file without a key is never deleted; the owner of a
file, and the garbage collector for a dead one, write the same key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

import structlog

from magnetar.broker.context import BrokerContext
from magnetar.errors import NamespaceNotFound, StoreError
from magnetar.hosting.shared_task import cancel_all
from magnetar.metadata import keys
from magnetar.metadata.records import LogFileRecord
from magnetar.metadata.store import MetadataStore
from magnetar.names import BundleName, TopicName
from magnetar.storage.gc import LogFile

log = structlog.get_logger(__name__)

STORE_RETRY_S = 0.1


async def sealed_files(
    store: MetadataStore, prefix: str = keys.LOGS
) -> dict[LogFile, LogFileRecord]:
    """Sealed log files as the store has them, of all incarnations or of one (`keys.logs_of`).
    Raises StoreError."""
    found = {}
    for item in (await store.range(prefix)).items:
        incarnation, _, number = item.key.removeprefix(keys.LOGS).rpartition("/")
        found[incarnation, int(number)] = LogFileRecord.decode(item.value)
    return found


class LogKeys:
    """Writes keys; `bundle_of` says which bundle a topic falls into, or raises
    NamespaceNotFound."""

    def __init__(
        self, context: BrokerContext, bundle_of: Callable[[TopicName], Awaitable[BundleName]]
    ) -> None:
        self._context, self._bundle_of = context, bundle_of
        self._publishing: dict[asyncio.Task[None], None] = {}

    def publish(self, number: int, length: int, topics: Mapping[str, Iterable[int]]) -> None:
        """Write the key of our own file `number`, which holds these epochs of these topics, in
        the background."""
        task = asyncio.create_task(self._write_ours(number, length, topics), name="log key")
        self._publishing[task] = None
        task.add_done_callback(lambda done: self._publishing.pop(done, None))

    async def _write_ours(
        self, number: int, length: int, topics: Mapping[str, Iterable[int]]
    ) -> None:
        """An error of one file leaves it without a key until this incarnation has ended."""
        with self._context.metrics.surprises.contained("log keys", file=str(number)):
            await self.write(self._context.incarnation, number, length, topics)

    async def write(
        self, incarnation: str, number: int, length: int, topics: Mapping[str, Iterable[int]]
    ) -> None:
        """Write the key of a sealed file; tries until the store answers."""
        bundles: dict[str, set[int]] = {}
        for topic, epochs in topics.items():
            if (bundle := await self._bundle_if_any(TopicName.parse(topic))) is not None:
                bundles.setdefault(str(bundle), set()).update(epochs)
        record = LogFileRecord(
            length=length,
            bundles={name: tuple(sorted(epochs)) for name, epochs in sorted(bundles.items())},
        )
        while True:
            try:
                await self._context.store.put(keys.log_file(incarnation, number), record.encode())
                return
            except StoreError as error:
                log.warning("log.key_delayed", file=number, error=str(error))
                await asyncio.sleep(STORE_RETRY_S)

    async def _bundle_if_any(self, topic: TopicName) -> BundleName | None:
        """The bundle of a topic; None once its namespace is deleted: its files are not needed
        then."""
        while True:
            try:
                return await self._bundle_of(topic)
            except NamespaceNotFound:
                return None
            except StoreError as error:
                log.warning("log.key_delayed", topic=str(topic), error=str(error))
                await asyncio.sleep(STORE_RETRY_S)

    async def stop(self) -> None:
        """Cancel what is under way; the garbage collector writes the keys of a dead incarnation."""
        await cancel_all(self._publishing)
