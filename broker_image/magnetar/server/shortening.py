"""Keeping recovery short.

Owns: when a checkpoint is written and pointed to, and which sealed files a manifest takes in on the way. Imports: balance (transition rules),
metadata, server siblings.
Source: DESIGN 5 (recovery chain). Invariants: it only saves work: a store or a volume in trouble delays it and harms nothing; nothing leaves
the chain before the checkpoint that covers it is durable; one bundle is worked on by one task at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

import structlog

from magnetar.balance import bundles as rules
from magnetar.errors import NotOwner, ServiceNotReady, StorageError, StoreError
from magnetar.metadata.records import BundleRecord, BundleState, CheckpointPointer
from magnetar.server.bundle import OwnedBundle
from magnetar.server.bundle_records import commit_record
from magnetar.server.context import BrokerContext
from magnetar.server.rolling import LogRoller
from magnetar.server.views import ClusterViews, Viewed

log = structlog.get_logger(__name__)


class BundleWork(Protocol):
    """The tasks that work on bundles, one per bundle."""

    def busy(self, name: str) -> bool: ...

    def begin(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...


class Shortener:
    """Writes checkpoints of the bundles in `owned`, when asked and when chains grow."""

    def __init__(
        self, context: BrokerContext, views: ClusterViews, owned: Mapping[str, OwnedBundle], roller: LogRoller, work: BundleWork
    ) -> None:
        self._context, self._views, self._owned, self._roller, self._work = context, views, owned, roller, work

    async def shorten(self, owned: OwnedBundle, record: BundleRecord, scan_bytes_max: int) -> CheckpointPointer | None:
        """A checkpoint that lets whoever comes next skip most of the chain; None if the chain is short, or it cannot be had now."""
        if self._roller.chain_bytes(record) <= scan_bytes_max:
            return None
        try:
            # The start of a small file is good enough, unless our term began inside it: a checkpoint may not lie before that.
            always = self._context.log.position.file == record.chain[-1].start.file
            position = await self._roller.roll("checkpoint", always=always)
            start = record.chain[-1].start
            if (position.file, position.offset) < (start.file, start.offset):
                return None  # this roll was under way before our term began; the next sealed file tries again
            await owned.catalog.cover(record, position)
            pointer = await owned.write_checkpoint(position)
            # Before it is pointed to, so that the newest copy in the log never needs what the store's record has let go of.
            owned.append_term(rules.advance_checkpoint(record, pointer))
            await self._context.log.barrier()
            return pointer
        except (StoreError, StorageError, ServiceNotReady) as error:
            # It only saves work: a store that is away must neither end us nor hold up a move. The next sealed file tries again.
            log.warning("bundle.checkpoint_delayed", bundle=str(owned.name), error=str(error))
            return None

    def shorten_long_chains(self) -> None:
        """Begin checkpoints of bundles whose chains have grown too long."""
        limit = self._context.settings.checkpoint_files_max * self._context.settings.log_file_bytes
        for name, owned in self._owned.items():
            viewed = self._views.bundles.get(name)
            if viewed is None or self._work.busy(name) or viewed.record.state is not BundleState.OWNED:
                continue
            if self._roller.chain_bytes(viewed.record) > limit:
                self._work.begin(name, self._checkpoint(name, owned, viewed))

    async def _checkpoint(self, name: str, owned: OwnedBundle, viewed: Viewed[BundleRecord]) -> None:
        pointer = await self.shorten(owned, viewed.record, scan_bytes_max=-1)
        if pointer is None or self._owned.get(name) is not owned:
            return
        advanced = rules.advance_checkpoint(viewed.record, pointer)
        if await commit_record(self._context, self._views, name, viewed.mod_revision, advanced) is not None:
            log.info("bundle.checkpoint", bundle=name, object=pointer.object)

    async def checkpoint(self, name: str) -> None:
        """Write a checkpoint of a bundle we serve and point to it, however short its chain is; nothing if it is being worked on."""
        owned, viewed = self._owned.get(name), self._views.bundles.get(name)
        if owned is None or viewed is None or self._work.busy(name) or viewed.record.state is not BundleState.OWNED:
            return
        await asyncio.wait([self._work.begin(name, self._checkpoint(name, owned, viewed))])

    async def cover(self, name: str) -> None:
        """Make everything acknowledged so far in a bundle readable from sealed, manifest-listed files. Raises NotOwner, StorageError."""
        owned, viewed = self._owned.get(name), self._views.bundles.get(name)
        if owned is None or viewed is None or not owned.serving:
            raise NotOwner(f"bundle {name} is not served by this broker; ask its owner")
        position = await self._roller.roll("requested", always=True)
        await owned.catalog.cover(viewed.record, position)
