"""Making one bundle of two neighbours.

Owns: a merge, from the request to the merged bundle in service at the broker that owned both.
Imports: ownership rules, metadata, siblings.

The owner makes both records Merging in one transaction, covers both manifests up to one place of
its log, and writes one checkpoint of both and the merged manifest while it serves. It freezes both
bundles, ends both terms by RELEASE, and commits one transaction: the parents are Deleted, the
merged bundle is Owned, the namespace has one boundary less, and the merged manifest is current. The
topics stay in memory with their clients, whose requests are buffered. The pause is a flush and a
compare-and-swap.
Invariants: either nothing of a merge is in the store but the Merging records, or all of it; before
RELEASE a merge that is impossible leaves both bundles in service, after it both are Free, to be
assigned again; the merged bundle begins with every topic and log range that its parents had; its
epoch is above both of theirs.
"""

from __future__ import annotations

import asyncio
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
from magnetar.broker.bundles.log_rolling import LogRoller
from magnetar.broker.bundles.merge_planning import Covered, MergePlan, MergePlanner
from magnetar.broker.bundles.records import BundleRecords, RecordChange
from magnetar.broker.bundles.served import ServedBundles
from magnetar.broker.context import BrokerContext
from magnetar.broker.reading.catalog import BundleCatalog
from magnetar.errors import (
    NotAllowed,
    ServiceNotReady,
    StorageError,
    StoreError,
)
from magnetar.hosting.views import ClusterViews, Viewed
from magnetar.metadata import keys
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    CheckpointPointer,
    LogPosition,
)
from magnetar.names import BundleName
from magnetar.ownership import rules as rules
from magnetar.ownership.merges import Neighbours, right_neighbour
from magnetar.topics.ledger_ids import LedgerIds

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Merge:
    """One merge of bundles that are both Merging, by one transaction."""

    pair: Neighbours
    left: OwnedBundle
    right: OwnedBundle
    left_record: BundleRecord
    right_record: BundleRecord
    revision: int
    epoch: int
    attempted: list[MergePlan] = field(default_factory=list)
    """Plans whose transaction was sent."""

    @property
    def parents(self) -> tuple[OwnedBundle, OwnedBundle]:
        return self.left, self.right

    @property
    def names(self) -> tuple[str, str]:
        return str(self.pair.left), str(self.pair.right)

    def becoming(self, left: BundleRecord, right: BundleRecord) -> list[RecordChange]:
        """The next records of both."""
        return [
            RecordChange(name, self.revision, record)
            for name, record in zip(self.names, (left, right), strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What was done while the bundles still served."""

    checkpoint: CheckpointPointer
    covered: tuple[Covered, Covered]
    plan: MergePlan


class Merger:
    """Merges neighbours that this broker serves."""

    def __init__(
        self,
        context: BrokerContext,
        views: ClusterViews,
        records: BundleRecords,
        served: ServedBundles,
        events: BundleEvents,
        make: Make,
        assigner: Assigner,
        roller: LogRoller,
    ) -> None:
        self._context, self._views, self._records = context, views, records
        self._served, self._events, self._roller = served, events, roller
        self._make, self._assigner = make, assigner
        self._planner = MergePlanner(context)
        self._called_off: dict[str, str] = {}

    # --- asking for it ----------------------------------------------------------------------------

    async def request(
        self, bundle: BundleName, reason: str = "merge requested", right: BundleName | None = None
    ) -> BundleName:
        """Merge a bundle that is served here with its right neighbour, which must be `right` if
        that is given; the merged bundle, once it is in service.

        Raises NotOwner, NotAllowed if the neighbour is elsewhere, ServiceNotReady while one of them
        changes hands or if the merge was called off, StoreError, StorageError.
        """
        name = str(bundle)
        self._assigner.require_staying(name)
        owned = self._served.require(name)
        namespace, _ = await namespace_of(self._context.store, bundle)
        pair = right_neighbour(namespace.boundaries, bundle)
        if right is not None and pair.right != right:
            raise NotAllowed(
                f"bundle {right} is not the right neighbour of {bundle} (any more): that is "
                f"{pair.right}"
            )
        self._require_here(pair.right)
        await self._planner.check(pair)
        self._called_off.pop(name, None)
        await self._ask(pair, reason)
        while self._served.get(name) is owned and self._records.settled(name) is None:
            await self._events.of(name).wait()
        after, why = self._records.get(str(pair.merged)), self._called_off.pop(name, "")
        if why or after is None or after.record.state is BundleState.DELETED:
            why = why or "this broker has lost one of them"
            raise ServiceNotReady(
                f"bundles {pair.left} and {pair.right} were not merged: {why}; look at their "
                "namespace and try again"
            )
        return pair.merged

    async def _ask(self, pair: Neighbours, reason: str) -> None:
        """Make both records Merging. Raises ServiceNotReady while one of them changes hands."""
        left, right = (self._settled(str(known)) for known in (pair.left, pair.right))
        while True:
            wanted = rules.merge(left.record, right.record, pair, reason)
            changes = [
                RecordChange(str(pair.left), left.mod_revision, wanted[0]),
                RecordChange(str(pair.right), right.mod_revision, wanted[1]),
            ]
            if await self._records.commit_together(changes) is not None:
                return
            # Our own checkpoint changed a record first. Or the answer was lost, and the merge may
            # be over by now: its outcome is looked at next.
            found = [self._records.settled(change.name) for change in changes]
            if found[0] is None or found[1] is None:
                return
            left, right = found[0], found[1]

    def _require_here(self, neighbour: BundleName) -> None:
        """Raises NotAllowed, which says where it is and what to do."""
        if self._served.get(str(neighbour)) is not None:
            return
        viewed = self._records.get(str(neighbour))
        owner = viewed.record.incarnation if viewed is not None else ""
        incarnation = self._views.incarnations.get(owner)
        where = (
            f"broker {incarnation.record.broker}" if incarnation is not None else "no broker now"
        )
        here = self._views.incarnations.get(self._context.incarnation)
        broker = here.record.broker if here is not None else "THIS_BROKER"
        raise NotAllowed(
            f"right neighbour {neighbour}: it is served by {where}; move it here first "
            f"(magnetar bundles unload {neighbour} --to {broker}), then merge"
        )

    def _settled(self, name: str) -> Viewed[BundleRecord]:
        viewed = self._records.settled(name)
        if viewed is None:
            raise ServiceNotReady(
                f"bundle {name} is being unloaded, split or merged; try again in a moment"
            )
        return viewed

    # --- doing it ---------------------------------------------------------------------------------

    def begun(self, name: str) -> Merge | None:
        """The merge that the record of this bundle asks for; None until we have seen both records
        and serve both bundles."""
        viewed = self._records.get(name)
        if viewed is None or viewed.record.state is not BundleState.MERGING:
            return None
        low, edge, high = viewed.record.boundaries
        namespace = BundleName.parse(name).namespace
        pair = Neighbours(BundleName(namespace, low, edge), BundleName(namespace, edge, high))
        found = [
            (self._served.get(str(known)), self._records.get(str(known)))
            for known in (pair.left, pair.right)
        ]
        (left, left_viewed), (right, right_viewed) = found
        if left is None or right is None or left_viewed is None or right_viewed is None:
            return None
        if left_viewed.mod_revision != right_viewed.mod_revision:
            return None
        return Merge(
            pair,
            left,
            right,
            left_viewed.record,
            right_viewed.record,
            viewed.mod_revision,
            self._records.epoch_of(viewed),
        )

    async def carry_out(self, merge: Merge) -> list[str]:
        """From our Merging records to the merged bundle in service; its name, none if it was
        called off. Raises Fenced, StorageError."""
        try:
            prepared = await self._prepare(merge)
        except (StoreError, StorageError, ServiceNotReady, BoundariesRefused) as error:
            await self._keep_apart(merge, str(error))
            return []
        except Exception as error:  # both bundles serve: it costs this merge alone
            self._context.metrics.surprises.note("merge", error, bundle=merge.names[0])
            await self._keep_apart(merge, repr(error))
            return []
        started = self._context.clock.monotonic()
        for owned in merge.parents:
            owned.freeze(buffering=True)
        end = max(await asyncio.gather(*(owned.append_release() for owned in merge.parents)))
        try:
            plan = await self._commit(merge, prepared, end)
        except BoundariesRefused as error:
            await self._free(merge, end, str(error))
            return []
        except rules.TransitionRefused as error:
            self._lost(merge, str(error))
            return []
        self._begin(merge, plan)
        self._context.metrics.release_seconds.observe(self._context.clock.monotonic() - started)
        log.info(
            "bundle.merged",
            bundle=str(merge.pair.merged),
            epoch=merge.epoch,
            parents=[parent.name.range for parent in merge.parents],
        )
        return [str(merge.pair.merged)]

    async def _prepare(self, merge: Merge) -> _Prepared:
        """While both serve: take what both have in files before one place of our log into their
        manifests, and write one checkpoint of both as of that place."""
        records = merge.left_record, merge.right_record
        starts = [record.chain[-1].start for record in records]
        file = self._context.log.position.file
        position = await self._roller.roll(
            "merge", always=any(file == start.file for start in starts)
        )
        if any(position < start for start in starts):
            raise ServiceNotReady("the log was being rolled as one of them began; try again")
        for owned, record in zip(merge.parents, records, strict=True):
            await owned.catalog.cover(record, position)
        # Of the older term: what the manifest must have taken in for it is what both have.
        older, newer = sorted(merge.parents, key=lambda owned: owned.epoch)
        checkpoint, _ = await older.write_checkpoint(position, newer)
        covered = (merge.left.epoch, position.file), (merge.right.epoch, position.file)
        plan = await self._planner.plan(merge.pair, covered)
        return _Prepared(checkpoint, covered, plan)

    def _begin(self, merge: Merge, plan: MergePlan) -> None:
        """Serve the merged bundle instead of its parents, from now on."""
        replayed = 0
        for parent in merge.parents:
            self._served.end(parent)
            replayed += parent.replay.behind
        catalog = BundleCatalog(self._context, merge.pair.merged, plan.manifest)
        recovered = RecoveredBundle({}, catalog, None, fenced=False, records=replayed)
        merged = self._make(merge.pair.merged, LedgerIds(merge.epoch), recovered)
        for parent in merge.parents:
            merged.take_over(parent)
        self._served.begin(merged)
        for parent in merge.parents:
            buffered, parent.buffered = parent.buffered, None
            if buffered is not None:
                buffered.resume(self._context.listeners.service_url_on)
            parent.non_persistent.close_clients(self._context.listeners.service_url_on)

    # --- calling it off ---------------------------------------------------------------------------

    async def _keep_apart(self, merge: Merge, reason: str) -> None:
        """It cannot be done, and both bundles are in service: they stay so."""
        log.warning("bundle.merge_called_off", bundle=merge.names[0], reason=reason)
        self._called_off[merge.names[0]] = reason
        records = map(rules.merge_kept_apart, (merge.left_record, merge.right_record))
        if await self._records.commit_together(merge.becoming(*records)) is None:
            self._lost(merge, reason)

    async def _free(self, merge: Merge, end: LogPosition, reason: str) -> None:
        """It is refused, and both terms are over: free the bundles."""
        log.warning("bundle.merge_called_off", bundle=merge.names[0], reason=reason)
        self._called_off[merge.names[0]] = reason
        records = (
            rules.called_off(record, reason, end=end)
            for record in (merge.left_record, merge.right_record)
        )
        changes = merge.becoming(*records)
        if await self._records.commit_together(changes) is None:
            # or the answer was lost, and others continue
            for change in changes:
                if not await self._records.end_term(*change):
                    self._lost(merge, reason)
                    return
        for owned in merge.parents:
            owned.close_clients(None)
            self._served.end(owned)

    def _lost(self, merge: Merge, reason: str) -> None:
        left, right = merge.names
        self._context.fail(f"bundle {left} or {right} was taken over during their merge: {reason}")

    # --- the transaction --------------------------------------------------------------------------

    async def _commit(self, merge: Merge, prepared: _Prepared, end: LogPosition) -> MergePlan:
        """The transaction, again until it is done; the plan that was committed. Raises
        BoundariesRefused, TransitionRefused, Fenced."""
        deleted, record = rules.merged(
            merge.left_record,
            merge.right_record,
            merge.pair,
            epoch=merge.epoch,
            end=end,
            checkpoint=prepared.checkpoint,
        )
        # Now that both terms are over, and there is a manifest: a rebuild of a lost store takes a
        # merged bundle that has a copy for real, unless a parent has begun a later term.
        await keep_copies(self._context.log, {merge.pair.merged: record}, merge.epoch)

        async def attempt(plan: MergePlan) -> bool:
            merge.attempted.append(plan)
            result = await self._context.store.transact(
                *plan.transaction(merge.pair, merge.revision, deleted, record)
            )
            if result.succeeded:
                self._observe(merge, plan, deleted, record, result.revision)
            return result.succeeded

        return await until_committed(
            merge.names[0],
            prepared.plan,
            partial(self._planner.plan, merge.pair, prepared.covered),
            attempt,
            partial(self._done_before, merge),
        )

    def _observe(
        self,
        merge: Merge,
        plan: MergePlan,
        deleted: tuple[BundleRecord, BundleRecord],
        record: BundleRecord,
        revision: int,
    ) -> None:
        """Take what we have committed, ahead of the watch. The merged bundle's record first: a
        request that finds a parent Deleted looks for it."""
        merged = merge.pair.merged
        self._views.bundles.observe(str(merged), record.encode(), revision)
        self._views.namespaces.observe(str(merged.namespace), plan.namespace.encode(), revision)
        for name, parent in zip(merge.names, deleted, strict=True):
            self._views.bundles.observe(name, parent.encode(), revision)

    async def _done_before(self, merge: Merge) -> MergePlan | None:
        """The attempt that was committed though its answer was lost; None if none was. Raises
        TransitionRefused if others took a bundle."""
        store, merged = self._context.store, merge.pair.merged
        parents = [await store.get(keys.bundle(parent.name)) for parent in merge.parents]
        revisions = {item.mod_revision if item is not None else 0 for item in parents}
        if revisions == {merge.revision}:
            return None
        found = await store.get(keys.bundle(merged))
        if found is None or merge.epoch not in BundleRecord.decode(found.value).epochs:
            states = [
                BundleRecord.decode(item.value).state if item is not None else "gone"
                for item in parents
            ]
            raise rules.TransitionRefused(f"state: the records are {' and '.join(states)}")
        self._views.bundles.observe(str(merged), found.value, found.mod_revision)
        _, namespace = await namespace_of(store, merged)
        self._views.namespaces.observe(
            str(merged.namespace), namespace.value, namespace.mod_revision
        )
        for name, item in zip(merge.names, parents, strict=True):
            if item is not None:
                self._views.bundles.observe(name, item.value, item.mod_revision)
        return await self._planner.as_committed(merge.attempted[-1], merge.pair)
