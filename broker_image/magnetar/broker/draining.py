"""The transfer of a broker's bundles before it stops, and while a cordon asks for it.

Owns: `Draining`: the drain of a planned end and its limits, and following the cordon of this
broker. Imports: context, ownership, views, metadata records. Invariants: a drain is announced
before the first bundle is released; it ends after `drain_timeout_s`, and earlier once the store has
been unavailable for `drain_store_patience_s`; a broker that a cordon has emptied serves again when
the cordon is lifted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

from magnetar.broker.bundles.ownership import Ownership
from magnetar.broker.context import BrokerContext
from magnetar.errors import MagnetarError, StoreError
from magnetar.hosting.views import ClusterViews
from magnetar.metadata.records import CordonRecord

log = structlog.get_logger(__name__)

DRAIN_LOOK_S = 1.0


class Draining:
    """Releases the bundles of one incarnation."""

    def __init__(
        self,
        context: BrokerContext,
        views: ClusterViews,
        ownership: Ownership,
        *,
        register: Callable[[bool], Awaitable[None]],
        stop_leader: Callable[[], Awaitable[None]],
        lease_valid: Callable[[], bool],
        ended: asyncio.Future[str],
        spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
    ) -> None:
        """`register` writes the registration, draining or not; `ended` is done when the
        incarnation has ended; `spawn` runs a task of the incarnation."""
        self._context, self._views, self._ownership = context, views, ownership
        self._register, self._stop_leader, self._lease_valid = register, stop_leader, lease_valid
        self._ended, self._spawn = ended, spawn
        self.draining = False
        self._emptying: asyncio.Task[None] | None = None

    async def drain(self, reason: str) -> None:
        """Take no more bundles and transfer those we have.

        Gives up after `drain_timeout_s`, and once the store has been away for
        `drain_store_patience_s`: bundles are then taken over.
        """
        if self.draining:
            return
        self.draining = True
        log.info(
            "broker.draining",
            incarnation=self._context.incarnation,
            reason=reason,
            bundles=len(self._ownership.owned),
        )
        with contextlib.suppress(StoreError):
            await self._register(True)
        await self._stop_leader()
        release = asyncio.create_task(self._ownership.release_all(reason))
        hopeless = asyncio.create_task(self._store_stays_unavailable())
        either: list[asyncio.Future[Any]] = [release, self._ended, hopeless]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        release.cancel()
        hopeless.cancel()
        try:
            # a failed incarnation has nothing left to transfer
            with contextlib.suppress(asyncio.CancelledError):
                await release
        except TimeoutError:
            log.error(
                "broker.drain_timeout",
                left=sorted(self._ownership.owned),
                seconds=self._context.settings.drain_timeout_s,
            )

    async def _store_stays_unavailable(self) -> None:
        """Return once the lease has not been renewed for so long that no broker will acquire the
        bundles we release.

        A cluster that is deleted as a whole loses its etcd and its brokers at the same moment.
        """
        seen = self._context.clock.boottime()
        while (
            now := self._context.clock.boottime()
        ) - seen < self._context.settings.drain_store_patience_s:
            if self._lease_valid():
                seen = now
            await asyncio.sleep(DRAIN_LOOK_S)
        log.error(
            "broker.drain_given_up",
            left=sorted(self._ownership.owned),
            store_away_s=self._context.settings.drain_store_patience_s,
        )

    def look_at_cordon(self) -> None:
        """A cordon with drain empties this broker while it stays up (scale-down); lifting it
        brings it back."""
        viewed = self._views.cordons.get(self._context.broker)
        cordon: CordonRecord | None = viewed.record if viewed is not None else None
        emptying = self._emptying is not None and not self._emptying.done()
        if cordon is not None and cordon.drain and not self.draining and not emptying:
            self._emptying = self._spawn(self._drain_for(cordon), "drain")

    async def _drain_for(self, cordon: CordonRecord) -> None:
        """Move bundles away one wave after another for as long as the cordon stands: some may
        still have been on their way to us."""
        log.info("broker.cordoned", reason=cordon.reason, bundles=len(self._ownership.owned))
        while (
            viewed := self._views.cordons.get(self._context.broker)
        ) is not None and viewed.record.drain:
            try:
                if self._ownership.owned:
                    await self._ownership.empty(cordon.reason)
            except MagnetarError as error:
                log.warning("broker.drain_delayed", error=str(error))
            except Exception as error:
                self._context.metrics.surprises.note("drain", error)
            await asyncio.sleep(DRAIN_LOOK_S)
