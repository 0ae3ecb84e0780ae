"""Rates over a real broker: publishing, delivery and subscribing wait as policies and resource
groups say, and go on at once when a limit goes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.broker.topics import throttles
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from tests.support.brokers import TOPIC, Peer, Type, command_frame, entry
from tests.support.polling import until
from tests.support.rest import NAMESPACE, TOPICS, broker_with_rest

T = f"{TOPICS}/t"
MANY = 40
A_DAYS_BYTES = 100_000
"""At one byte a second. `HOLD_S_MAX` is an hour then: only the end of the limit ends the wait."""
RATE_S = 0.8
"""20 of 40 go at once, the others at 20 a second; a machine that is busy only makes it longer."""


def host_of(broker: Broker) -> TopicHost:
    [found] = [
        topic
        for owned in broker.ownership.owned.values()
        for name, topic in owned.topics.items()
        if name == TOPIC
    ]
    return found


async def publish(peer: Peer, count: int, begin: int = 0, size: int = 10) -> float:
    """Seconds until everything has its receipt. All but the last come at once: that is too much
    for the rate however slow the disk is; the last comes when these have their receipts."""
    started = time.monotonic()
    *first, last = range(begin, begin + count)
    for sequences in (first, [last]):
        peer.write(b"".join(requests.send(1, at, entry(b"x" * size, at)) for at in sequences))
        for _ in sequences:
            await peer.answer(Type.SEND_RECEIPT)
    return time.monotonic() - started


async def receive(peer: Peer, count: int) -> float:
    """Seconds until so many messages have come."""
    peer.write(command_frame("flow", consumer_id=1, messagePermits=1000))
    started = time.monotonic()
    for _ in range(count):
        await peer.message()
    return time.monotonic() - started


@pytest.mark.parametrize("level", [NAMESPACE, T])
async def test_publishing_is_held_to_its_rate_and_freed_when_the_policy_goes(
    tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttles, "HOLD_S_MAX", 3600.0)
    async with broker_with_rest(tmp_path) as (broker, rest, peer):
        await peer.produce()
        assert host_of(broker).throttles is None
        await publish(peer, MANY)
        await rest("POST", f"{level}/publishRate", {"publishThrottlingRateInMsg": "20"})
        assert await publish(peer, MANY, MANY) > RATE_S
        stats = await rest.get(f"{T}/stats")
        assert stats["publishRateLimitedTimes"] > 0
        await rest("POST", f"{level}/publishRate", {"publishThrottlingRateInByte": 1})
        await publish(peer, 1, 2 * MANY, A_DAYS_BYTES)
        sending = asyncio.create_task(publish(peer, 2, 2 * MANY + 1))
        await asyncio.sleep(0.2)
        assert not sending.done()
        await rest("DELETE", f"{level}/publishRate")
        await asyncio.wait_for(sending, 120)
        assert host_of(broker).throttles is None


@pytest.mark.parametrize(
    ("policy", "level"),
    [("dispatchRate", "Topic"), ("subscriptionDispatchRate", "Subscription")],
)
async def test_delivery_is_held_to_its_rate(tmp_path: Path, policy: str, level: str) -> None:
    async with broker_with_rest(tmp_path) as (_broker, rest, peer):
        await peer.produce()
        await peer.subscribe()
        rate = {"dispatchThrottlingRateInMsg": 20, "ratePeriodInSecond": 1}
        await rest("POST", f"{T}/{policy}", rate)
        await publish(peer, MANY)
        assert await receive(peer, MANY) > RATE_S
        found = (await rest.get(f"{T}/stats"))["subscriptions"]["s"]
        assert found[f"dispatchThrottledMsgEventsBy{level}Limit"] > 0


async def test_a_rate_beside_the_published_one_delays_nothing_that_keeps_up(
    tmp_path: Path,
) -> None:
    async with broker_with_rest(tmp_path) as (_broker, rest, peer):
        await peer.produce()
        await peer.subscribe()
        await rest(
            "POST",
            f"{T}/dispatchRate",
            {
                "dispatchThrottlingRateInMsg": 1,
                "relativeToPublishRate": True,
                "ratePeriodInSecond": 3600,
            },
        )
        await publish(peer, MANY)
        await asyncio.wait_for(receive(peer, MANY), 120)


async def subscribe(peer: Peer, consumer_id: int) -> api.BaseCommand:
    return await peer.subscribe(consumer_id, consumer_name="same")


async def test_a_consumer_that_comes_back_too_often_is_refused_and_others_are_not(
    tmp_path: Path,
) -> None:
    async with broker_with_rest(tmp_path) as (_broker, rest, peer):
        await peer.produce()
        rate = {"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 3600}
        await rest("POST", f"{T}/subscribeRate", rate)
        for _ in range(2):
            assert (await subscribe(peer, 1)).type == Type.SUCCESS
            await peer.ask("close_consumer", consumer_id=1)
        refused = await subscribe(peer, 1)
        assert refused.error.message.startswith("Subscribe limited by subscribe rate limit")
        assert (await subscribe(peer, 2)).type == Type.SUCCESS


async def test_a_resource_group_is_shared_by_all_topics_of_its_namespaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttles, "HOLD_S_MAX", 3600.0)
    async with broker_with_rest(tmp_path) as (broker, rest, peer):
        await rest("PUT", "/admin/v2/resourcegroups/g", {"publishRateInMsgs": 20})
        await peer.produce()
        await rest("POST", f"{NAMESPACE}/resourcegroup/g")
        assert (await rest.ask("GET", f"{NAMESPACE}/resourcegroup")).text == "g"
        await until(lambda: host_of(broker).throttles is not None)  # the watch shows the group
        other = f"{TOPIC}-other"
        await peer.lookup(other)
        await peer.produce(2, other)
        started = time.monotonic()
        for sequence in range(MANY // 2):
            for producer in (1, 2):
                await peer.send(b"x", sequence, producer)
        assert time.monotonic() - started > RATE_S
        before = host_of(broker).throttles
        hardly_any = {"publishRateInMsgs": -1, "publishRateInBytes": 1}
        await rest("PUT", "/admin/v2/resourcegroups/g", hardly_any)
        await until(lambda: host_of(broker).throttles is not before)
        await publish(peer, 1, 1000, A_DAYS_BYTES)
        sending = asyncio.create_task(publish(peer, 2, 1001))
        await asyncio.sleep(0.2)
        assert not sending.done()
        await rest("PUT", "/admin/v2/resourcegroups/g", {"publishRateInBytes": -1})
        await asyncio.wait_for(sending, 120)


async def test_how_long_a_message_may_be_delayed_is_limited(tmp_path: Path) -> None:
    """Pulsar refuses such a message, and takes the others."""
    async with broker_with_rest(tmp_path) as (broker, rest, peer):
        await peer.produce()
        delay = {"active": True, "tickTime": 100, "maxDeliveryDelayInMillis": 60_000}
        await rest("POST", f"{T}/delayedDelivery", delay)
        now_ms = broker.context.clock.wall_ms()
        for sequence, delay_ms in ((0, 30_000), (1, 0)):
            sent = entry(b"x", sequence, deliver_at_time=now_ms + delay_ms)
            peer.write(requests.send(1, sequence, sent))
            await peer.answer(Type.SEND_RECEIPT)
        peer.write(requests.send(1, 2, entry(b"x", 2, deliver_at_time=now_ms + 90_000)))
        refused = await peer.answer(Type.SEND_ERROR)
        assert "max allowed delivery delay of 60000" in refused.send_error.message
