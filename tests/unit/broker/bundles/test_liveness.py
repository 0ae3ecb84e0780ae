"""Handshakes with brokers that clients are about to be sent to: who answers is named at once,
who is silent only after its lease would be over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from magnetar.broker.bundles import liveness
from magnetar.broker.bundles.liveness import Liveness
from magnetar.broker.context import BrokerContext
from magnetar.clock import SystemClock
from magnetar.errors import ServiceNotReady
from magnetar.metadata.records import IncarnationRecord
from magnetar.network import AsyncioNetwork
from tests.support.brokers import HOST, SETTINGS


class SettableClock(SystemClock):
    """A clock that can be set forward."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


class Listener:
    """Something that listens, counts who comes, and answers or does not."""

    def __init__(self) -> None:
        self.comers = 0
        self.answers = True

    async def greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.comers += 1
        try:
            await reader.read(100)
            if self.answers:
                writer.write(b"hello")
            await reader.read()
        finally:
            # also if the loop ends first, which cancels this task: nothing is left to a later
            # test's garbage collection
            writer.transport.abort()


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[Listener, IncarnationRecord, Liveness, SettableClock]]:
    listener, clock = Listener(), SettableClock()
    server = await asyncio.start_server(listener.greet, HOST, 0)
    record = IncarnationRecord(
        "b", f"pulsar://{HOST}:{server.sockets[0].getsockname()[1]}", "", 0, "test"
    )
    context = SimpleNamespace(
        settings=replace(SETTINGS, lease_ttl_s=4.0), clock=clock, network=AsyncioNetwork()
    )
    found = Liveness(cast(BrokerContext, context))
    try:
        yield listener, record, found, clock
    finally:
        await found.stop()
        server.close()
        await server.wait_closed()


async def test_a_broker_that_answers_is_named_and_asked_once_by_all() -> None:
    """A thousand look-ups at once cost one handshake, and so do those of the next moment."""

    async with listening() as (listener, record, found, clock):
        assert all(await asyncio.gather(*(found.may_be_named("b.1", record) for _ in range(1000))))
        assert await found.may_be_named("b.1", record)
        assert listener.comers == 1
        clock.ahead_s += 2 * liveness.ANSWERED_HOLDS_S
        assert await found.may_be_named("b.1", record)
        assert listener.comers == 2


async def test_a_silent_broker_is_not_named_until_its_lease_would_be_over() -> None:
    """Suspended, or cut off from us alone: look-ups wait, but not permanently; once it answers
    again it is named again."""

    async with listening() as (listener, record, found, clock):
        listener.answers = False
        assert not await found.may_be_named("b.1", record)
        assert not await found.may_be_named("b.1", record)
        clock.ahead_s += found.silence_s_max + 1
        assert await found.may_be_named("b.1", record), (
            "its lease lives: clients may reach it though we cannot"
        )
        comers = listener.comers
        assert await found.may_be_named("b.1", record)
        assert listener.comers <= comers + 1, (
            "nobody waits for further handshakes, and few are made"
        )


async def test_a_broker_that_is_gone_is_not_named_and_forgotten_with_its_registration() -> None:
    """Its port refuses; a new incarnation at the same place is asked afresh."""

    async with listening() as (_, record, found, _clock):
        gone = replace(record, service_url=f"pulsar://{HOST}:1")
        assert not await found.may_be_named("b.1", gone)
        assert await found.may_be_named("b.2", record)
        found.forget(frozenset({"b.2"}))
        assert list(found._peers) == ["b.2"]


async def test_requests_that_wait_for_a_broker_that_stops_are_refused() -> None:
    """A request is answered with an error that its client tries again after; it is not cancelled
    (found by `make soak`: a 500 without a reason)."""

    async with listening() as (listener, record, peers, _clock):
        listener.answers = False
        waiting = asyncio.create_task(peers.may_be_named("b.1", record))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        await peers.stop()
        with pytest.raises(ServiceNotReady):
            await waiting
