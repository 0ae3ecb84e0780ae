"""Reading a bundle ahead of its move.

Owns: `Preloads`: when a record becomes Releasing with this broker as destination, it reads
checkpoint, manifest and log while the source still serves, so that only the last records are left
to read after RELEASE. Imports: storage by `log_scans`, recovery. Invariants: it only saves time:
whatever fails or does not fit in the end is dropped, and recovery reads everything itself; only
records that are certainly durable are applied; at most one preload per bundle.
"""

from __future__ import annotations

import asyncio

import structlog

from magnetar.broker.bundles.records import BundleRecords
from magnetar.broker.bundles.recovery.bundle_recovery import BundleReplay, Preloaded
from magnetar.broker.bundles.recovery.log_scans import LiveRead, LogScans
from magnetar.broker.context import BrokerContext
from magnetar.broker.reading.catalog import BundleCatalog
from magnetar.hosting.shared_task import cancel_all
from magnetar.metadata.records import BundleRecord, BundleState
from magnetar.names import BundleName
from magnetar.topics.ledger_ids import LedgerIds

log = structlog.get_logger(__name__)


class _Preload:
    """One bundle on its way to us."""

    def __init__(
        self,
        context: BrokerContext,
        scans: LogScans,
        bundle: BundleName,
        record: BundleRecord,
        epoch: int,
    ) -> None:
        """`epoch`: above all that is in the log, and not above the one to come."""
        self._context, self._scans, self._bundle = context, scans, bundle
        self.record, self._epoch = record, epoch
        self._reading: LiveRead | None = None
        self._cut = False
        self.task = asyncio.create_task(self._run(), name=f"preload {bundle}")

    async def _run(self) -> Preloaded | None:
        try:
            return await self._read()
        except Exception as error:
            # An old record, or a file that was just collected: recovery will report what is there.
            log.info("bundle.preload_failed", bundle=str(self._bundle), error=repr(error))
            return None

    async def _read(self) -> Preloaded:
        replay = BundleReplay(self._bundle, LedgerIds(self._epoch))
        await replay.load(self._context, self.record.checkpoint)
        *ended, (term, last) = zip(self.record.epochs, self.record.chain, strict=True)
        for former, span in ended:
            await replay.replay(self._scans, former, span)
        catalog = await BundleCatalog.open(self._context, self._bundle)
        self._reading = self._scans.read_live(
            last.incarnation, last.start, term, replay.applier(last.incarnation)
        )
        if self._cut:
            self._reading.cut()
        reached = await self._reading.reached()
        return Preloaded(self.record, replay, catalog, reached, self._reading.over)

    async def finish(self) -> Preloaded | None:
        """What has been read by now."""
        self._cut = True
        if self._reading is not None:
            self._reading.cut()
        return await self.task


class Preloads:
    """The bundles that are being transferred to this broker."""

    def __init__(self, context: BrokerContext, records: BundleRecords, scans: LogScans) -> None:
        self._context, self._records, self._scans = context, records, scans
        self._loading: dict[str, _Preload] = {}

    def look(self, name: str) -> None:
        """The record of a bundle has changed: begin to read one that is coming, forget one that
        is not (any more)."""
        found, viewed = self._loading.get(name), self._records.get(name)
        record = viewed.record if viewed is not None else None
        if record is not None and viewed is not None and self._is_coming(record):
            # The source may point to a newer checkpoint first, which makes what is to be read
            # shorter.
            if found is None or found.record.chain != record.chain:
                self._drop(name)
                bundle, epoch = BundleName.parse(name), self._records.epoch_of(viewed)
                self._loading[name] = _Preload(self._context, self._scans, bundle, record, epoch)
        elif (
            record is None
            or record.state is not BundleState.ASSIGNING
            or record.incarnation != self._context.incarnation
        ):
            self._drop(name)

    def _is_coming(self, record: BundleRecord) -> bool:
        ours = self._context.incarnation
        return (
            record.state is BundleState.RELEASING
            and record.destination == ours != record.incarnation
            and bool(record.chain)
        )

    def _drop(self, name: str) -> None:
        found = self._loading.pop(name, None)
        if found is not None:
            found.task.cancel()

    async def take(self, name: str, assigned: BundleRecord) -> Preloaded | None:
        """What was read ahead of a bundle that we acquire now; None if it is of no use."""
        found = self._loading.pop(name, None)
        if found is None:
            return None
        try:
            preloaded = await found.finish()
        except BaseException:
            found.task.cancel()
            raise
        return preloaded if preloaded is not None and preloaded.fits(assigned) else None

    async def stop(self) -> None:
        """Cancel what is under way."""
        loading, self._loading = self._loading, {}
        await cancel_all(found.task for found in loading.values())
