"""The leader's work.

Owns: keeping every bundle owned, ending stuck transfers, retiring bundles of deleted namespaces;
load balancing by its `Balancer`. Imports: ownership, balancing, metadata election, storage fencing. Invariants: an act of the leader
is guarded by its term, so a leader that was replaced changes nothing; the leader writes only what
any broker may write, so a wrong decision costs a move, never data.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import Any

import structlog

from magnetar.broker.bundles.balancing.balancer import Balancer
from magnetar.broker.bundles.balancing.decisions import DecisionLog
from magnetar.broker.bundles.ownership import Ownership
from magnetar.broker.context import BrokerContext
from magnetar.broker.topics.topic_registry import entered_topic
from magnetar.errors import NamespaceNotFound, ServiceNotReady, StorageError, StoreError
from magnetar.hosting.views import ClusterViews
from magnetar.metadata import keys
from magnetar.metadata.election import Election
from magnetar.metadata.records import BundleState
from magnetar.metadata.store import Compare, Delete, Put
from magnetar.names import BundleName, NamespaceName, TopicName
from magnetar.ownership import rules as rules
from magnetar.ownership.stuck import Remedy, StuckStates
from magnetar.storage.log.fencing import fence
from magnetar.topics.topic_list import is_system_topic

log = structlog.get_logger(__name__)

PATROL_S = 1.0
RETRY_S = 0.5
NO_BROKER = ServiceNotReady, NamespaceNotFound
"""Why an orphan may stay one: no broker takes bundles, or its namespace is gone."""


class Leader:
    """Campaigns for as long as the broker lives; patrols while it leads."""

    def __init__(
        self, context: BrokerContext, views: ClusterViews, ownership: Ownership, lease: int
    ) -> None:
        self._context, self._views, self._ownership = context, views, ownership
        self._election = Election(
            context.store, context.clock, keys.LEADER, context.incarnation, lease
        )
        self._task: asyncio.Task[None] | None = None
        self._leading = False
        self._wake: asyncio.Future[None] | None = None
        self._kept: set[BundleName] = set()
        self._stuck = StuckStates(context.settings.stuck_state_s)
        self._balancer = self._new_balancer()
        views.incarnations.listen(self._registrations_changed)

    @property
    def leading(self) -> bool:
        return self._leading

    @property
    def balancer(self) -> Balancer:
        """Load balancing of this term, or, while another broker leads, of none."""
        return self._balancer

    async def current(self) -> str:
        """The leading incarnation, or "" while there is none. Raises StoreUnavailable."""
        found = await self._election.current()
        return found[0] if found is not None else ""

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="leader")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A leader whose task failed would keep the election and do nothing."""
        if not task.cancelled() and task.exception() is not None:
            self._context.fail(f"leader: {task.exception()!r}")

    async def stop(self) -> None:
        """Resign, so that another broker is elected without waiting for the lease."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with contextlib.suppress(StoreError):
            await self._election.resign()

    async def _run(self) -> None:
        while True:
            try:
                await self._election.campaign()
                self._balancer = self._new_balancer()
                self._leading = True
                await self._balancer.recall()
                log.info(
                    "leader.elected",
                    incarnation=self._context.incarnation,
                    term=self._election.term,
                )
                await self._lead()
            except StoreError as error:
                log.warning("leader.interrupted", error=str(error))
                await asyncio.sleep(RETRY_S)
            finally:
                self._leading = False
                self._context.metrics.balance.forget()

    def _new_balancer(self) -> Balancer:
        """Each term decides again."""
        ownership, clock = self._ownership, self._context.clock
        return Balancer(
            self._context,
            self._views,
            ownership.assigner,
            ownership.balance,
            lambda: self._stuck.overdue(clock.monotonic()),
            DecisionLog(self._context),
            ownership.recent_moves,
        )

    async def _lead(self) -> None:
        """Patrol until the election is lost."""
        lost: asyncio.Future[Any] = asyncio.ensure_future(self._election.lost())
        try:
            while not lost.done():
                self._wake = asyncio.get_running_loop().create_future()
                await self.patrol(self._election.guard())
                await asyncio.wait(
                    [lost, self._wake], timeout=PATROL_S, return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            lost.cancel()

    def _registrations_changed(self, names: list[str]) -> None:
        """An incarnation that is gone leaves orphans: patrol now."""
        gone = any(self._views.incarnations.get(name) is None for name in names)
        if gone and self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def patrol(self, guard: Compare) -> None:
        """Retire bundles, end stuck transfers, assign every orphan once; then balance load."""
        contained = self._context.metrics.surprises.contained
        gone: set[str] = set()
        with contained("leader", StoreError, part="retire"):
            gone = await self._retire(guard)
        with contained("leader", StoreError, part="unstick"):
            await self._unstick(guard)
        with contained("leader", StoreError, part="orphans"):
            await self._adopt_orphans(guard, gone)
        with contained("leader", StoreError, part="balance"):
            await self._balancer.cycle(guard, self._election.term)

    async def _retire(self, guard: Compare) -> set[str]:
        """Release bundles of deleted namespaces to no broker, then make them Deleted; the names of
        those that are not Deleted yet.

        Not one that holds topics: a namespace is deleted after them, so its record was lost, and
        will be restored. A Deleted record lets the garbage collector remove the bundle's objects,
        and the record last; a lost record does not.
        """
        unknown: dict[str, list[str]] = {}
        for name, viewed in self._views.bundles.items.items():
            namespace = name.rpartition("/")[0]
            deleted = viewed.record.state is BundleState.DELETED
            if not deleted and self._views.namespaces.get(namespace) is None:
                unknown.setdefault(namespace, []).append(name)
        gone: set[str] = set()
        for namespace, names in unknown.items():
            key = keys.namespace(NamespaceName.parse(namespace))
            if await self._context.store.get(key) is None:
                gone.update(names)
        for name in sorted(gone):
            with self._context.metrics.surprises.contained(
                "leader", StoreError, part="retire", bundle=name
            ):
                await self._retire_one(name, guard)
        return gone

    async def _retire_one(self, name: str, guard: Compare) -> None:
        viewed, bundle = self._views.bundles.items[name], BundleName.parse(name)
        if viewed.record.state is BundleState.OWNED:
            await self._ownership.assigner.request_move(
                name, "", "its namespace was deleted", guard
            )
        elif viewed.record.state is BundleState.FREE and not await self._holds_topics(bundle):
            unchanged = Compare(keys.bundle(bundle), "mod", "=", viewed.mod_revision)
            absent = Compare(keys.namespace(bundle.namespace), "create", "=", 0)
            over = Put(keys.bundle(bundle), rules.retire(viewed.record).encode())
            await self._context.store.transact(
                [unchanged, absent, guard], [over, Delete(keys.manifest(bundle))]
            )

    async def _holds_topics(self, bundle: BundleName) -> bool:
        """Whether topics with messages are registered in a bundle without an owner: by our mirror
        if it knows of one, else by the store."""
        known = [TopicName.parse(name) for name in self._ownership.registry.names(bundle.namespace)]
        held = any(bundle.contains(name) for name in known if name.persistent)
        if not held:
            entries = (
                await self._context.store.range(keys.partitioned_topics_in(bundle.namespace))
            ).items
            entered = [entered_topic(item.key.removeprefix(keys.TOPICS)) for item in entries]
            held = any(
                bundle.contains(name)
                for name in entered
                if name is not None and name.persistent and not is_system_topic(name)
            )
        if held and bundle not in self._kept:
            self._kept.add(bundle)
            log.error(
                "leader.keeps_bundle",
                bundle=str(bundle),
                error="its namespace is gone, but it holds topics: create it again",
            )
        return held

    async def _unstick(self, guard: Compare) -> None:
        """Fence or replace live brokers that have been transferring a bundle for too long."""
        records = {
            name: (viewed.record, viewed.mod_revision)
            for name, viewed in self._views.bundles.items.items()
        }
        live = self._views.incarnations.items
        for stuck in self._stuck.look(self._context.clock.monotonic(), records, live.keys()):
            where = f"{stuck.record.state} by {stuck.record.incarnation} for {stuck.seconds:.0f} s"
            if stuck.remedy is Remedy.FENCE:
                await self._fence(
                    stuck.record.incarnation, f"bundle {stuck.bundle} was {where}", guard
                )
                return  # its other bundles are orphans now
            try:
                if await self._ownership.assigner.reassign(stuck.bundle, guard, where):
                    self._stuck.replaced(stuck.bundle)
            except ServiceNotReady as error:
                log.warning("leader.no_broker", bundle=stuck.bundle, error=str(error))
            except StoreError:
                raise
            except Exception as error:
                self._context.metrics.surprises.note(
                    "leader", error, part="unstick", bundle=stuck.bundle
                )

    async def _fence(self, incarnation: str, reason: str, guard: Compare) -> None:
        """Fence a live incarnation that does not act, then end its registration: all its bundles
        are taken over.

        A fenced incarnation does not register again. Not while this volume has no room: then no
        broker can release anything.
        """
        if self._context.log.space.stalled is not None:
            return
        log.error("leader.fences", incarnation=incarnation, reason=reason)
        try:
            await fence(self._context.volume, incarnation)
        except StorageError as error:
            log.warning("leader.fence_delayed", incarnation=incarnation, error=str(error))
            return
        await self._context.store.transact(
            [guard], [Delete(keys.incarnation(incarnation)), Delete(keys.load(incarnation))]
        )

    async def _adopt_orphans(self, guard: Compare, gone: Collection[str]) -> None:
        """Assign bundles without an owner, many at once: by one plan, or by placement, which counts
        those before it in.

        Of bundles that are `gone` with their namespace only those whose owner died: it is fenced in
        this way.
        """
        orphans = [
            name
            for name, viewed in sorted(self._views.bundles.items.items())
            if (viewed.record.state is BundleState.FREE and name not in gone)
            or (
                viewed.record.state not in (BundleState.FREE, BundleState.DELETED)
                and self._views.incarnations.get(viewed.record.incarnation) is None
            )
        ]
        destinations: dict[str, str] = {}
        with self._context.metrics.surprises.contained("leader", StoreError, part="plan"):
            destinations = await self._balancer.destinations(orphans)
        permits = asyncio.Semaphore(self._context.settings.orphans_parallel_max)

        async def adopt(name: str) -> None:
            async with permits:
                await self._ownership.assigner.assign(name, guard, destinations.get(name, ""))

        outcomes = await asyncio.gather(*map(adopt, orphans), return_exceptions=True)
        failed = [(name, error) for name, error in zip(orphans, outcomes, strict=True) if error]
        without = [found for found in failed if isinstance(found[1], NO_BROKER)]
        if without:
            name, reason = without[0]
            log.warning("leader.no_broker", bundle=name, error=str(reason), orphans=len(without))
        for name, error in failed:
            if isinstance(error, StoreError) or not isinstance(error, Exception):
                raise error
            if not isinstance(error, NO_BROKER):
                self._context.metrics.surprises.note("leader", error, part="orphans", bundle=name)
