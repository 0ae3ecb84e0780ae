"""The leader's work.

Owns: keeping every bundle owned, ending what is stuck, rebalancing bundles. Imports: balance,
metadata election, storage fencing. Invariants: an act of the leader is guarded by its term, so a
leader that has been replaced changes nothing; the leader only writes what any broker would be
allowed to write, so a wrong decision costs a move, never data.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import Any

import structlog

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
from magnetar.ownership.rebalancing import next_move
from magnetar.ownership.stuck import Remedy, StuckStates
from magnetar.storage.log.fencing import fence
from magnetar.topics.topic_list import is_system_topic

log = structlog.get_logger(__name__)

PATROL_S = 1.0
RETRY_S = 0.5


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
        views.incarnations.listen(self._registrations_changed)

    @property
    def leading(self) -> bool:
        return self._leading

    async def current(self) -> str:
        """The leading incarnation, or "" while there is none. Raises StoreUnavailable."""
        found = await self._election.current()
        return found[0] if found is not None else ""

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="leader")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A leader that stopped by an error would keep its seat and do nothing."""
        if not task.cancelled() and task.exception() is not None:
            self._context.fail(f"leader: {task.exception()!r}")

    async def stop(self) -> None:
        """Stop leading; the seat is given up at once so that another takes it without waiting
        for the lease."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with contextlib.suppress(StoreError):
            await self._election.resign()

    async def _run(self) -> None:
        while True:
            try:
                await self._election.campaign()
                self._leading = True
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

    async def _lead(self) -> None:
        """Patrol until the seat is lost."""
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
        """An incarnation that is gone leaves orphans: they are not left to the next patrol."""
        gone = any(self._views.incarnations.get(name) is None for name in names)
        if gone and self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def patrol(self, guard: Compare) -> None:
        """Deal with what is stuck, assign every orphan once; when there is none, even out the
        number of bundles by one move, if that is wanted."""
        contained = self._context.metrics.surprises.contained
        gone: set[str] = set()
        with contained("leader", StoreError, part="retire"):
            gone = await self._retire(guard)
        with contained("leader", StoreError, part="unstick"):
            await self._unstick(guard)
        with contained("leader", StoreError, part="orphans"):
            await self._adopt_orphans(guard, gone)
        if self._context.settings.rebalance_bundles:
            with contained("leader", StoreError, part="spread"):
                await self._spread(guard)

    async def _spread(self, guard: Compare) -> None:
        """Move one bundle, not a pinned one, from the broker with most to the one with fewest: a
        broker that joined gets its share.

        By count, one at a time and with hysteresis, until the load strategies decide. What has not
        got on for long, or has nobody because its namespace is gone, may stay so permanently, and
        holds nothing up.
        """
        clock = self._context.clock
        records = {name: viewed.record for name, viewed in self._views.bundles.items.items()}
        overdue = self._stuck.overdue(clock.monotonic())
        move = next_move(
            records,
            self._ownership.assigner.candidates(),
            overdue,
            clock.wall_ms(),
            clock.random_bits(16),
        )
        if move is not None:
            await self._ownership.assigner.request_move(
                move.bundle, move.destination, "spread over brokers", guard
            )

    async def _retire(self, guard: Compare) -> set[str]:
        """Bundles of namespaces that were deleted are released to nobody, and then Deleted, without
        a manifest; the names of those that were not yet.

        Not one that holds topics: a namespace is deleted after them, so its own record was lost,
        and comes back. The record says of what lies in storage that nobody needs it; the collector
        removes that, and the record last. A store that has lost records says no such thing.
        """
        living = {
            name
            for name, viewed in self._views.bundles.items.items()
            if viewed.record.state is not BundleState.DELETED
        }
        unknown = {
            name for name in living if self._views.namespaces.get(_namespace_of(name)) is None
        }
        namespaces = {_namespace_of(name) for name in unknown}
        store = self._context.store
        deleted = {
            name
            for name in namespaces
            if await store.get(keys.namespace(NamespaceName.parse(name))) is None
        }
        gone = {name for name in unknown if _namespace_of(name) in deleted}
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
        """Whether topics with messages are entered in a bundle that nobody owns: by our mirror
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
        """Bundles that live brokers have been transferring for too long."""
        records = {
            name: (viewed.record, viewed.mod_revision)
            for name, viewed in self._views.bundles.items.items()
        }
        live = self._views.incarnations.items
        for stuck in self._stuck.look(self._context.clock.monotonic(), records, live.keys()):
            where = f"{stuck.record.state} by {stuck.record.incarnation} for {stuck.seconds:.0f} s"
            if stuck.remedy is Remedy.FENCE:
                await self._put_out(
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

    async def _put_out(self, incarnation: str, reason: str, guard: Compare) -> None:
        """Fence an incarnation that lives and does not act, and end its registration: all its
        bundles are taken over.

        In this order: who has been fenced does not register again. Not while this volume has no
        room: then nobody can release anything.
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
        """Assign what nobody has: many at once, each to where the load is lowest with those before
        it counted in.

        Of the bundles that are `gone` with their namespace only those with an owner that died, who
        is fenced in this way.
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
        permits = asyncio.Semaphore(self._context.settings.orphans_parallel_max)

        async def adopt(name: str) -> None:
            async with permits:
                await self._ownership.assigner.assign(name, guard)

        outcomes = await asyncio.gather(*map(adopt, orphans), return_exceptions=True)
        failed = [
            (name, error)
            for name, error in zip(orphans, outcomes, strict=True)
            if error is not None
        ]
        waiting = [
            (name, error)
            for name, error in failed
            if isinstance(error, ServiceNotReady | NamespaceNotFound)
        ]
        if waiting:
            name, reason = waiting[0]
            log.warning("leader.no_broker", bundle=name, error=str(reason), orphans=len(waiting))
        for name, error in failed:
            if isinstance(error, StoreError) or not isinstance(error, Exception):
                raise error
            if not isinstance(error, ServiceNotReady | NamespaceNotFound):
                self._context.metrics.surprises.note("leader", error, part="orphans", bundle=name)


def _namespace_of(bundle: str) -> str:
    return bundle.rpartition("/")[0]
