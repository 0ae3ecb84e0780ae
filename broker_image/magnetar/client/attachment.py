"""Staying attached to the broker that serves a topic.

Owns: the loop behind every producer and consumer of one partition: find the broker, attach, wait
until detached, again. Imports: pool, backoff, errors, asyncio. Invariants: at most one attempt runs
at a time; a successor named by the broker (PIP-307) is followed at once and without a look-up,
anything else waits for the back-off and looks up again; a final refusal ends the loop and
everything that waits on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from magnetar.client.backoff import Backoff
from magnetar.client.connection import Connection
from magnetar.client.failures import AlreadyClosed, ConnectionLost
from magnetar.client.pool import Address, Pool
from magnetar.clock import Clock
from magnetar.errors import ConsumerBusy, InvalidRequest, MagnetarError, ProducerBusy, Retry
from magnetar.wire import pulsar_api_pb2 as api

ASSIGNED_HOPS_MAX = 5
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Session:
    """What all producers and consumers of a client share."""

    pool: Pool
    clock: Clock
    operation_timeout_s: float


class Attachment(ABC):
    """One producer or consumer of one partition."""

    def __init__(self, session: Session, topic: str, identity: int) -> None:
        self._session = session
        self.topic = topic
        self.identity = identity
        self.connection: Connection | None = None
        self._detached: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last_failure: Exception | None = None
        self._through_proxy = False
        self.failure: MagnetarError | None = None

    # --- what a producer or consumer adds

    @abstractmethod
    async def _attach(self, connection: Connection) -> None:
        """Register with the connection and send PRODUCER or SUBSCRIBE; returns once attached.
        Raises its refusal."""

    @abstractmethod
    def _release(self, connection: Connection) -> None:
        """Forget a connection to which an attempt failed; the broker is asked to close what it
        may have opened."""

    @abstractmethod
    def _on_failed(self, failure: MagnetarError) -> None:
        """There will be no further attempt."""

    # --- for the owner

    async def open(self) -> None:
        """Attach for the first time. Raises the final refusal, or the last one when the
        operation timeout is over."""
        self._task = asyncio.create_task(self._keep_attached())
        try:
            async with asyncio.timeout(self._session.operation_timeout_s):
                await asyncio.shield(self._opened)
        except TimeoutError as timeout:
            failure = ConnectionLost(
                f"{self.topic}: not attached after {self._session.operation_timeout_s} s; "
                f"{self._last_failure!r}"
            )
            raise (
                self._last_failure if isinstance(self._last_failure, MagnetarError) else failure
            ) from timeout
        finally:
            if (
                not self._opened.done()
                or self._opened.cancelled()
                or self._opened.exception() is not None
            ):
                await self.stop()

    async def stop(self) -> None:
        """End the loop; nothing is sent."""
        if self.failure is None:
            self.failure = AlreadyClosed(f"{self.topic}: closed")
        self._changed.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if not self._opened.done():
            self._opened.cancel()
        self.connection = None

    async def abandon(self) -> None:
        """As `stop`; the broker is notified, its answer is not awaited."""
        connection = self.connection
        await self.stop()
        if connection is not None:
            self._release(connection)

    async def attached(self) -> Connection:
        """The connection, once there is one. Raises the final refusal, or AlreadyClosed, when
        there will be none."""
        while self.connection is None:
            if self.failure is not None:
                raise self.failure
            self._changed.clear()
            await self._changed.wait()
        return self.connection

    def on_detached(self, assigned_url: str | None) -> None:
        """The connection ended (None) or the broker closed this, perhaps naming a successor."""
        self.connection = None
        if not self._detached.done():
            self._detached.set_result(assigned_url)

    # --- requests

    async def request(self, build: Callable[[int], bytes]) -> api.BaseCommand:
        """Send a request, built with its id, and wait for the answer. Raises the refusal,
        ConnectionLost when the outcome is unknown or nothing was sent."""
        if self.failure is not None:
            raise self.failure
        if self.connection is None:
            raise ConnectionLost(
                f"{self.topic}: not attached to a broker now; nothing was sent, try again"
            )
        request_id = self._session.pool.next_request_id()
        try:
            async with asyncio.timeout(self._session.operation_timeout_s):
                return await self.connection.request(request_id, build(request_id))
        except TimeoutError as failure:
            raise ConnectionLost(
                f"{self.topic}: no answer in {self._session.operation_timeout_s} s; outcome unknown"
            ) from failure

    async def _close_at(self, connection: Connection, build: Callable[[int], bytes]) -> None:
        """Ask the broker to close this producer or consumer; without an answer, it does so when
        the connection ends."""
        request_id = self._session.pool.next_request_id()
        with contextlib.suppress(MagnetarError, TimeoutError):
            async with asyncio.timeout(self._session.operation_timeout_s):
                await connection.request(request_id, build(request_id))

    # --- the loop

    async def _keep_attached(self) -> None:
        backoff = Backoff(self._session.clock)
        assigned: str | None = None
        hops = 0
        while True:
            self._detached = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(self._session.operation_timeout_s):
                    await self._attempt(assigned)
            except (MagnetarError, TimeoutError, OSError) as failure:
                self._last_failure = failure
                if isinstance(failure, MagnetarError) and self._final(failure):
                    self._fail(failure)
                    return
                _log.info("topic %s: attaching failed: %r", self.topic, failure)
                assigned, hops = None, 0
                await asyncio.sleep(backoff.next())
                continue
            backoff.reset()
            if not self._opened.done():
                self._opened.set_result(None)
            assigned = await self._detached
            hops = hops + 1 if assigned is not None else 0
            if assigned is None or hops > ASSIGNED_HOPS_MAX:
                assigned, hops = None, 0
                await asyncio.sleep(backoff.next())

    async def _attempt(self, assigned: str | None) -> None:
        connection = await self._session.pool.get(await self._find(assigned))
        try:
            await self._attach(connection)
        except BaseException:
            self._release(connection)
            raise
        if not self._detached.done():
            self.connection = connection
            self._changed.set()

    async def _find(self, assigned: str | None) -> Address:
        if assigned is not None:
            try:
                return self._session.pool.assigned(assigned, self._through_proxy)
            except InvalidRequest as failure:
                _log.warning(
                    "topic %s: the broker named an address that is not valid, %s: %s",
                    self.topic,
                    assigned,
                    failure,
                )
        address = await self._session.pool.locate(self.topic)
        self._through_proxy = address.logical != address.physical
        return address

    def _final(self, failure: MagnetarError) -> bool:
        # "Busy" after a reconnect may mean the previous connection, which the broker has not
        # dropped yet.
        reattaching = self._opened.done()
        return failure.retry is Retry.NEVER and not (
            reattaching and isinstance(failure, (ProducerBusy, ConsumerBusy))
        )

    def _fail(self, failure: MagnetarError) -> None:
        self.failure = failure
        self._changed.set()
        if not self._opened.done():
            self._opened.set_exception(failure)
            self._opened.exception()  # the caller of `open` may have been cancelled
        self._on_failed(failure)
