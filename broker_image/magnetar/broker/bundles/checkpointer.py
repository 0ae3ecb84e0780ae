"""Keeping recovery short.

Owns: when a checkpoint is written, when the bundle's record points to it, and which sealed files
the manifest takes in with it. Imports: ownership rules, metadata. Invariants: checkpoints only save
work: a failing store or volume delays them and harms nothing; nothing leaves the chain before the
checkpoint that covers it is durable; one task at a time works on a bundle, and bundles with much to
replay are checkpointed one after another.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import structlog

from magnetar.broker.bundles.bundle import OwnedBundle
from magnetar.broker.bundles.log_rolling import LogRoller
from magnetar.broker.bundles.records import BundleRecords
from magnetar.broker.bundles.served import ServedBundles
from magnetar.broker.bundles.work import BundleWork
from magnetar.broker.context import BrokerContext
from magnetar.errors import NotOwner, ServiceNotReady, StorageError, StoreError
from magnetar.hosting.views import Viewed
from magnetar.metadata.records import BundleRecord, BundleState, CheckpointPointer
from magnetar.ownership import rules as rules

log = structlog.get_logger(__name__)


class CheckpointWritten(NamedTuple):
    """A written checkpoint of `size` bytes to which no record points yet. It has what was written
    when the bundle's count was `total`."""

    pointer: CheckpointPointer
    total: int
    size: int


class Checkpointer:
    """Writes checkpoints of the bundles in `served`, when asked and when chains grow."""

    def __init__(
        self,
        context: BrokerContext,
        records: BundleRecords,
        served: ServedBundles,
        roller: LogRoller,
        work: BundleWork,
    ) -> None:
        self._context, self._records, self._served = context, records, served
        self._roller, self._work = roller, work
        self._asked: dict[str, None] = {}
        self._asking: asyncio.Task[None] | None = None
        self._stopped = False

    async def checkpoint_if_long(
        self, owned: OwnedBundle, record: BundleRecord, scan_bytes_max: int
    ) -> CheckpointWritten | None:
        """A checkpoint that lets the next owner skip most of the chain; None if the chain is
        short, or no checkpoint can be written now."""
        if self._roller.chain_bytes(record) <= scan_bytes_max:
            return None
        total = owned.replay.total
        try:
            # The start of a small file is good enough, unless our term began inside it: a
            # checkpoint may not lie before that.
            always = self._context.log.position.file == record.chain[-1].start.file
            position = await self._roller.roll("checkpoint", always=always)
            start = record.chain[-1].start
            if position < start:
                # this roll was under way before our term began; the next sealed file tries again
                return None
            await owned.catalog.cover(record, position)
            pointer, size = await owned.write_checkpoint(position)
            # Before it is pointed to: the newest copy of the record in the log never needs what the
            # store's record has dropped.
            owned.append_term(rules.advance_checkpoint(record, pointer))
            await self._context.log.barrier()
            return CheckpointWritten(pointer, total, size)
        except (StoreError, StorageError, ServiceNotReady) as error:
            # A checkpoint only saves work: a store that is unavailable neither ends this broker nor
            # delays a transfer. The next sealed file tries again.
            log.warning("bundle.checkpoint_delayed", bundle=str(owned.name), error=str(error))
            return None
        except Exception as error:
            self._context.metrics.surprises.note("checkpoint", error, bundle=str(owned.name))
            return None

    def checkpoint_long_chains(self) -> None:
        """Begin checkpoints of bundles whose chains have grown too long."""
        limit = self._context.settings.checkpoint_files_max * self._context.settings.log_file_bytes
        for name, owned in self._served.by_name.items():
            viewed = self._idle(name)
            if viewed is not None and self._roller.chain_bytes(viewed.record) > limit:
                self._work.begin(name, self._checkpoint(name, owned, viewed))

    def _idle(self, name: str) -> Viewed[BundleRecord] | None:
        """The record of a bundle that is owned, and that no task works on."""
        viewed = self._records.get(name)
        if viewed is None or self._work.busy(name) or viewed.record.state is not BundleState.OWNED:
            return None
        return viewed

    async def _checkpoint(
        self, name: str, owned: OwnedBundle, viewed: Viewed[BundleRecord]
    ) -> None:
        """Its errors end nothing: the log and the claim report their own."""
        with self._context.metrics.surprises.contained("checkpoint", bundle=name):
            written = await self.checkpoint_if_long(owned, viewed.record, scan_bytes_max=-1)
            if written is None or self._served.get(name) is not owned:
                return
            advanced = rules.advance_checkpoint(viewed.record, written.pointer)
            try:
                committed = await self._records.commit(name, viewed.mod_revision, advanced)
            except StoreError as error:
                log.warning("bundle.checkpoint_delayed", bundle=name, error=str(error))
                return
            if committed is None:
                return
            owned.replay.covered(written.total, written.size)
            log.info(
                "bundle.checkpoint",
                bundle=name,
                object=written.pointer.object,
                behind=owned.replay.behind,
            )

    async def checkpoint(self, name: str) -> None:
        """Write a checkpoint of a bundle we serve and point to it, however short its chain is;
        does nothing while a task works on it."""
        owned, viewed = self._served.get(name), self._idle(name)
        if owned is None or viewed is None:
            return
        await asyncio.wait([self._work.begin(name, self._checkpoint(name, owned, viewed))])

    def ask(self, name: str) -> None:
        """Write a checkpoint of this bundle, after those that were asked for before."""
        if self._stopped:
            return
        self._asked[name] = None
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._answer(), name="checkpoints")

    @property
    def busy(self) -> bool:
        """Whether a checkpoint that was asked for has not been written yet."""
        return bool(self._asked)

    async def _answer(self) -> None:
        while self._asked:
            name = next(iter(self._asked))
            with self._context.metrics.surprises.contained("checkpoint", bundle=name):
                await self.checkpoint(name)
            self._asked.pop(name, None)

    def stop(self) -> None:
        """No checkpoint that was asked for, or will be, begins any more."""
        self._stopped = True
        if self._asking is not None:
            self._asking.cancel()

    async def cover(self, name: str) -> None:
        """Make everything acknowledged so far in a bundle readable from sealed, manifest-listed
        files. Raises NotOwner, ServiceNotReady, StorageError."""
        owned, viewed = self._served.get(name), self._records.get(name)
        if owned is None or viewed is None or not owned.serving:
            raise NotOwner(f"bundle {name} is not served by this broker; ask its owner")
        position = await self._roller.roll("requested", always=True)
        now = self._records.get(name)
        if now is not None and now.record.state is BundleState.MERGING:
            # Both manifests must have taken in the same files: a place of its own is taken first.
            raise ServiceNotReady(f"bundle {name} is being merged; try again in a moment")
        await owned.catalog.cover(viewed.record, position)
