"""Deliveries that go wrong in a way that nobody foresaw: told, tried again, and nothing is skipped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magnetar.server.broker import Broker
from magnetar.server.topics import subscription_host
from magnetar.server.topics.topic_host import TopicHost
from magnetar.wire import requests
from tests.unit.server.brokers import TOPIC, Peer
from tests.unit.server.deliveries import play

FAILURES = 2


def failing(work: Callable[..., Any], times: int) -> Callable[..., Any]:
    """`work`, after it has failed so many times."""
    left = [times]

    def attempt(*arguments: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise KeyError("a surprise")
        return work(*arguments)

    return attempt


async def until(reached: Callable[[], bool]) -> None:
    """Poll what has no event."""
    async with asyncio.timeout(120):
        while not reached():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("where", ["memory", "storage"])
def test_a_surprise_on_the_way_to_a_consumer_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Though nothing else happens on the topic; while it lasts it is listed as damage, and what else wakes the subscription waits."""
    monkeypatch.setattr(subscription_host, "traits_of", failing(subscription_host.traits_of, FAILURES))

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        sent = [await peer.send(b"x", number) for number in range(3)]
        topic: TopicHost = next(owned.topics[TOPIC] for owned in broker.ownership.owned.values() if TOPIC in owned.topics)
        if where == "storage":
            for run in topic.index.runs:
                topic.bundle.tail_cache.release(run)
        await peer.subscribe()
        peer.write(requests.flow(1, 10))
        damage = topic.context.damage
        await until(lambda: len(damage) == 1)
        [found] = damage.listed()
        assert (found["what"], found["topic"]) == ("read", TOPIC)
        topic.wake()
        received = [(await peer.message())[0].message_id for _ in sent]
        assert [(one.ledgerId, one.entryId) for one in received] == sent
        assert (len(damage), damage.met) == (0, FAILURES)

    play(tmp_path, script)
