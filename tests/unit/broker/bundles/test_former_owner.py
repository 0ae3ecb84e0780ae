"""An owner that was fenced and has not learned of it, with nothing to write: it gives no client
an outdated answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.errors import WireCode
from magnetar.storage import names
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from tests.support.broker_pair import pair
from tests.support.brokers import STILL, TOPIC, Peer, Type, command_frame
from tests.support.deliveries import publish
from tests.support.namespace_policies import DEDUPLICATED, play

CONSUMER, EARLIER_PRODUCER = 4, "p-2"
ENDED_IN: dict[str, Any] = {"txnid_most_bits": 0, "txnid_least_bits": 0}
QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "a subscription that is there": (
        "subscribe",
        {"topic": TOPIC, "subscription": "s", "subType": 0, "consumer_id": 5},
    ),
    "a reader": (
        "subscribe",
        {"topic": TOPIC, "subscription": "r", "subType": 0, "consumer_id": 5, "durable": False},
    ),
    "the last message": ("get_last_message_id", {"consumer_id": CONSUMER}),
    "the last watermark": ("get_last_watermark", {"consumer_id": CONSUMER}),
    "the last sequence id": (
        "producer",
        {"topic": TOPIC, "producer_id": 2, "producer_name": EARLIER_PRODUCER},
    ),
    "the end of a transaction on a topic that its successor may have made": (
        "end_txn_on_partition",
        {**ENDED_IN, "topic": TOPIC + "-absent"},
    ),
    "the end of a transaction on a subscription that its successor may have made": (
        "end_txn_on_subscription",
        {**ENDED_IN, "subscription": api.Subscription(topic=TOPIC, subscription="absent")},
    ),
}
ANSWERS = (
    Type.SUCCESS,
    Type.PRODUCER_SUCCESS,
    Type.GET_LAST_MESSAGE_ID_RESPONSE,
    Type.GET_LAST_WATERMARK_RESPONSE,
    Type.END_TXN_ON_PARTITION_RESPONSE,
    Type.END_TXN_ON_SUBSCRIPTION_RESPONSE,
)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_former_owner_that_has_not_learned_of_its_end_gives_no_outdated_answer(
    tmp_path: Path, question: str
) -> None:
    """A client with a seek or a receipt of the new owner may come back to the former one. It gets
    no answer, and the incarnation ends. So for a coordinator whose transaction would count as
    ended, though the former owner can have nothing of it.

    By itself it looks for its claim once in a minute.
    """

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce(3, producer_name=EARLIER_PRODUCER)
        assert (await peer.ask("close_producer", producer_id=3)).type == Type.SUCCESS
        await peer.produce()
        await publish(peer)
        for subscription in ("s", "other"):
            assert (await peer.subscribe(CONSUMER, subscription=subscription)).type == Type.SUCCESS
            if subscription == "s":
                assert (await peer.ask("close_consumer", consumer_id=CONSUMER)).type == Type.SUCCESS
        field, values = QUESTIONS[question]
        await peer.lookup(values.get("topic", TOPIC))
        await broker.context.volume.remove(names.claim(broker.incarnation))
        peer.write(command_frame(field, request_id=70, **values))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await peer.answer()
        assert "claim" in await asyncio.wait_for(broker.ended(), 120)

    play(tmp_path, script, DEDUPLICATED, claim_check_s=60)


def test_an_owner_answers_the_same_questions(tmp_path: Path) -> None:
    """The control: with its claim in place every one of them gets an answer."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.subscribe(CONSUMER, subscription="other")
        for field, values in QUESTIONS.values():
            await peer.lookup(values.get("topic", TOPIC))
            answer = await peer.ask(field, **values)
            assert answer.type in ANSWERS, answer
            assert answer.end_txn_on_partition_response.error in (
                0,
                int(WireCode.TOPIC_NOT_FOUND),
            ), answer
            assert answer.end_txn_on_subscription_response.error in (
                0,
                int(WireCode.SUBSCRIPTION_NOT_FOUND),
            ), answer
            if field == "subscribe":
                peer.write(requests.close_consumer(5, 99))
                await peer.answer(Type.SUCCESS)

    play(tmp_path, script, DEDUPLICATED)


async def test_who_was_fenced_begins_no_term(tmp_path: Path) -> None:
    """A destination whose claim is gone, unknown to itself: files of its log may be gone as
    well, so no chain may begin in one of them."""

    async with pair(tmp_path, claim_check_s=60.0, balance=STILL) as cluster:
        fenced, name = cluster.second, str(await cluster.bundle())
        before = [
            span
            for span in (await cluster.record()).chain
            if span.incarnation == fenced.incarnation
        ]
        await fenced.context.volume.remove(names.claim(fenced.incarnation))
        moving = asyncio.ensure_future(
            cluster.first.ownership.move(name, fenced.incarnation, "test")
        )
        assert "claim" in await asyncio.wait_for(fenced.ended(), 120)
        assert [
            span
            for span in (await cluster.record()).chain
            if span.incarnation == fenced.incarnation
        ] == before
        moving.cancel()
        await asyncio.gather(moving, return_exceptions=True)
