"""Dividing a bundle.

Owns: a split, from the request to the children in service at the same broker. Imports: balance
(transition rules), metadata, storage (manifests).

The owner writes Splitting, prepares the children's manifests while it serves, freezes the bundle,
ends its term by RELEASE, and commits one transaction: the parent is Deleted, the children are
Owned, the namespace has their boundaries, and their manifests are current. The topics stay in
memory with their clients; what these send concurrently waits. The pause is a flush and a
compare-and-swap. Invariants: either nothing of a split is in the store but the Splitting record, or
all of it; after RELEASE the parent's term is over whatever the store says: a split that turns out
to be impossible then leaves the bundle free, to be assigned again; children begin with every topic
and log range that their parent had; a child lists every file of its parent's list that has entries
of it, and no other that could be looked into: whoever notes a file for the collector notes the
bundles with entries in it, and nobody else keeps it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from magnetar.broker.bundles.bundle import OwnedBundle, RecoveredBundle
from magnetar.broker.bundles.events import BundleEvents
from magnetar.broker.bundles.records import commit_record, others_went_on
from magnetar.broker.context import BrokerContext
from magnetar.broker.reading.catalog import BundleCatalog
from magnetar.broker.topics.topic_registry import TopicRegistry
from magnetar.errors import (
    CorruptData,
    NotAllowed,
    NotOwner,
    ServiceNotReady,
    StorageError,
    StoreError,
    StoreUnavailable,
)
from magnetar.hosting.views import ClusterViews, Viewed
from magnetar.metadata import keys
from magnetar.metadata.records import (
    RESTORE_STRIDE,
    BundleRecord,
    BundleState,
    LogPosition,
    ManifestPointer,
    NamespaceRecord,
)
from magnetar.metadata.store import Compare, Delete, KeyValue, Operation, Put
from magnetar.names import BundleName, TopicName
from magnetar.ownership import rules as rules
from magnetar.ownership.splits import children_of_split, with_boundaries
from magnetar.storage import names
from magnetar.storage.log.format import encode_term
from magnetar.storage.manifest import LevelZero, Manifest, load_manifest, write_manifest
from magnetar.topics.ledger_ids import LedgerIds

log = structlog.get_logger(__name__)

STORE_RETRY_S = 0.1
PLANS_FAILED_MAX = 3
"""Times that the children's manifests cannot be written before a split is called off: the bundle
waits for it."""
GONE = frozenset({BundleState.DELETED, BundleState.FREE})
"""States in which a record of a range, left from an earlier incarnation of its namespace, makes
room for a child."""


Make = Callable[[BundleName, LedgerIds, RecoveredBundle], OwnedBundle]
"""A bundle in the term of these ledger ids, as recovered."""


class SplitRefused(NotAllowed):
    """The bundle cannot be divided so: the namespace, or what is left of its earlier incarnation,
    forbids it."""


@dataclass(frozen=True, slots=True)
class _Child:
    """What a child will be: its manifest is written, and current once the transaction is done
    (None: the parent has none)."""

    name: BundleName
    manifest: Manifest
    object: str
    record_revision: int
    pointer_revision: int


@dataclass(frozen=True, slots=True)
class _Plan:
    """The world as a split found it, which its transaction compares."""

    namespace: NamespaceRecord
    namespace_revision: int
    manifest_revision: int
    children: tuple[_Child, ...]


class _Shares:
    """Which children have entries in which files of their parent, as the files' indexes say;
    remembered, since files do not change."""

    def __init__(self, catalog: BundleCatalog, children: Sequence[BundleName]) -> None:
        self._catalog, self._children = catalog, children
        self._holders: dict[tuple[str, int], frozenset[BundleName]] = {}

    async def find(self, files: Sequence[LevelZero]) -> None:
        """Look into the files that were not looked into yet. Raises StorageError."""
        for file in files:
            place = file.incarnation, file.file
            if place not in self._holders:
                try:
                    self._holders[place] = await self._holders_of(file)
                except (CorruptData, FileNotFoundError) as error:
                    # It may have entries of each: all of them name the damage until the file is
                    # restored.
                    log.warning(
                        "bundle.split_unread", file=names.log_file(*place), error=str(error)
                    )

    async def _holders_of(self, file: LevelZero) -> frozenset[BundleName]:
        found: set[BundleName] = set()
        for topic in filter(self._catalog.holds, (await self._catalog.index(file)).topics()):
            name = TopicName.parse(topic)
            found.update(child for child in self._children if child.contains(name))
            if len(found) == len(self._children):
                break
        return frozenset(found)

    def without(self, files: Sequence[LevelZero], child: BundleName) -> list[LevelZero]:
        """Those of the files that are known to have no entries of a child."""
        known = self._holders
        return [
            file
            for file in files
            if child not in known.get((file.incarnation, file.file), (child,))
        ]


class Splitter:
    """Divides bundles that this broker serves: those in `owned`."""

    def __init__(
        self,
        context: BrokerContext,
        views: ClusterViews,
        owned: dict[str, OwnedBundle],
        registry: TopicRegistry,
        events: BundleEvents,
        make: Make,
    ) -> None:
        self._context, self._views, self._owned = context, views, owned
        self._registry, self._events, self._make = registry, events, make
        self._called_off: dict[str, str] = {}

    # --- asking for it ----------------------------------------------------------------------------

    async def request(
        self, bundle: BundleName, boundaries: tuple[int, ...], reason: str
    ) -> list[BundleName]:
        """Divide a bundle that is served here; its children, once they are in service.

        Raises NotOwner, NotAllowed, ServiceNotReady while the bundle changes hands or if the split
        was called off, StoreError, StorageError.
        """
        name, children = str(bundle), children_of_split(bundle, boundaries)
        owned = self._owned.get(name)
        if owned is None:
            raise NotOwner(f"bundle {name} is not served by this broker")
        await self._check(bundle, boundaries)
        self._called_off.pop(name, None)
        while True:
            viewed = self._views.bundles.get(name)
            if (
                viewed is None
                or viewed.record.state is not BundleState.OWNED
                or viewed.record.incarnation != self._context.incarnation
            ):
                raise ServiceNotReady(
                    f"bundle {name} is being unloaded or split; try again in a moment"
                )
            wanted = rules.split(viewed.record, bundle, boundaries, reason)
            if (
                await commit_record(self._context, self._views, name, viewed.mod_revision, wanted)
                is not None
            ):
                break  # else our own checkpoint came first
        while self._owned.get(name) is owned:
            await self._events.of(name).wait()
        viewed_after, reason = self._views.bundles.get(name), self._called_off.pop(name, "")
        if reason or (
            viewed_after is not None and viewed_after.record.state is not BundleState.DELETED
        ):
            reason = reason or "this broker has lost it"
            raise ServiceNotReady(
                f"bundle {name} was not split: {reason}; look at its namespace and try again"
            )
        return children

    async def _check(self, bundle: BundleName, boundaries: tuple[int, ...]) -> None:
        """Refuse before anything is written what the transaction would refuse. Raises
        SplitRefused, StoreError."""
        namespace, _ = await self._namespace(bundle)
        after = with_boundaries(namespace.boundaries, bundle, boundaries)
        if after is None:
            raise SplitRefused(
                f"{bundle.range} is not a bundle of namespace {bundle.namespace}; GET .../bundles "
                "lists them"
            )
        limit = self._context.settings.bundles_per_namespace_max
        if len(after) - 1 > limit:
            raise SplitRefused(
                f"namespace {bundle.namespace} would have {len(after) - 1} bundles, more than "
                f"bundles_per_namespace_max {limit}"
            )
        await self._records_of(bundle, children_of_split(bundle, boundaries))
        # a damaged one must be known now, not halfway
        await load_manifest(self._context.store, self._context.volume, bundle)

    # --- doing it ---------------------------------------------------------------------------------

    async def carry_out(self, owned: OwnedBundle, splitting: Viewed[BundleRecord]) -> list[str]:
        """From our Splitting record to children in service; their names, none if it was called
        off. Raises Fenced, StorageError."""
        bundle, record = owned.name, splitting.record
        epoch = self._context.restore * RESTORE_STRIDE + splitting.mod_revision
        shares = _Shares(owned.catalog, children_of_split(bundle, record.boundaries))
        try:
            plan: _Plan | None = await self._plan(bundle, record, shares)
        except (StoreError, StorageError, SplitRefused):
            plan = None  # looked into below, when it must not be put off any more
        started = self._context.clock.monotonic()
        owned.freeze(parking=True)
        end = await owned.append_release()
        try:
            plan = await self._commit(bundle, splitting, shares, plan, epoch, end)
        except SplitRefused as error:
            await self._call_off(owned, splitting, end, str(error))
            return []
        except rules.TransitionRefused as error:
            self._context.fail(f"bundle {bundle} was taken over during its split: {error}")
            return []
        children = self._begin(owned, plan, epoch)
        buffered, owned.buffered = owned.buffered, None
        if buffered is not None:
            buffered.resume(self._context.listeners.service_url_on)
        owned.non_persistent.close_clients(self._context.listeners.service_url_on)
        self._context.metrics.release_seconds.observe(self._context.clock.monotonic() - started)
        log.info(
            "bundle.split",
            bundle=str(bundle),
            epoch=epoch,
            children=[child.name.range for child in children],
        )
        return [str(child.name) for child in children]

    def _begin(self, parent: OwnedBundle, plan: _Plan, epoch: int) -> list[OwnedBundle]:
        """Serve the children instead of the parent, from now on. They share an epoch, and so its
        ledger ids."""
        del self._owned[str(parent.name)]
        ledger_ids, children = LedgerIds(epoch), []
        for planned in plan.children:
            catalog = BundleCatalog(self._context, planned.name, planned.manifest)
            child = self._make(
                planned.name,
                ledger_ids,
                RecoveredBundle({}, catalog, None, fenced=False, records=parent.replay.behind),
            )
            child.take_over(parent)
            self._owned[str(planned.name)] = child
            self._registry.adopt(child)
            children.append(child)
        self._context.metrics.bundles_owned.set(len(self._owned))
        return children

    async def _call_off(
        self, owned: OwnedBundle, splitting: Viewed[BundleRecord], end: LogPosition, reason: str
    ) -> None:
        """It cannot be done, and our term is over: leave the bundle to whoever is asked for it
        next."""
        log.warning("bundle.split_called_off", bundle=str(owned.name), reason=reason)
        self._called_off[str(owned.name)] = reason
        free = rules.split_called_off(splitting.record, reason, end=end)
        name, revision = str(owned.name), splitting.mod_revision
        committed = await commit_record(self._context, self._views, name, revision, free)
        if committed is None and not others_went_on(
            self._context, self._views, name, free.chain[-1]
        ):
            self._context.fail(f"bundle {name} was taken over during its split")
            return
        owned.close_clients(None)
        del self._owned[name]
        self._context.metrics.bundles_owned.set(len(self._owned))

    async def _commit(
        self,
        bundle: BundleName,
        splitting: Viewed[BundleRecord],
        shares: _Shares,
        plan: _Plan | None,
        epoch: int,
        end: LogPosition,
    ) -> _Plan:
        """The transaction, again until it is done; what it committed. Raises SplitRefused,
        TransitionRefused, Fenced."""
        deleted, records = rules.divided(splitting.record, bundle, epoch=epoch, end=end)
        attempted: list[_Plan] = []
        failed, kept = 0, False
        while True:
            if plan is not None and not kept:
                # Not before: whoever rebuilds a lost store takes children that have copies for
                # real, and they are nothing without manifests.
                await self._keep_copies(records, epoch)
                kept = True
            try:
                if plan is None:
                    plan = await self._plan(bundle, splitting.record, shares)
                    continue
                attempted.append(plan)
                compares, operations = self._transaction(
                    bundle, splitting.mod_revision, plan, deleted, records
                )
                result = await self._context.store.transact(compares, operations)
                if result.succeeded:
                    self._observe(bundle, plan, deleted, records, result.revision)
                    return plan
                done = await self._done_before(bundle, splitting, attempted, epoch)
                if done is not None:
                    return done
                plan = None
            except StoreUnavailable as error:
                log.warning("bundle.split_unknown", bundle=str(bundle), error=str(error))
                await asyncio.sleep(STORE_RETRY_S)
                done = await self._done_before_if_known(bundle, splitting, attempted, epoch)
                if done is not None:
                    return done
            except StorageError as error:
                failed += 1
                log.warning("bundle.split_unplanned", bundle=str(bundle), error=str(error))
                if failed == PLANS_FAILED_MAX:
                    raise SplitRefused(f"manifests cannot be written or read: {error}") from error
                await asyncio.sleep(STORE_RETRY_S)

    async def _keep_copies(self, records: Mapping[BundleName, BundleRecord], epoch: int) -> None:
        """Copies of all the children's records in the log, durable before any of them can be taken
        over. Raises StorageError.

        Without them a lost store could not be rebuilt once one child has gone on elsewhere. Should
        the split not happen after all, the parent's next term has a later epoch.
        """
        for child, record in records.items():
            encoded = encode_term(epoch=epoch, bundle=str(child), state=record.encode())
            self._context.log.append(encoded.buffers, encoded.size, 1, None)
        await self._context.log.barrier()

    def _transaction(
        self,
        bundle: BundleName,
        revision: int,
        plan: _Plan,
        deleted: BundleRecord,
        records: Mapping[BundleName, BundleRecord],
    ) -> tuple[list[Compare], list[Operation]]:
        namespace = keys.namespace(bundle.namespace)
        compares = [
            Compare(keys.bundle(bundle), "mod", "=", revision),
            Compare(namespace, "mod", "=", plan.namespace_revision),
            Compare(keys.manifest(bundle), "mod", "=", plan.manifest_revision),
        ]
        operations: list[Operation] = [
            Put(keys.bundle(bundle), deleted.encode()),
            Put(namespace, plan.namespace.encode()),
        ]
        if plan.manifest_revision:
            operations.append(Delete(keys.manifest(bundle)))
        for child in plan.children:
            compares.append(Compare(keys.bundle(child.name), "mod", "=", child.record_revision))
            compares.append(Compare(keys.manifest(child.name), "mod", "=", child.pointer_revision))
            operations.append(Put(keys.bundle(child.name), records[child.name].encode()))
            if child.object:
                pointer = ManifestPointer(child.manifest.generation, child.object)
                operations.append(Put(keys.manifest(child.name), pointer.encode()))
        return compares, operations

    def _observe(
        self,
        bundle: BundleName,
        plan: _Plan,
        deleted: BundleRecord,
        records: Mapping[BundleName, BundleRecord],
        revision: int,
    ) -> None:
        """Take what we have committed, ahead of the watch. The children's records first: who
        finds the parent Deleted looks for them."""
        for child, record in records.items():
            self._views.bundles.observe(str(child), record.encode(), revision)
        self._views.namespaces.observe(str(bundle.namespace), plan.namespace.encode(), revision)
        self._views.bundles.observe(str(bundle), deleted.encode(), revision)

    # --- outcomes that we did not learn of --------------------------------------------------------

    async def _done_before_if_known(
        self,
        bundle: BundleName,
        splitting: Viewed[BundleRecord],
        attempted: list[_Plan],
        epoch: int,
    ) -> _Plan | None:
        try:
            return await self._done_before(bundle, splitting, attempted, epoch)
        except StoreUnavailable:
            return None  # tried again, which finds out

    async def _done_before(
        self,
        bundle: BundleName,
        splitting: Viewed[BundleRecord],
        attempted: list[_Plan],
        epoch: int,
    ) -> _Plan | None:
        """The attempt that was committed though its answer was lost; None if none was. Raises
        TransitionRefused if others took the bundle."""
        item = await self._context.store.get(keys.bundle(bundle))
        if item is not None and item.mod_revision == splitting.mod_revision:
            return None
        found = [
            await self._context.store.get(keys.bundle(child.name))
            for child in (attempted[-1].children if attempted else ())
        ]
        if not any(
            child is not None and epoch in BundleRecord.decode(child.value).epochs
            for child in found
        ):
            state = BundleRecord.decode(item.value).state if item is not None else "gone"
            raise rules.TransitionRefused(f"state: the record is {state}")
        for child in found:
            if child is not None:
                self._views.bundles.observe(
                    child.key.removeprefix(keys.BUNDLES), child.value, child.mod_revision
                )
        _, namespace = await self._namespace(bundle)
        self._views.namespaces.observe(
            str(bundle.namespace), namespace.value, namespace.mod_revision
        )
        if item is not None:
            self._views.bundles.observe(str(bundle), item.value, item.mod_revision)
        # All attempts make the same children; whose manifests were taken, the store says.
        return await self._as_committed(attempted)

    async def _as_committed(self, attempted: list[_Plan]) -> _Plan:
        plan, children = attempted[-1], []
        for child in plan.children:
            manifest, name, _ = await load_manifest(
                self._context.store, self._context.volume, child.name
            )
            children.append(replace(child, manifest=manifest, object=name))
        return replace(plan, children=tuple(children))

    # --- planning ---------------------------------------------------------------------------------

    async def _plan(self, bundle: BundleName, record: BundleRecord, shares: _Shares) -> _Plan:
        """Read what the transaction compares, and write the children's manifests. Raises
        SplitRefused, StoreError, StorageError."""
        store, volume = self._context.store, self._context.volume
        namespace, item = await self._namespace(bundle)
        boundaries = with_boundaries(namespace.boundaries, bundle, record.boundaries)
        if boundaries is None:
            raise SplitRefused(
                f"{bundle.range} is not a bundle of namespace {bundle.namespace} any more"
            )
        wanted = children_of_split(bundle, record.boundaries)
        revisions = await self._records_of(bundle, wanted)
        manifest, _, manifest_revision = await load_manifest(store, volume, bundle)
        await shares.find(manifest.level0)
        children = []
        for name in wanted:
            # of an earlier incarnation of the namespace
            left = await store.get(keys.manifest(name))
            generation = 1 + (
                ManifestPointer.decode(left.value).generation if left is not None else 0
            )
            own, written = (
                manifest.for_child(name, generation, shares.without(manifest.level0, name)),
                "",
            )
            if manifest_revision or left is not None:
                written = await write_manifest(volume, self._context.clock, own)
            else:
                own = Manifest(str(name), 0)
            children.append(
                _Child(
                    name,
                    own,
                    written,
                    revisions[name],
                    left.mod_revision if left is not None else 0,
                )
            )
        return _Plan(
            replace(namespace, boundaries=boundaries),
            item.mod_revision,
            manifest_revision,
            tuple(children),
        )

    async def _namespace(self, bundle: BundleName) -> tuple[NamespaceRecord, KeyValue]:
        """The namespace as the store has it. Raises SplitRefused if it is gone, or the range is
        none of its bundles."""
        item = await self._context.store.get(keys.namespace(bundle.namespace))
        if item is None:
            raise SplitRefused(f"namespace {bundle.namespace} does not exist any more")
        return NamespaceRecord.decode(item.value), item

    async def _records_of(
        self, bundle: BundleName, children: list[BundleName]
    ) -> dict[BundleName, int]:
        """Revisions of the records that the children's names have already, 0 for none. Raises
        SplitRefused if one of them is in use."""
        found = {
            item.key: item
            for item in (await self._context.store.range(keys.bundles_in(bundle.namespace))).items
        }
        revisions = {}
        for child in children:
            item = found.get(keys.bundle(child))
            if item is not None and BundleRecord.decode(item.value).state not in GONE:
                raise SplitRefused(
                    f"bundle {child} is still there, from an earlier incarnation of its namespace; choose "
                    "other boundaries"
                )
            revisions[child] = item.mod_revision if item is not None else 0
        return revisions
