"""What a broker does for its storage beside serving.

Owns: the periodic round: checkpoints by age, manifest compaction, garbage collection (of the
history of load, too), copies of the metadata store, inquiries about transactions that are open for
long. Imports: siblings. Invariants:
nothing here is needed to serve: what fails is logged and tried again in the next round; one part
runs at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from magnetar.broker.bundles.ownership import Ownership
from magnetar.broker.context import BrokerContext
from magnetar.broker.upkeep.backups import MetadataBackups
from magnetar.broker.upkeep.garbage_collection import GarbageCollector
from magnetar.broker.upkeep.inquiring import Inquiries
from magnetar.broker.upkeep.load_history_collection import LoadHistoryCollector
from magnetar.broker.upkeep.manifest_compaction import ManifestCompactor
from magnetar.broker.upkeep.topic_compaction import TopicCompactor
from magnetar.errors import Fenced, MagnetarError
from magnetar.hosting.views import ClusterViews
from magnetar.metadata.records import BundleRecord, LogPosition

log = structlog.get_logger(__name__)


class Maintenance:
    """Runs for as long as the broker lives; `leading` says whether it also collects for the
    cluster."""

    def __init__(
        self,
        context: BrokerContext,
        views: ClusterViews,
        ownership: Ownership,
        leading: Callable[[], bool],
    ) -> None:
        self._context, self._views = context, views
        self._ownership, self._leading = ownership, leading
        self.garbage_collector = GarbageCollector(context, ownership)
        self.manifest_compactor = ManifestCompactor(context)
        self.backups = MetadataBackups(context)
        self.inquiries = Inquiries(context, ownership)
        self.load_history = LoadHistoryCollector(context, lambda: ownership.balance.current)
        self.topic_compactor = TopicCompactor(context, ownership)
        self._chains: dict[str, tuple[LogPosition, int, float]] = {}

    async def run(self) -> None:
        """One round after another."""
        try:
            while True:
                await asyncio.sleep(self._context.settings.maintenance_s)
                await self.round()
        finally:
            await self.inquiries.close()

    async def round(self) -> None:
        """Checkpoints, then collection of what they cover. A part that fails does not stop the
        others."""
        with self._context.metrics.surprises.contained("maintenance", part="tidying"):
            self.manifest_compactor.forget_others(self._ownership.owned)
        for name in sorted(self._ownership.owned):
            await self._quietly("checkpoint", self._checkpoint_if_old, name)
            await self._quietly("tidying", self._tidy, name)
        await self._quietly("open transactions", self.inquiries.look)
        await self._quietly("topic compaction", self.topic_compactor.look)
        await self._quietly("own files", self.garbage_collector.collect_own)
        if self._leading():
            await self._quietly("files of the dead", self.garbage_collector.collect_dead)
            await self._quietly("objects", self.garbage_collector.collect_objects)
            await self._quietly("backup of the metadata store", self.backups.keep_up)
            await self._quietly("history of load", self.load_history.collect)
        self.garbage_collector.forget_unmet()

    async def _quietly(self, what: str, work: Callable[..., object], *arguments: str) -> None:
        try:
            await work(*arguments)  # type: ignore[misc]
        except Fenced:
            return  # the log ends the broker
        except (MagnetarError, FileNotFoundError) as error:
            log.warning("maintenance.delayed", what=what, about=arguments, error=str(error))
        except Exception as error:
            self._context.metrics.surprises.note(
                "maintenance", error, part=what, about=" ".join(arguments)
            )

    async def _checkpoint_if_old(self, name: str) -> None:
        """Shorten a chain that has reached into finished files, its own or a predecessor's, for
        `checkpoint_age_s`: it pins them. And one with much to replay, whose checkpoint failed."""
        viewed, owned = self._views.bundles.get(name), self._ownership.owned.get(name)
        if owned is not None and owned.replay.is_due:
            await self._ownership.checkpointer.checkpoint(name)
            return
        now = self._context.clock.monotonic()
        if viewed is None or not self._is_long(viewed.record):
            self._chains.pop(name, None)
            return
        chain = viewed.record.chain
        known = self._chains.get(name)
        if known is None or known[:2] != (chain[0].start, len(chain)):
            known = self._chains[name] = (chain[0].start, len(chain), now)
        if now - known[2] >= self._context.settings.checkpoint_age_s:
            await self._ownership.checkpointer.checkpoint(name)

    def _is_long(self, record: BundleRecord) -> bool:
        last = record.chain[-1] if record.chain else None
        if last is None or last.incarnation != self._context.incarnation:
            return False
        return len(record.chain) > 1 or last.start.file < self._context.log.position.file

    async def _tidy(self, name: str) -> None:
        owned = self._ownership.owned.get(name)
        if owned is not None and owned.serving:
            await self.manifest_compactor.tidy(owned)
