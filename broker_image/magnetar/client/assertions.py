"""What a producer asserts of its event times, on one partition.

Owns: `Assertions`. Imports: backoff, connection, failures, wire, asyncio. Invariants: an assertion
leaves only when everything that was sent before it has its receipt, or has failed: so a message
that is sent again after a reconnect is never behind an assertion that follows it; the last
assertion is repeated after a reconnect, for the broker may have counted the producer as idle.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from magnetar.client.backoff import Backoff
from magnetar.client.connection import Connection
from magnetar.client.failures import SendTimeout
from magnetar.clock import Clock
from magnetar.errors import MagnetarError, NotAllowed, Retry
from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import watermarks

_log = logging.getLogger(__name__)


class Attached(Protocol):
    """A producer of one partition, as its assertions see it."""

    topic: str
    identity: int

    async def attached(self) -> Connection: ...
    async def request(self, build: Callable[[int], bytes]) -> api.BaseCommand: ...
    async def settle(self) -> None:
        """Wait until everything that was sent has its receipt, or has failed."""
        ...


class Assertions:
    """Those of one producer on one partition, the last one first."""

    def __init__(self, producer: Attached, clock: Clock, timeout_s: float | None) -> None:
        self._producer, self._clock, self._timeout_s = producer, clock, timeout_s
        self._turn = asyncio.Lock()
        self._asked = self._holds = 0
        self._last_ms: int | None = None
        self._repeating: asyncio.Task[None] | None = None

    async def set(self, event_ms: int | None, txn: TxnId | None = None) -> None:
        """Assert an event time, or (None) that the producer is idle; durable when this returns. Of
        concurrent calls the last one holds.

        Raises SendTimeout when the outcome is unknown, else the refusal.
        """
        self._asked += 1
        number = self._asked
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._producer.settle()
                async with self._turn:
                    if txn is not None:
                        await self._send(event_ms, txn)
                    elif number > self._holds:
                        await self._send(event_ms, None)
                        self._holds, self._last_ms = number, event_ms
        except TimeoutError as timeout:
            raise SendTimeout(
                f"{self._producer.topic}: no answer to a watermark in {self._timeout_s} s; outcome "
                "unknown"
            ) from timeout

    def repeat(self) -> None:
        """The producer was attached again."""
        if self._last_ms is not None and (self._repeating is None or self._repeating.done()):
            self._repeating = asyncio.create_task(self._repeat())

    async def _repeat(self) -> None:
        try:
            async with self._turn:
                if self._last_ms is not None:
                    await self._send(self._last_ms, None)
        except MagnetarError as failure:
            _log.warning(
                "topic %s: the last watermark was not taken again: %s",
                self._producer.topic,
                failure,
            )

    async def close(self) -> None:
        """Repeat nothing any more."""
        if self._repeating is not None:
            self._repeating.cancel()
            await asyncio.gather(self._repeating, return_exceptions=True)

    async def _send(self, event_ms: int | None, txn: TxnId | None) -> None:
        producer, backoff = self._producer, Backoff(self._clock)
        while True:
            connection = await producer.attached()
            if not connection.takes_watermarks:
                raise NotAllowed(
                    f"{producer.topic}: its broker serves no watermarks; use a Magnetar cluster of "
                    "this version or later"
                )
            try:
                await producer.request(
                    lambda request_id: watermarks.set_watermark(
                        request_id, producer.identity, event_ms, txn
                    )
                )
                return
            except MagnetarError as failure:
                if failure.retry is Retry.NEVER:
                    raise
            await asyncio.sleep(backoff.next())
