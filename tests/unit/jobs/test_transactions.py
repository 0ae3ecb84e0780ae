"""What jobs find of messages that transactions have published, in files that a real broker wrote: all of it in order, or nothing yet."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from magnetar.errors import ServiceNotReady
from magnetar.names import TopicName
from magnetar.transactions.ids import TxnId
from magnetar_jobs.bounds import Bounds
from magnetar_jobs.inputs import Group, read_group
from magnetar_jobs.planning import plan_topic
from tests.unit.server.brokers import TOPIC, open_peer, running_broker
from tests.unit.server.test_tidying import QUICK
from tests.unit.server.transacting import ended, send_in

NAME = TopicName.parse(TOPIC)


def places(directory: Path, group: Group) -> list[tuple[int, int]]:
    """(ledger, entry) of everything in a group, in the order in which it is read."""
    found: list[tuple[int, int]] = []
    for rows in read_group(directory, TOPIC, group, Bounds()):
        found += zip(rows.ledgers, rows.entries, strict=True)
    return found


def test_a_compaction_waits_until_what_was_committed_is_rewritten(tmp_path: Path) -> None:
    """A marker's entries lie between others in position, and in other files: none of them is passed over."""

    async def scenario() -> None:
        async with running_broker(tmp_path, **QUICK) as broker, open_peer(broker) as peer:
            await peer.lookup()
            await peer.produce()
            store, volume = broker.context.store, broker.context.volume
            bundle = await broker.ownership.bundle_of(NAME)
            for number in range(4):
                await send_in(peer, TxnId(0, 0), b"x", number)
            await broker.service.roll(NAME)
            for number in range(4, 7):
                await peer.send(b"x", number)
            with pytest.raises(ServiceNotReady, match="rewritten"):
                await plan_topic(store, volume, bundle, NAME)
            for _ in range(4):
                await broker.maintenance.round()
                await asyncio.sleep(0.06)
            await ended(peer, TxnId(0, 0), commit=True)
            await peer.send(b"x", 7)
            for _ in range(4):
                await broker.maintenance.round()
                await asyncio.sleep(0.06)
            await broker.service.roll(NAME)
            plan = await plan_topic(store, volume, bundle, NAME)
            host = await broker.service.open_topic(NAME, create=False)
            wanted = [tuple(host.core.ledgers.position(ordinal)) for ordinal in range(8)]
            found = [place for group in plan.groups for place in await asyncio.to_thread(places, tmp_path, group)]
            assert found == wanted
            assert plan.horizon == wanted[-1]

    asyncio.run(scenario())
