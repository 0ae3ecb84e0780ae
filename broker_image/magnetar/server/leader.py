"""The leader's work.

Owns: keeping every bundle owned, and emptying brokers that are to be drained. Imports: metadata election, server siblings.
Invariants: an act of the leader is guarded by its term, so a leader that has been replaced changes nothing; the leader only writes what any
broker would be allowed to write, so a wrong decision costs a move, never data.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import structlog

from magnetar.errors import ServiceNotReady, StoreError
from magnetar.metadata import keys
from magnetar.metadata.election import Election
from magnetar.metadata.records import BundleState
from magnetar.metadata.store import Compare
from magnetar.server.context import BrokerContext
from magnetar.server.ownership import Ownership
from magnetar.server.views import ClusterViews

log = structlog.get_logger(__name__)

PATROL_S = 1.0
RETRY_S = 0.5


class Leader:
    """Campaigns for as long as the broker lives; patrols while it leads."""

    def __init__(self, context: BrokerContext, views: ClusterViews, ownership: Ownership, lease: int) -> None:
        self._context, self._views, self._ownership = context, views, ownership
        self._election = Election(context.store, context.clock, keys.LEADER, context.incarnation, lease)
        self._task: asyncio.Task[None] | None = None
        self._leading = False
        self._wake: asyncio.Future[None] | None = None
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
        """Stop leading; the seat is given up at once so that another takes it without waiting for the lease."""
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
                log.info("leader.elected", incarnation=self._context.incarnation, term=self._election.term)
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
                await asyncio.wait([lost, self._wake], timeout=PATROL_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()

    def _registrations_changed(self, names: list[str]) -> None:
        """An incarnation that is gone leaves orphans: they are not left to the next patrol."""
        gone = any(self._views.incarnations.get(name) is None for name in names)
        if gone and self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def patrol(self, guard: Compare) -> None:
        """Assign every orphan once; when there is none, even out the number of bundles by one move."""
        await self._adopt_orphans(guard)
        await self._spread(guard)

    async def _spread(self, guard: Compare) -> None:
        """Move one bundle from the broker with most to the one with fewest if they differ by two or more: a broker that joined gets its share.

        By count, one at a time and with hysteresis, until the load strategies decide.
        """
        bundles = self._views.bundles.items
        if any(viewed.record.state is not BundleState.OWNED for viewed in bundles.values()):
            return
        owned: dict[str, list[str]] = {identifier: [] for identifier in self._ownership.assigner.candidates()}
        for name, viewed in sorted(bundles.items()):
            if viewed.record.incarnation in owned:
                owned[viewed.record.incarnation].append(name)
        if len(owned) < 2:
            return
        by_count = sorted(owned, key=lambda identifier: (len(owned[identifier]), identifier))
        fewest, most = by_count[0], by_count[-1]
        count = len(owned[most])
        if count - len(owned[fewest]) >= 2:
            name = owned[most][self._context.clock.random_bits(16) % count]
            await self._ownership.assigner.request_move(name, fewest, "spread over brokers", guard)

    async def _adopt_orphans(self, guard: Compare) -> None:
        """Assign what nobody has: many at once, each to where the load is lowest with those before it counted in."""
        orphans = [
            name
            for name, viewed in sorted(self._views.bundles.items.items())
            if viewed.record.state is BundleState.FREE or self._views.incarnations.get(viewed.record.incarnation) is None
        ]
        permits = asyncio.Semaphore(self._context.settings.orphans_parallel_max)

        async def adopt(name: str) -> None:
            async with permits:
                await self._ownership.assigner.assign(name, guard)

        outcomes = await asyncio.gather(*map(adopt, orphans), return_exceptions=True)
        failed = [(name, error) for name, error in zip(orphans, outcomes, strict=True) if error is not None]
        for name, error in failed:
            if not isinstance(error, ServiceNotReady):
                raise error
            log.warning("leader.no_broker", bundle=name, error=str(error), orphans=len(failed))
            break
