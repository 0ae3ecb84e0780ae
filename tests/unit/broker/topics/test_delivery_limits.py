"""Limits and policies of delivery, seen from the other end of a real socket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.errors import WireCode
from magnetar.wire import requests
from tests.support.brokers import CLOCK, TOPIC, Peer, Type, open_peer
from tests.support.deliveries import SHARED, play, publish, received


async def set_policies(broker: Broker, policies: dict[str, Any]) -> None:
    topic = next(
        owned.topics[TOPIC] for owned in broker.ownership.owned.values() if TOPIC in owned.topics
    )
    await topic.update_properties({"policies": json.dumps(policies)})


def test_a_consumer_at_its_limit_goes_on_at_half_of_it(tmp_path: Path) -> None:
    """What it asks for concurrently is banked; a policy that lifts the limit acts at once."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        ids = [await publish(peer) for _ in range(20)]
        await set_policies(broker, {"max_unacked_messages_per_consumer": 4})
        await peer.subscribe(subType=SHARED)
        peer.write(requests.flow(1, 6))
        for _ in range(4):
            await peer.message()
        assert await peer.is_quiet()
        peer.write(requests.flow(1, 2))
        assert await peer.is_quiet()
        stats = (await peer.ask("consumer_stats", consumer_id=1)).consumer_stats_response
        assert (
            stats.blockedConsumerOnUnackedMsgs,
            stats.unackedMessages,
            stats.availablePermits,
        ) == (True, 4, 4)
        peer.write(requests.ack(1, ids[:1]))
        assert await peer.is_quiet()
        peer.write(requests.ack(1, ids[1:2]))
        assert [(await peer.message())[0].message_id.entryId for _ in range(2)] == [4, 5]
        assert await peer.is_quiet()
        await set_policies(broker, {})
        assert [(await peer.message())[0].message_id.entryId for _ in range(2)] == [6, 7]

    play(tmp_path, script)


def test_a_subscription_at_its_limit_stops_for_all_consumers(tmp_path: Path) -> None:
    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        ids = [await publish(peer) for _ in range(6)]
        await set_policies(broker, {"max_unacked_messages_per_subscription": 4})
        await peer.subscribe(subType=SHARED)
        assert await received(peer, 4) == [0, 1, 2, 3]
        async with open_peer(broker) as other:
            await other.subscribe(consumer_id=2, subType=SHARED)
            other.write(requests.flow(2, 10))
            assert await other.is_quiet()
            peer.write(requests.ack(1, ids[:2]))
            assert [(await other.message())[0].message_id.entryId for _ in range(2)] == [4, 5]

    play(tmp_path, script)


def test_delays_can_be_switched_off(tmp_path: Path) -> None:
    """What waits then comes at once."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        await peer.subscribe(subType=SHARED)
        peer.write(requests.flow(1, 10))
        await publish(peer, deliver_at_time=CLOCK.wall_ms() + 600_000)
        assert await peer.is_quiet()
        await set_policies(
            broker, {"delayed_delivery_policies": {"active": False, "tickTime": 1000}}
        )
        await peer.message()

    play(tmp_path, script)


@pytest.mark.parametrize(
    ("policies", "options", "code"),
    [
        ({"max_consumers_per_subscription": 1}, {}, WireCode.CONSUMER_BUSY),
        ({"max_consumers_per_topic": 1}, {"subscription": "other"}, WireCode.CONSUMER_BUSY),
        ({"max_subscriptions_per_topic": 1}, {"subscription": "other"}, WireCode.NOT_ALLOWED),
        ({"subscription_types_enabled": ["Exclusive"]}, {}, WireCode.NOT_ALLOWED),
        (
            {"autoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": False}},
            {"subscription": "other"},
            WireCode.SUBSCRIPTION_NOT_FOUND,
        ),
    ],
)
def test_what_policies_forbid(
    tmp_path: Path, policies: dict[str, Any], options: dict[str, Any], code: int
) -> None:
    """A second consumer is refused, with the code of which clients know what to do; the first
    one stays."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.subscribe(subType=SHARED)
        await set_policies(broker, policies)
        answer = await peer.subscribe(consumer_id=2, subType=SHARED, **options)
        assert (answer.type, answer.error.error) == (Type.ERROR, int(code))

    play(tmp_path, script)
