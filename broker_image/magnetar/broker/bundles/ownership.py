"""Who serves which bundle.

Owns: this broker's part in the states of bundle records: resolving owners, starting what a record
asks of this broker, buffering requests during a transfer. Imports: metadata, siblings. Source:
transition rule of PIP-192, transfer of PIP-307.

Invariants: a bundle is served here only between our Owned record and our RELEASE, and only while
our claim stands; every acquisition passes through an Assigning record whose revision is the epoch;
a request for a bundle in transfer waits (up to `park_timeout_s`) instead of being refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import structlog

from magnetar.broker.bundles.acquiring import Acquirer
from magnetar.broker.bundles.assigning import Assigner
from magnetar.broker.bundles.balancing.reports import Reports
from magnetar.broker.bundles.balancing.settings import BalanceSettings
from magnetar.broker.bundles.balancing.trend import RecentMoves
from magnetar.broker.bundles.bundle import OwnedBundle, RecoveredBundle
from magnetar.broker.bundles.checkpointer import Checkpointer
from magnetar.broker.bundles.events import BundleEvents
from magnetar.broker.bundles.liveness import Liveness
from magnetar.broker.bundles.log_rolling import LogRoller
from magnetar.broker.bundles.merging import Merger
from magnetar.broker.bundles.records import BundleRecords
from magnetar.broker.bundles.recovery.bundle_recovery import noted_lengths
from magnetar.broker.bundles.recovery.log_scans import LogScans
from magnetar.broker.bundles.releasing import Releaser
from magnetar.broker.bundles.renewals import Renewals
from magnetar.broker.bundles.served import ServedBundles
from magnetar.broker.bundles.splitting import Splitter
from magnetar.broker.bundles.work import BundleWork
from magnetar.broker.context import BrokerContext
from magnetar.broker.reading.entry_index import TailCache
from magnetar.broker.reading.log_keys import LogKeys
from magnetar.broker.topics.effective_policies import EffectivePolicies
from magnetar.broker.topics.topic_registry import TopicRegistry
from magnetar.errors import NamespaceNotFound, NotOwner, ServiceNotReady, StoreError
from magnetar.hosting.shared_task import SharedTasks
from magnetar.hosting.views import ClusterViews, Viewed
from magnetar.metadata import keys
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    IncarnationRecord,
    NamespaceRecord,
)
from magnetar.names import BundleName, TopicName, bundle_of
from magnetar.topics.ledger_ids import LedgerIds

log = structlog.get_logger(__name__)

T = TypeVar("T")

LOOK_AGAIN_S = 1.0
STORE_RETRY_S = 0.1
NAMED = (BundleState.OWNED, BundleState.SPLITTING, BundleState.MERGING)
"""States in which clients may be sent to the owner."""


class Ownership:
    """Drives this broker's bundles from the records it sees."""

    def __init__(self, context: BrokerContext, views: ClusterViews) -> None:
        self._context, self._views = context, views
        self._records, self._events = BundleRecords(context, views), BundleEvents()
        self._tail_cache = TailCache(context.settings.tail_cache_bytes_max)
        self._roller = LogRoller(context)
        self.registry = TopicRegistry(context, views)
        self._served = ServedBundles(context, self.registry)
        self.policies = EffectivePolicies(context.settings, views, self.owned, context.clock)
        self.balance = BalanceSettings(context, views)
        self.reports, self.recent_moves = Reports(context.clock, views), RecentMoves()
        self.assigner = Assigner(context, views, self.reports, self.balance)
        self._work = BundleWork(context, self._events, self._follow)
        self._resolving, self._asking = SharedTasks[None]("resolve"), SharedTasks[None]("read")
        self._renewals = Renewals(self.owned, self._move_quietly)
        self._liveness = Liveness(context)
        self._log_keys = LogKeys(context, self.bundle_of)
        self._scans = LogScans(
            context.volume, lambda incarnation: noted_lengths(context.store, views, incarnation)
        )
        self.checkpointer = Checkpointer(
            context, self._records, self._served, self._roller, self._work
        )
        self._acquirer = Acquirer(
            context,
            self._records,
            self._served,
            self._events,
            self._scans,
            self.policies,
            self._make,
        )
        self._releaser = Releaser(
            context,
            views,
            self._records,
            self._served,
            self._events,
            self._roller,
            self.checkpointer,
            self.assigner,
        )
        self.move, self.pin = self._releaser.request, self._releaser.pin
        parts = (context, views, self._records, self._served, self._events, self._make)
        self._splitter = Splitter(*parts, self.assigner)
        self._merger = Merger(*parts, self.assigner, self._roller)
        self.split, self.merge = self._splitter.request, self._merger.request
        views.bundles.listen(self._bundles_changed)
        for view in (views.incarnations, views.cordons, views.namespaces):
            view.listen(lambda _names: self._events.all_changed())
        views.incarnations.listen(
            lambda _names: self._liveness.forget(frozenset(views.incarnations.items))
        )
        # What was assigned to us between our registration and now will not change again by itself.
        self._bundles_changed(list(views.bundles.items))

    @property
    def owned(self) -> Mapping[str, OwnedBundle]:
        """Bundles served here, by name."""
        return self._served.by_name

    # --- questions --------------------------------------------------------------------------------

    async def bundle_of(self, topic: TopicName) -> BundleName:
        """The bundle a topic falls into. Raises NamespaceNotFound."""
        name = topic.namespace_name
        viewed = self._views.namespaces.get(str(name))
        if viewed is None:
            # The view may be a moment behind a namespace that was just created: ask the store
            # before saying no.
            found = await self._context.store.get(keys.namespace(name))
            if found is None:
                raise NamespaceNotFound(
                    "Namespace not found",
                    f"create {name}, the namespace of topic {topic}, first "
                    f"(TopicNamespace, or PUT /admin/v2/namespaces/{name})",
                )
            self._views.namespaces.observe(str(name), found.value, found.mod_revision)
            record = NamespaceRecord.decode(found.value)
        else:
            record = viewed.record
        return bundle_of(name, record.boundaries, topic.hash)

    async def owner_of(self, topic: TopicName) -> IncarnationRecord:
        """As `resolve`, for the bundle of a topic, however often it is split or merged during the
        call."""
        return await self._of_topic(topic, self.resolve)

    async def serving_topic(self, topic: TopicName) -> OwnedBundle:
        """As `serving`, for the bundle of a topic, however often it is split or merged during the
        call."""
        return await self._of_topic(topic, self.serving)

    async def _of_topic(self, topic: TopicName, ask: Callable[[BundleName], Awaitable[T]]) -> T:
        while True:
            bundle = await self.bundle_of(topic)
            try:
                return await ask(bundle)
            except NotOwner:  # BundleSplit is one
                if await self.bundle_of(topic) == bundle:
                    raise

    async def resolve(self, bundle: BundleName) -> IncarnationRecord:
        """The live owner, after assigning the bundle if it has none. Raises BundleSplit,
        ServiceNotReady after `park_timeout_s`."""
        name = str(bundle)
        deadline = self._context.clock.monotonic() + self._context.settings.park_timeout_s
        while (owner := await self._owner_to_name(name)) is None:
            remaining = self._remaining(deadline, name)
            settling = self._resolving.join(name, lambda: self._settle(name))
            await asyncio.wait([settling], timeout=remaining)
            if (
                settling.done()
                and not settling.cancelled()
                and (error := settling.exception()) is not None
            ):
                raise error  # that there is no such bundle
        return owner

    async def _owner_to_name(self, name: str) -> IncarnationRecord | None:
        """The owner of a bundle, if it has one that clients may be sent to."""
        viewed = self._records.get(name)
        if viewed is None or viewed.record.state not in NAMED:
            return None
        incarnation = viewed.record.incarnation
        owner = self._views.incarnations.get(incarnation)
        if owner is None:
            return None
        named = incarnation == self._context.incarnation or await self._liveness.may_be_named(
            incarnation, owner.record
        )
        return owner.record if named else None

    async def _settle(self, name: str) -> None:
        """Assign a bundle if it is an orphan; returns when something about it has changed, or
        after a while."""
        event = self._events.of(name)
        if self._is_orphan(self._records.get(name)):
            await self.assigner.assign_merged(name)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_AGAIN_S):
                await event.wait()

    async def serving(self, bundle: BundleName) -> OwnedBundle:
        """The bundle as served here; waits while it is on its way here, or being released.
        Raises NotOwner, ServiceNotReady."""
        name, asked = str(bundle), False
        deadline = self._context.clock.monotonic() + self._context.settings.park_timeout_s
        while True:
            changed, owned = self._events.of(name), self._served.get(name)
            if owned is not None and owned.serving:
                return owned
            if owned is None and not self._concerns_us(self._records.get(name)):
                if asked:
                    raise NotOwner(
                        f"bundle {name} is not served by this broker or is being unloaded; look "
                        "the topic up again"
                    )
                asked = True
                await self._ask_store(name)
                continue
            # the caller looks again and gives up at its own deadline
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(self._remaining(deadline, name), LOOK_AGAIN_S)):
                    await changed.wait()

    async def _ask_store(self, name: str) -> None:
        """A client that a bundle's former owner sent here may be faster than our watch: read the
        record, once for all callers."""

        async def read() -> None:
            with contextlib.suppress(StoreError):
                await self._records.read(name)

        await asyncio.wait([self._asking.join(name, read)], timeout=LOOK_AGAIN_S)

    def _concerns_us(self, viewed: Viewed[BundleRecord] | None) -> bool:
        """Whether we have the bundle, or are to get it."""
        return (
            viewed is not None
            and not self._is_orphan(viewed)
            and self._context.incarnation in (viewed.record.incarnation, viewed.record.destination)
        )

    def _is_orphan(self, viewed: Viewed[BundleRecord] | None) -> bool:
        if viewed is None or viewed.record.state is BundleState.FREE:
            return True
        return self._views.incarnations.get(viewed.record.incarnation) is None

    def _remaining(self, deadline: float, name: str) -> float:
        """Seconds left to wait. Raises ServiceNotReady if there are none."""
        remaining = deadline - self._context.clock.monotonic()
        if remaining <= 0:
            raise ServiceNotReady(
                f"Failed to acquire ownership: bundle {name} is being unloaded for too long; try "
                "again"
            )
        return remaining

    # --- following our records --------------------------------------------------------------------

    def _bundles_changed(self, names: list[str]) -> None:
        for name in names:
            self._events.changed(name)
            self._acquirer.preloads.look(name)
            self._follow(name)

    def _follow(self, name: str) -> None:
        """Start what our record asks for, unless this bundle is being worked on already."""
        if self._work.stopped:
            return
        if self._work.busy(name):
            if self._acquirer.give_up(name):
                self._work.cancel(name)
            return
        viewed, owned = self._records.get(name), self._served.get(name)
        if viewed is not None and viewed.record.incarnation == self._context.incarnation:
            state = viewed.record.state
            if state is BundleState.ASSIGNING and owned is None:
                self._work.begin(name, self._acquirer.carry_out(name, viewed))
            elif state is BundleState.RELEASING and owned is not None:
                self._work.begin(name, self._releaser.carry_out(name, owned, viewed))
            elif state is BundleState.SPLITTING and owned is not None:
                self._work.begin(name, self._reshape(self._splitter.carry_out(owned, viewed)))
            elif state is BundleState.MERGING:
                self._begin_merge(name)
            taken = state is BundleState.ASSIGNING  # taken from us and given back, both unseen
        else:
            taken = True
        if taken and owned is not None:
            # Another broker took a bundle that we never released: it has fenced us, or will.
            self._context.fail(f"bundle {name} was taken over while we served it")

    def _make(
        self, name: BundleName, ledger_ids: LedgerIds, recovered: RecoveredBundle
    ) -> OwnedBundle:
        ledger_ids.running_low = self._renewals.ask
        return OwnedBundle(
            self._context,
            name,
            ledger_ids,
            recovered,
            self._tail_cache,
            self.policies,
            self.registry,
            self.checkpointer.ask,
        )

    def _begin_merge(self, name: str) -> None:
        """Merge this bundle with its neighbour, once no task works on either."""
        merge = self._merger.begun(name)
        if merge is not None and not any(map(self._work.busy, merge.names)):
            work = self._reshape(self._merger.carry_out(merge))
            self._work.begin(merge.names[0], work, merge.names[1])

    async def _reshape(self, work: Awaitable[list[str]]) -> None:
        """Split or merge; `work` gives the names of the new bundles."""
        made = await work
        if not made:
            self._roller.roll_soon()  # it was called off, and bundles may have left
        self._bundles_changed(made)  # one of them may be asked for already

    # --- our log ----------------------------------------------------------------------------------

    def file_sealed(self, number: int, length: int, topics: dict[str, list[int]]) -> None:
        """The log has sealed a file: publish its key, and shorten chains that are too long."""
        self._roller.file_sealed(number, length)
        self._log_keys.publish(number, length, topics)
        self.checkpointer.checkpoint_long_chains()

    @property
    def first_file_needed(self) -> int:
        """As `Acquirer.first_file_needed`."""
        return self._acquirer.first_file_needed

    # --- stopping ---------------------------------------------------------------------------------

    async def empty(self, reason: str) -> None:
        """Transfer every bundle we have now; raises ServiceNotReady if no other broker may take
        them: then they stay."""
        if not self.assigner.candidates() - {self._context.incarnation}:
            raise ServiceNotReady(
                "Failed to acquire ownership: no other broker takes bundles now (all are draining "
                "or cordoned)"
            )
        await self._move_all(reason)

    async def release_all(self, reason: str) -> None:
        """Transfer every bundle, or free it where no broker can take it; raises TimeoutError after
        `drain_timeout_s`."""
        self.assigner.leaving = True
        async with asyncio.timeout(self._context.settings.drain_timeout_s):
            while True:
                hopeful = [
                    task
                    for name, task in self._work.tasks.items()
                    if not self._acquirer.is_retrying(name)
                ]
                if self.owned:
                    await self._move_all(reason)
                elif hopeful:
                    await asyncio.wait(hopeful, timeout=1.0)
                else:
                    return

    async def _move_all(self, reason: str) -> None:
        await asyncio.gather(*(self._move_quietly(name, reason) for name in sorted(self.owned)))

    async def _move_quietly(self, name: str, reason: str) -> None:
        try:
            await self.move(name, "", reason)
        except NotOwner:
            await asyncio.sleep(STORE_RETRY_S)  # it is leaving by itself, or has left
        except StoreError as error:
            log.warning("bundle.move_failed", bundle=name, error=str(error))
            await asyncio.sleep(STORE_RETRY_S)

    async def stop(self) -> None:
        """Cancel what is under way; the records stay for the brokers that recover them."""
        self._work.close()
        self._roller.stop()
        self.checkpointer.stop()
        await self._log_keys.stop()
        await self.assigner.stop()
        await self._liveness.stop()
        await self._renewals.stop()
        await self._work.stop()
        await self._resolving.stop()
        await self._asking.stop()
        await self._acquirer.preloads.stop()
        await self._scans.stop()
        await self.registry.stop()
        self._served.stop()
        self._events.all_changed()
