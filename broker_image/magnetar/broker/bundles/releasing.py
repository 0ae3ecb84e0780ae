"""Releasing bundles: the source's side of a planned move.

Owns: asking for a move or a pin of a bundle that is served here, and carrying a move out. Imports:
ownership rules, metadata. Source: transition rule of PIP-192, transfer of PIP-307.

Invariants: consumers are disconnected before RELEASE is written, and what they acknowledged before
they read that is written before RELEASE, so that the new owner does not deliver it again;
publishing continues until the freeze; after RELEASE nothing of this term is written.
"""

from __future__ import annotations

import asyncio

import structlog

from magnetar.broker.bundles.assigning import Assigner
from magnetar.broker.bundles.bundle import OwnedBundle
from magnetar.broker.bundles.checkpointer import Checkpointer
from magnetar.broker.bundles.events import BundleEvents
from magnetar.broker.bundles.log_rolling import LogRoller
from magnetar.broker.bundles.records import BundleRecords
from magnetar.broker.bundles.served import ServedBundles
from magnetar.broker.context import BrokerContext
from magnetar.errors import DestinationRefused, ServiceNotReady
from magnetar.hosting.advertised import Successor
from magnetar.hosting.views import ClusterViews, Viewed
from magnetar.metadata.records import BundleRecord
from magnetar.ownership import rules as rules

log = structlog.get_logger(__name__)

MOVE_SCAN_BYTES_MAX = 2 << 20
"""A new owner replays this much of the log in some milliseconds: not worth a checkpoint before
the move."""
PRELOAD_S_MIN, PRELOAD_S_MAX, PRELOAD_BYTES_PER_S = 0.02, 0.5, 20 << 20
"""How long a source serves while the destination reads ahead: some time to begin, and what reading
takes at about this pace."""


class Releaser:
    """Transfers bundles in `served` to other brokers."""

    def __init__(
        self,
        context: BrokerContext,
        views: ClusterViews,
        records: BundleRecords,
        served: ServedBundles,
        events: BundleEvents,
        roller: LogRoller,
        checkpointer: Checkpointer,
        assigner: Assigner,
    ) -> None:
        self._context, self._views, self._events = context, views, events
        self._records, self._served = records, served
        self._roller, self._checkpointer, self._assigner = roller, checkpointer, assigner
        self._permits = asyncio.Semaphore(context.settings.moves_parallel_max)

    # --- asking for it ----------------------------------------------------------------------------

    async def request(
        self, name: str, destination: str, reason: str, *, pinned_until_ms: int = 0
    ) -> None:
        """Ask for a planned move; `destination` "" lets the release choose. Returns when the bundle
        is transferred.

        Raises NotOwner if it is not ours, DestinationRefused. A move to nowhere (no other broker)
        frees the bundle cleanly.
        """
        async with self._permits:
            owned = self._served.require(name)
            # Placement replaces a destination that is gone, also during the transfer.
            if (
                self._views.incarnations.get(destination) is not None
                and destination not in self._assigner.candidates()
            ):
                raise DestinationRefused(
                    f"destination: {destination} takes no bundles: it is draining or cordoned; "
                    "choose another"
                )
            # Again if our own checkpoint changed the record first; never on the record of a broker
            # that took the bundle from us.
            while self._served.get(name) is owned:
                viewed = self._records.settled(name)
                if viewed is None:  # until it has left; a merge may also be called off
                    await self._events.of(name).wait()
                    continue
                # now, so that it can begin to read
                wanted = destination or await self._choose_destination(name, viewed.record)
                pinned = pinned_until_ms if wanted == destination else 0
                releasing = rules.release(
                    viewed.record, wanted, reason=reason, pinned_until_ms=pinned
                )
                await self._records.commit(name, viewed.mod_revision, releasing)

    async def pin(self, name: str, until_ms: int) -> None:
        """Have load balancing leave the bundle here until then; 0: no longer. Raises NotOwner,
        ServiceNotReady, StoreError."""
        owned = self._served.require(name)
        while self._served.get(name) is owned:
            viewed = self._records.settled(name)
            if viewed is None:
                raise ServiceNotReady(
                    f"bundle {name} is being unloaded, split or merged; try again in a moment"
                )
            pinned = rules.pin(viewed.record, until_ms)
            if await self._records.commit(name, viewed.mod_revision, pinned) is not None:
                log.info("bundle.pinned", bundle=name, until_ms=until_ms)
                return

    # --- doing it ---------------------------------------------------------------------------------

    async def carry_out(
        self, name: str, owned: OwnedBundle, releasing: Viewed[BundleRecord]
    ) -> None:
        """From our Releasing record to another broker's Assigning (or Free).

        Checkpoint, disconnect consumers, freeze, flush, RELEASE, commit, disconnect producers.
        """
        releasing = await self._prepare(name, owned, releasing)
        record, revision = releasing.record, releasing.mod_revision
        await owned.disconnect_consumers(self._address_of(record.destination))
        started = self._context.clock.monotonic()
        owned.freeze()
        end = await owned.append_release()
        self._context.metrics.release_seconds.observe(self._context.clock.monotonic() - started)
        destination = await self._choose_destination(name, record)
        released = rules.released(record, destination, end=end)
        if not await self._records.end_term(name, revision, released):
            self._context.fail(f"bundle {name} was taken over during its release")
            return
        log.info(
            "bundle.released",
            bundle=name,
            epoch=record.epoch,
            destination=destination or "none",
            reason=record.reason,
        )
        # At once: while the new owner reads the rest and commits, our clients reach it and wait
        # there (PIP-307).
        owned.close_clients(self._address_of(destination))
        self._served.end(owned)
        self._roller.roll_soon()

    def _address_of(self, incarnation: str) -> Successor | None:
        """Where clients reach a broker; None: they look their topics up, and wait there until
        the bundle has an owner."""
        viewed = self._views.incarnations.get(incarnation) if incarnation else None
        return viewed.record.service_url_on if viewed is not None else None

    async def _prepare(
        self, name: str, owned: OwnedBundle, releasing: Viewed[BundleRecord]
    ) -> Viewed[BundleRecord]:
        """While still serving: shorten a long chain, and let the destination read it; the record
        to release."""
        record = releasing.record
        written = await self._checkpointer.checkpoint_if_long(
            owned, record, scan_bytes_max=MOVE_SCAN_BYTES_MAX
        )
        if written is not None:
            record = rules.advance_checkpoint(record, written.pointer)
            revision = await self._records.commit(name, releasing.mod_revision, record)
            if revision is None:
                # another broker has changed the record, which the release will find out
                return releasing
            releasing = Viewed(record, revision)
        if record.destination:
            await asyncio.sleep(
                min(
                    PRELOAD_S_MAX,
                    PRELOAD_S_MIN + self._roller.chain_bytes(record) / PRELOAD_BYTES_PER_S,
                )
            )
        return releasing

    async def _choose_destination(self, name: str, record: BundleRecord) -> str:
        wanted = self._views.incarnations.get(record.destination)
        if record.destination and wanted is not None:
            return record.destination
        if self._views.namespaces.get(name.rpartition("/")[0]) is None:
            return ""  # deleted: no client needs the bundle
        try:
            return await self._assigner.placer.choose(name, (self._context.incarnation,))
        except ServiceNotReady:
            return ""
