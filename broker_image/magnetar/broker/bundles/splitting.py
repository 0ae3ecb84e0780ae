"""Dividing a bundle.

Owns: a split, from the request to the children in service at the same broker. Imports: ownership
rules, metadata, siblings.

The owner writes Splitting, prepares the children's manifests while it serves, freezes the bundle,
ends its term by RELEASE, and commits one transaction: the parent is Deleted, the children are
Owned, the namespace has their boundaries, and their manifests are current. The topics stay in
memory with their clients, whose requests are buffered. The pause is a flush and a compare-and-swap.
Invariants: either nothing of a split is in the store but the Splitting record, or all of it; after
RELEASE the parent's term is over: a split that turns out to be impossible then leaves the bundle
Free, to be assigned again; children begin with every topic and log range that their parent had.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import structlog

from magnetar.broker.bundles.acquiring import Make
from magnetar.broker.bundles.assigning import Assigner
from magnetar.broker.bundles.boundaries import (
    BoundariesRefused,
    keep_copies,
    namespace_of,
    until_committed,
)
from magnetar.broker.bundles.bundle import OwnedBundle, RecoveredBundle
from magnetar.broker.bundles.events import BundleEvents
from magnetar.broker.bundles.records import BundleRecords
from magnetar.broker.bundles.served import ServedBundles
from magnetar.broker.bundles.split_planning import (
    FileShares,
    SplitPlan,
    SplitPlanner,
)
from magnetar.broker.context import BrokerContext
from magnetar.broker.reading.catalog import BundleCatalog
from magnetar.errors import ServiceNotReady, StorageError, StoreError
from magnetar.hosting.views import ClusterViews, Viewed
from magnetar.metadata import keys
from magnetar.metadata.records import BundleRecord, BundleState, LogPosition
from magnetar.names import BundleName
from magnetar.ownership import rules as rules
from magnetar.ownership.splits import children_of_split
from magnetar.topics.ledger_ids import LedgerIds

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Split:
    """One split that is being carried out."""

    bundle: BundleName
    splitting: Viewed[BundleRecord]
    epoch: int
    shares: FileShares
    attempted: list[SplitPlan] = field(default_factory=list)
    """Plans whose transaction was sent."""


class Splitter:
    """Divides bundles that this broker serves."""

    def __init__(
        self,
        context: BrokerContext,
        views: ClusterViews,
        records: BundleRecords,
        served: ServedBundles,
        events: BundleEvents,
        make: Make,
        assigner: Assigner,
    ) -> None:
        self._context, self._views, self._records = context, views, records
        self._served, self._events, self._make = served, events, make
        self._assigner = assigner
        self._planner = SplitPlanner(context)
        self._called_off: dict[str, str] = {}

    async def request(
        self, bundle: BundleName, boundaries: tuple[int, ...], reason: str = "split requested"
    ) -> list[BundleName]:
        """Divide a bundle that is served here at `boundaries`; its children, once they are in
        service.

        Raises NotOwner, NotAllowed, ServiceNotReady while the bundle changes hands or if the split
        was called off, StoreError, StorageError.
        """
        self._assigner.require_staying(str(bundle))
        name, children = str(bundle), children_of_split(bundle, boundaries)
        owned = self._served.require(name)
        await self._planner.check(bundle, boundaries)
        self._called_off.pop(name, None)
        viewed = self._records.settled(name)
        if viewed is None:
            raise ServiceNotReady(
                f"bundle {name} is being unloaded, split or merged; try again in a moment"
            )
        committed = None
        # Again if our own checkpoint changed the record first. If the answer was lost, the split
        # may be under way or over by now: its outcome is looked at next.
        while committed is None and viewed is not None:
            wanted = rules.split(viewed.record, bundle, boundaries, reason)
            committed = await self._records.commit(name, viewed.mod_revision, wanted)
            viewed = self._records.settled(name)
        while self._served.get(name) is owned and self._records.settled(name) is None:
            await self._events.of(name).wait()
        after, reason = self._records.get(name), self._called_off.pop(name, "")
        if reason or (after is not None and after.record.state is not BundleState.DELETED):
            reason = reason or "this broker has lost it"
            raise ServiceNotReady(
                f"bundle {name} was not split: {reason}; look at its namespace and try again"
            )
        return children

    async def carry_out(self, owned: OwnedBundle, splitting: Viewed[BundleRecord]) -> list[str]:
        """From our Splitting record to children in service; their names, none if it was called
        off. Raises Fenced, StorageError."""
        bundle, boundaries = owned.name, splitting.record.boundaries
        shares = FileShares(owned.catalog, children_of_split(bundle, boundaries))
        split = _Split(bundle, splitting, self._records.epoch_of(splitting), shares)
        try:
            plan: SplitPlan | None = await self._plan(split)
        except (StoreError, StorageError, BoundariesRefused):
            plan = None  # tried again once the bundle is frozen
        started = self._context.clock.monotonic()
        owned.freeze(buffering=True)
        end = await owned.append_release()
        try:
            plan = await self._commit(split, plan, end)
        except BoundariesRefused as error:
            await self._call_off(owned, splitting, end, str(error))
            return []
        except rules.TransitionRefused as error:
            self._context.fail(f"bundle {bundle} was taken over during its split: {error}")
            return []
        self._begin(owned, plan, split.epoch)
        buffered, owned.buffered = owned.buffered, None
        if buffered is not None:
            buffered.resume(self._context.listeners.service_url_on)
        owned.non_persistent.close_clients(self._context.listeners.service_url_on)
        self._context.metrics.release_seconds.observe(self._context.clock.monotonic() - started)
        names = [child.name for child in plan.children]
        log.info(
            "bundle.split",
            bundle=str(bundle),
            epoch=split.epoch,
            children=[name.range for name in names],
        )
        return [str(name) for name in names]

    async def _plan(self, split: _Split) -> SplitPlan:
        boundaries = split.splitting.record.boundaries
        return await self._planner.plan(split.bundle, boundaries, split.shares)

    def _begin(self, parent: OwnedBundle, plan: SplitPlan, epoch: int) -> None:
        """Serve the children instead of the parent, from now on. They share an epoch, and so its
        ledger ids."""
        self._served.end(parent)
        ledger_ids = LedgerIds(epoch)
        for planned in plan.children:
            catalog = BundleCatalog(self._context, planned.name, planned.manifest)
            child = self._make(
                planned.name,
                ledger_ids,
                RecoveredBundle({}, catalog, None, fenced=False, records=parent.replay.behind),
            )
            child.take_over(parent)
            self._served.begin(child)

    async def _call_off(
        self, owned: OwnedBundle, splitting: Viewed[BundleRecord], end: LogPosition, reason: str
    ) -> None:
        """The split is refused, and our term is over: free the bundle."""
        name = str(owned.name)
        log.warning("bundle.split_called_off", bundle=name, reason=reason)
        self._called_off[name] = reason
        free = rules.called_off(splitting.record, reason, end=end)
        if not await self._records.end_term(name, splitting.mod_revision, free):
            self._context.fail(f"bundle {name} was taken over during its split")
            return
        owned.close_clients(None)
        self._served.end(owned)

    async def _commit(self, split: _Split, plan: SplitPlan | None, end: LogPosition) -> SplitPlan:
        """The transaction, again until it is done; the plan that was committed. Raises
        BoundariesRefused, TransitionRefused, Fenced."""
        bundle, revision = split.bundle, split.splitting.mod_revision
        deleted, records = rules.divided(split.splitting.record, bundle, epoch=split.epoch, end=end)
        kept = False

        async def attempt(plan: SplitPlan) -> bool:
            nonlocal kept
            if not kept:
                # Not before: a rebuild of a lost store takes children that have copies for real,
                # and they are nothing without manifests.
                await keep_copies(self._context.log, records, split.epoch)
                kept = True
            split.attempted.append(plan)
            result = await self._context.store.transact(
                *plan.transaction(bundle, revision, deleted, records)
            )
            if result.succeeded:
                self._observe(bundle, plan, deleted, records, result.revision)
            return result.succeeded

        return await until_committed(
            str(bundle),
            plan,
            partial(self._plan, split),
            attempt,
            partial(self._done_before, split),
        )

    def _observe(
        self,
        bundle: BundleName,
        plan: SplitPlan,
        deleted: BundleRecord,
        records: Mapping[BundleName, BundleRecord],
        revision: int,
    ) -> None:
        """Take what we have committed, ahead of the watch. The children's records first: a request
        that finds the parent Deleted looks for them."""
        for child, record in records.items():
            self._views.bundles.observe(str(child), record.encode(), revision)
        self._views.namespaces.observe(str(bundle.namespace), plan.namespace.encode(), revision)
        self._views.bundles.observe(str(bundle), deleted.encode(), revision)

    # --- outcomes that we did not learn of --------------------------------------------------------

    async def _done_before(self, split: _Split) -> SplitPlan | None:
        """The attempt that was committed though its answer was lost; None if none was. Raises
        TransitionRefused if others took the bundle."""
        store, bundle, attempted = self._context.store, split.bundle, split.attempted
        item = await store.get(keys.bundle(bundle))
        if item is not None and item.mod_revision == split.splitting.mod_revision:
            return None
        found = [
            await store.get(keys.bundle(child.name))
            for child in (attempted[-1].children if attempted else ())
        ]
        if not any(
            child is not None and split.epoch in BundleRecord.decode(child.value).epochs
            for child in found
        ):
            state = BundleRecord.decode(item.value).state if item is not None else "gone"
            raise rules.TransitionRefused(f"state: the record is {state}")
        for child in found:
            if child is not None:
                self._views.bundles.observe(
                    child.key.removeprefix(keys.BUNDLES), child.value, child.mod_revision
                )
        _, namespace = await namespace_of(store, bundle)
        self._views.namespaces.observe(
            str(bundle.namespace), namespace.value, namespace.mod_revision
        )
        if item is not None:
            self._views.bundles.observe(str(bundle), item.value, item.mod_revision)
        return await self._planner.as_committed(attempted[-1])
