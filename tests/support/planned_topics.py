"""What a job would find of the topic of the tests now, compared with what readers see."""

from __future__ import annotations

import asyncio
from pathlib import Path

from magnetar.broker.incarnation import Broker
from magnetar.names import TopicName
from magnetar_jobs.bounds import Bounds
from magnetar_jobs.group_reading import read_group
from magnetar_jobs.inputs import Group
from magnetar_jobs.planning import CompactionPlan, plan_topic
from tests.support.brokers import TOPIC

NAME = TopicName.parse(TOPIC)


def contents(directory: Path, groups: tuple[Group, ...]) -> list[tuple[tuple[int, int], bytes]]:
    """(ledger, entry) and bytes of everything in groups, in the order in which it is read."""
    found = []
    for group in groups:
        for rows in read_group(directory, TOPIC, group, Bounds()):
            places = zip(rows.ledgers.tolist(), rows.entries.tolist(), strict=True)
            found += [(place, bytes(rows.entry_bytes(row))) for row, place in enumerate(places)]
    return found


async def plan_of(broker: Broker) -> CompactionPlan:
    """The plan that a job would make now."""
    bundle = await broker.ownership.bundle_of(NAME)
    return await plan_topic(broker.context.store, broker.context.volume, bundle, NAME)


async def planned(broker: Broker, directory: Path) -> int:
    """Plan, and compare its input with the topic as readers see it: nothing is missing up to its
    horizon. How many entries that is."""
    plan = await plan_of(broker)
    ledgers = (await broker.service.open_topic(NAME, create=False)).core.ledgers
    wanted = [
        tuple(ledgers.position(ordinal))
        for ordinal in range(ledgers.first, ledgers.ordinal_after(plan.horizon))
    ]
    found = [place for place, _ in await asyncio.to_thread(contents, directory, plan.groups)]
    # those before it were trimmed
    assert [place for place in found if place > ledgers.position_before(ledgers.first)] == wanted
    return len(wanted)
