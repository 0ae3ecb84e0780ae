"""Assigning bundles to brokers.

Owns: what any broker, and the leader, may write about bundles that it does not serve: assigning an
orphan, asking an owner to transfer a bundle; and which incarnations may be assigned bundles.
Imports: ownership rules, balancing, metadata. Source: transition rule of PIP-192. Invariants: a
decision is made on the store's own state of the bundle and committed by compare-and-swap on it; a
wrong choice of a destination costs a move, never data; an outage of the store that ends every lease
takes no bundle from its owner.
"""

from __future__ import annotations

import asyncio
import math

import structlog

from magnetar.broker.bundles.balancing.placing import Placer
from magnetar.broker.bundles.balancing.reports import Reports
from magnetar.broker.bundles.balancing.settings import BalanceSettings
from magnetar.broker.bundles.records import BundleRecords
from magnetar.broker.context import BrokerContext
from magnetar.errors import NamespaceNotFound, NotOwner, ServiceNotReady, StoreError
from magnetar.hosting.shared_task import SharedTasks, outcome
from magnetar.hosting.views import ClusterViews
from magnetar.metadata import keys
from magnetar.metadata.records import BundleRecord, BundleState, NamespaceRecord
from magnetar.metadata.store import Compare, KeyValue
from magnetar.names import BundleName, bundles_of
from magnetar.ownership import rules as rules

log = structlog.get_logger(__name__)

STORE_RETRY_S = 0.1


class BundleSplit(NotOwner):
    """This range is not a bundle (any more). This broker has read its namespace again; so should
    the caller."""


