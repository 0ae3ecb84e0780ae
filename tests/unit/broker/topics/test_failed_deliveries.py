"""Deliveries that fail in an unforeseen way: they are reported and tried again, and nothing is
skipped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.broker.topics import subscription_host
from magnetar.broker.topics.message_sender import MessageSender
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.wire import requests
from tests.support.acknowledging import subscription_of
from tests.support.brokers import TOPIC, Peer, Type
from tests.support.deliveries import EXCLUSIVE, SHARED, play
from tests.support.polling import until

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


def later(work: Callable[..., Any], failing: Callable[..., Any]) -> Callable[..., Any]:
    """`work` once, then `failing`."""
    left = [work]
    return lambda *arguments: (left.pop() if left else failing)(*arguments)


@pytest.mark.parametrize("where", ["memory", "storage"])
def test_a_surprise_on_the_way_to_a_consumer_is_reported_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Though nothing else happens on the topic; while it lasts it is listed as damage, and what
    else wakes the subscription waits."""
    monkeypatch.setattr(
        subscription_host, "traits_of", failing(subscription_host.traits_of, FAILURES)
    )

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        sent = [await peer.send(b"x", number) for number in range(3)]
        topic: TopicHost = next(
            owned.topics[TOPIC]
            for owned in broker.ownership.owned.values()
            if TOPIC in owned.topics
        )
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


@pytest.mark.parametrize(
    "values",
    [{"subType": EXCLUSIVE}, {"subType": SHARED}, {"subType": EXCLUSIVE, "durable": False}],
)
def test_what_was_handed_out_and_could_not_be_sent_is_delivered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any]
) -> None:
    """By then delivery has passed it by: its consumer is sent away, comes back and gets it; a
    reader finds its subscription."""
    monkeypatch.setattr(MessageSender, "send", failing(MessageSender.send, 1))

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        sent = [await peer.send(b"x", number) for number in range(3)]
        await peer.subscribe(**values)
        host = await subscription_of(broker)
        peer.write(requests.flow(1, 10))
        assert (await peer.answer(Type.CLOSE_CONSUMER)).close_consumer.consumer_id == 1
        await peer.subscribe(**values)
        assert await subscription_of(broker) is host
        peer.write(requests.flow(1, 10))
        received = [(await peer.message())[0].message_id for _ in sent]
        assert [(one.ledgerId, one.entryId) for one in received] == sent
        damage = host.topic.context.damage
        assert (len(damage), damage.met) == (0, 1)

    play(tmp_path, script)


def test_only_whom_something_could_not_be_sent_to_is_sent_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others keep what they got, and get what was meant for that one."""
    monkeypatch.setattr(
        MessageSender, "send", later(MessageSender.send, failing(MessageSender.send, 1))
    )

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        sent = [await peer.send(b"x", number) for number in range(4)]
        for consumer_id in (1, 2):
            await peer.subscribe(consumer_id, subType=SHARED)
        peer.write(requests.flow(1, 1) + requests.flow(2, 10))
        first, _ = await peer.message()
        assert (first.consumer_id, first.message_id.entryId) == (1, sent[0][1])
        assert (await peer.answer(Type.CLOSE_CONSUMER)).close_consumer.consumer_id == 2
        peer.write(requests.flow(1, 10))
        others = [(await peer.message())[0] for _ in sent[1:]]
        assert [
            (one.consumer_id, one.message_id.ledgerId, one.message_id.entryId) for one in others
        ] == [(1, *at) for at in sent[1:]]
        assert await peer.is_quiet()

    play(tmp_path, script)