class Assigner:
    """Writes Assigning for orphans and Releasing for what is to move. `leaving`: this
    incarnation takes no more bundles."""

    def __init__(
        self,
        context: BrokerContext,
        views: ClusterViews,
        reports: Reports,
        settings: BalanceSettings,
    ) -> None:
        self._context, self._views = context, views
        self._records = BundleRecords(context, views)
        self._assigning = SharedTasks[None]("assign")
        self.placer = Placer(context, views, reports, settings, self.candidates)
        self.leaving = False
        self._others_missing_until = 0.0

    def require_staying(self, bundle: str) -> None:
        """Nothing new begins at a broker that is leaving. Raises ServiceNotReady."""
        if self.leaving:
            raise ServiceNotReady(
                f"bundle {bundle} is being unloaded: this broker is stopping; ask its next owner"
            )

    def distrust_absence(self) -> None:
        """Our own registration is gone: others may be missing for the same reason, so no bundle
        with an owner is an orphan for now."""
        self._others_missing_until = math.inf

    def trust_absence_soon(self) -> None:
        """We are registered again; other brokers have half a lease, as long as reconnecting takes,
        to do the same."""
        self._others_missing_until = (
            self._context.clock.monotonic() + self._context.settings.lease_ttl_s / 2
        )

    async def assign_merged(self, name: str) -> None:
        """Assign an orphan; concurrent requests for the same bundle share one attempt. Raises
        BundleSplit, NamespaceNotFound."""
        await outcome(self._assigning.join(name, lambda: self._assign_quietly(name)))

    async def _assign_quietly(self, name: str) -> None:
        try:
            await self.assign(name)
        except BundleSplit:
            raise
        except (StoreError, ServiceNotReady) as error:
            log.warning("bundle.assign_failed", bundle=name, error=str(error))
            await asyncio.sleep(STORE_RETRY_S)

    async def assign(self, name: str, guard: Compare | None = None, destination: str = "") -> None:
        """Write Assigning for an orphaned bundle, decided on the store's own state rather than on
        the view: to `destination` if that may have it, else where placement wants it.

        Nothing while a missing owner may only be on its way back from an outage of the store:
        callers look again. Raises BundleSplit for a range without a record that is not a bundle of
        its namespace.
        """
        store, guards = self._context.store, [guard] if guard is not None else []
        item = await store.get(keys.bundle(BundleName.parse(name)))
        record = BundleRecord.decode(item.value) if item is not None else None
        if record is None or record.state is BundleState.DELETED:
            # An old view of the namespace must not make a bundle of a range that was split.
            record = None
            guards.append(await self._still_a_bundle(BundleName.parse(name)))
        taken = record is not None and record.state is not BundleState.FREE
        if (
            record is not None
            and taken
            and await store.get(keys.incarnation(record.incarnation)) is not None
        ):
            assert item is not None
            self._views.bundles.observe(name, item.value, item.mod_revision)
            return
        if taken and self._context.clock.monotonic() < self._others_missing_until:
            return
        former = rules.former_owners(record)
        if destination in former or destination not in self.candidates():
            destination = await self.placer.choose(name, former)
        await self._write_assigning(name, item, record, destination, guards)

    async def _write_assigning(
        self,
        name: str,
        item: KeyValue | None,
        record: BundleRecord | None,
        destination: str,
        guards: list[Compare],
    ) -> None:
        if record is None or record.state is BundleState.FREE:
            assigned = rules.assign(record, destination, reason="lookup")
        else:
            assigned = rules.override(
                record, destination, owner_is_dead=True, reason=f"{record.incarnation} is gone"
            )
        expected = item.mod_revision if item is not None else 0
        if await self._records.swap(name, expected, assigned, *guards) is not None:
            log.info(
                "bundle.assigned", bundle=name, destination=destination, reason=assigned.reason
            )

    async def reassign(self, name: str, guard: Compare, reason: str) -> bool:
        """Assign a bundle that waits for its destination to another broker; whether that was done.
        Raises ServiceNotReady if there is none."""
        viewed = self._views.bundles.get(name)
        if viewed is None or viewed.record.state is not BundleState.ASSIGNING:
            return False
        destination = await self.placer.choose(name, rules.former_owners(viewed.record))
        record = rules.reassign(viewed.record, destination, reason)
        if await self._records.swap(name, viewed.mod_revision, record, guard) is None:
            return False
        log.warning("bundle.reassigned", bundle=name, destination=destination, reason=reason)
        return True

    async def _still_a_bundle(self, bundle: BundleName) -> Compare:
        """That the range is a bundle of its namespace. Raises BundleSplit, NamespaceNotFound."""
        key = keys.namespace(bundle.namespace)
        item = await self._context.store.get(key)
        if item is None:
            raise NamespaceNotFound(
                f"namespace {bundle.namespace} of bundle {bundle} does not exist; create it first"
            )
        self._views.namespaces.observe(str(bundle.namespace), item.value, item.mod_revision)
        if bundle not in bundles_of(
            bundle.namespace, NamespaceRecord.decode(item.value).boundaries
        ):
            raise BundleSplit(
                f"{bundle.range} is not a bundle of namespace {bundle.namespace} (any more); look "
                "the topic up again"
            )
        return Compare(key, "mod", "=", item.mod_revision)

    def candidates(self) -> frozenset[str]:
        """Incarnations that may be given bundles."""
        found: set[str] = set()
        for identifier, incarnation in self._views.incarnations.items.items():
            cordoned = self._views.cordons.get(incarnation.record.broker) is not None
            leaving = identifier == self._context.incarnation and self.leaving
            if not incarnation.record.draining and not cordoned and not leaving:
                found.add(identifier)
        return frozenset(found)

    async def request_move(self, name: str, destination: str, reason: str, guard: Compare) -> None:
        """Write Releasing for another broker's bundle; does nothing if its record has changed
        concurrently."""
        viewed = self._views.bundles.get(name)
        if viewed is None or viewed.record.state is not BundleState.OWNED:
            return
        record = rules.release(viewed.record, destination, reason=reason)
        if await self._records.swap(name, viewed.mod_revision, record, guard) is not None:
            log.info("bundle.move_requested", bundle=name, destination=destination, reason=reason)

    async def stop(self) -> None:
        """Cancel what is under way."""
        await self._assigning.stop()
