"""The incarnation of topics over a real broker: what ends them, what they drop, and what of it a
restart or a crash in the middle leaves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from magnetar.broker.administration.statistics import message_id
from magnetar.broker.topics.publish_times import first_published_at
from magnetar.broker.upkeep.expiry import expire_subscriptions, trim_now
from magnetar.clock import elapsed_ms
from magnetar.errors import WireCode
from magnetar.storage.manifest import Compacted, TopicSegments, commit_manifest
from magnetar.topics.ledgers import Position
from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.entries import encode_entry
from tests.support.brokers import CLOCK, TOPIC, Type
from tests.support.deliveries import seek
from tests.support.polling import until
from tests.support.rest import NAMESPACE, TOPICS
from tests.support.topic_lives import PATH, PAYLOAD, Lives, play
from tests.support.transacting import late_commit


@pytest.mark.parametrize("crash", [False, True])
def test_what_everybody_has_acknowledged_is_dropped_for_good(tmp_path: Path, crash: bool) -> None:
    """Not before the last subscription has it; the next reader begins at the first entry there
    is, ids go on, and a restart knows it all."""

    async def script(lives: Lives) -> None:
        async with lives.one(crash=crash) as life:
            await life.peer.produce()
            for consumer_id, name in ((1, "fast"), (2, "slow")):
                assert (
                    await life.peer.subscribe(consumer_id, subscription=name)
                ).type == Type.SUCCESS
            positions = await life.publish(10)
            await life.acknowledge(1, positions)
            await life.acknowledge(2, positions[:4])
            ledgers = life.topic().core.ledgers
            await until(lambda: ledgers.first == 4)
            assert ledgers.position(ledgers.first) == positions[4]
        async with lives.one(crash=crash) as life:
            ledgers = life.topic().core.ledgers
            assert ledgers.position(ledgers.first) == positions[4]
            assert (await life.peer.subscribe(3, subscription="late")).type == Type.SUCCESS
            life.peer.write(requests.flow(3, 1))
            message, _ = await life.peer.message()
            assert (message.message_id.ledgerId, message.message_id.entryId) == positions[4]
            for name in ("fast", "slow", "late"):
                await life.rest("POST", f"{PATH}/subscription/{name}/skip_all")
            await until(lambda: ledgers.first == ledgers.end)
            await life.peer.produce(producer_id=9)
            [later] = [await life.peer.send(b"x", 0, producer_id=9)]
            assert later > positions[-1]

    play(tmp_path, script)


def test_retention_and_grace_keep_what_nobody_needs(tmp_path: Path) -> None:
    """Acknowledged by all: kept as long as the policy says, dropped once it is lifted; unread
    topics keep what has just come."""

    async def script(lives: Lives) -> None:
        async with lives.one() as life:
            await life.rest(
                "POST",
                f"{NAMESPACE}/retention",
                {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
            )
            await life.peer.produce()
            positions = await life.publish(3)
            topic = life.topic()
            for _ in range(5):
                await life.rest("POST", f"{PATH}/trim", status=200)
            assert topic.core.ledgers.first == 0
            await life.rest("DELETE", f"{NAMESPACE}/retention")
            await until(lambda: topic.core.ledgers.first == 3)
            assert await life.rest.get(f"{PATH}/lastMessageId") == {
                "ledgerId": -1,
                "entryId": -1,
                "partitionIndex": -1,
                "batchSize": 0,
                "batchIndex": -1,
            }
            assert (await life.publish(1, start=3)) > positions[-1:]

    play(tmp_path, script)


def test_with_a_grace_nothing_young_is_dropped(tmp_path: Path) -> None:
    async def script(lives: Lives) -> None:
        async with lives.one() as life:
            await life.peer.produce()
            await life.publish(3)
            topic = life.topic()
            await until(lambda: len(topic.core.ages.marks) > 0)
            await asyncio.sleep(0.1)
            assert topic.core.ledgers.first == 0
            await life.rest("POST", f"{PATH}/trim", status=200)
            assert topic.core.ledgers.first == 3, "an administrator need not wait"

    play(tmp_path, script, trim_grace_s=600.0)


@pytest.mark.parametrize("comes", ["a seek back", "a new subscription"])
def test_what_is_needed_again_while_a_compacted_view_is_looked_for_stays(
    tmp_path: Path, comes: str
) -> None:
    """Nothing that a SEEK or a SUBSCRIBE was answered with is dropped by a decision from before."""

    async def script(lives: Lives) -> None:
        async with lives.one() as life:
            await life.peer.produce()
            if comes == "a seek back":
                assert (await life.peer.subscribe(1)).type == Type.SUCCESS
            positions = await life.publish(3)
            if comes == "a seek back":
                await life.acknowledge(1, positions)
            topic = life.topic()
            catalog, looking, go_on = topic.bundle.catalog, asyncio.Event(), asyncio.Event()
            refresh = catalog.refresh

            async def slow_refresh() -> None:
                looking.set()
                await go_on.wait()
                await refresh()

            catalog.refresh = slow_refresh  # type: ignore[method-assign]
            trimming = asyncio.create_task(trim_now(topic))
            await looking.wait()
            if comes == "a seek back":
                ledger, number = positions[1]
                identifier = api.MessageIdData(ledgerId=ledger, entryId=number)
                assert await seek(life.peer, message_id=identifier) == [
                    Type.CLOSE_CONSUMER,
                    Type.SUCCESS,
                ]
                kept = positions[1:]
            else:
                assert (await life.peer.subscribe(1, subscription="late")).type == Type.SUCCESS
                kept = positions
            go_on.set()
            await trimming
            assert topic.core.ledgers.position(topic.core.ledgers.first) == kept[0]
            if comes == "a seek back":
                assert (await life.peer.subscribe(2)).type == Type.SUCCESS
            consumer_id = 2 if comes == "a seek back" else 1
            life.peer.write(requests.flow(consumer_id, 10))
            found = [(await life.peer.message())[0].message_id for _ in kept]
            assert [(one.ledgerId, one.entryId) for one in found] == kept

    play(tmp_path, script, retention_check_s=1000.0)


@pytest.mark.parametrize("crash", [False, True])
def test_a_terminated_topic_stays_so(tmp_path: Path, crash: bool) -> None:
    """The last id is answered (twice the same), publishing ends with TopicTerminated, also in
    the next incarnation."""

    async def script(lives: Lives) -> None:
        async with lives.one(crash=crash) as life:
            await life.peer.produce()
            positions = await life.publish(3)
            last = message_id(Position(*positions[-1]), -1)
            assert await life.rest("POST", f"{PATH}/terminate", status=200) == last
            await life.peer.answer(Type.CLOSE_PRODUCER)
            assert await life.rest("POST", f"{PATH}/terminate", status=200) == last
        async with lives.one() as life:
            answer = await life.peer.ask("producer", topic=TOPIC, producer_id=3)
            assert (answer.type, answer.error.error) == (Type.ERROR, WireCode.TOPIC_TERMINATED)
            assert (await life.rest.get(f"{PATH}/internalStats"))["state"] == "Terminated"
            assert (await life.peer.subscribe(1)).type == Type.SUCCESS
            life.peer.write(requests.flow(1, 10))
            received = []
            for _ in range(3):
                message, _ = await life.peer.message()
                received.append((message.message_id.ledgerId, message.message_id.entryId))
            assert received == positions
            await life.acknowledge(1, positions, Type.REACHED_END_OF_TOPIC)

    play(tmp_path, script, trim_grace_s=600.0)


@pytest.mark.parametrize("crash", [False, True])
def test_a_deleted_topic_is_gone_and_its_ids_are_never_given_again(
    tmp_path: Path, crash: bool
) -> None:
    """Not while it has clients, unless by force; created again it begins empty, behind every id
    it ever had, in this incarnation and the next."""

    async def script(lives: Lives) -> None:
        seen: list[tuple[int, int]] = []
        async with lives.one(crash=crash) as life:
            await life.peer.produce()
            seen += await life.publish(3)
            await life.rest("DELETE", PATH, status=412)
            await life.rest("DELETE", f"{PATH}?force=true")
            await life.peer.answer(Type.CLOSE_PRODUCER)
            await life.rest("DELETE", PATH, status=404)
            assert TOPIC not in await life.rest.get(TOPICS)
            await life.peer.produce(producer_id=2)
            again = [await life.peer.send(b"again", 0, producer_id=2)]
            assert again > seen[-1:]
            seen += again
            assert TOPIC in await life.rest.get(TOPICS)
        async with lives.one(crash=crash) as life:
            assert (await life.peer.subscribe(1)).type == Type.SUCCESS
            life.peer.write(requests.flow(1, 10))
            message, body = await life.peer.message()
            assert (message.message_id.ledgerId, message.message_id.entryId) == seen[-1]
            assert body.endswith(b"again")
            await life.rest("DELETE", f"{PATH}?force=true")
            await life.peer.answer(Type.CLOSE_CONSUMER)
        async with lives.one() as life:
            assert not life.topics()
            await life.peer.produce()
            assert (await life.publish(1)) > seen[-1:]

    play(tmp_path, script, trim_grace_s=600.0)


@pytest.mark.parametrize(
    "mode", ["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"]
)
def test_a_topic_that_nobody_uses_is_deleted(tmp_path: Path, mode: str) -> None:
    """Only when policy and mode say so: not with a producer, not with a subscription that
    counts, not while it is retained."""

    async def script(lives: Lives) -> None:
        async with lives.one() as life:
            policy = {
                "inactiveTopicDeleteMode": mode,
                "maxInactiveDurationSeconds": 1,
                "deleteWhileInactive": True,
            }
            await life.peer.produce()
            [position] = await life.publish(1)
            await life.rest("PUT", f"{PATH}/subscription/s", {"ledgerId": -1, "entryId": -1})
            await life.rest(
                "POST",
                f"{NAMESPACE}/retention",
                {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
            )
            await life.rest("POST", f"{NAMESPACE}/inactiveTopicPolicies", policy)
            topic = life.topic()
            assert topic.unused_since_ms is None, "it has a producer"
            life.peer.write(requests.close_producer(1, life.peer.next_request()))
            await life.peer.answer(Type.SUCCESS)
            if mode == "delete_when_no_subscriptions":
                await life.rest("DELETE", f"{PATH}/subscription/s")
            else:
                await life.rest("POST", f"{PATH}/subscription/s/skip_all")
            await until(lambda: topic.unused_since_ms is not None)
            assert TOPIC in life.topics(), "retention keeps it"
            await life.rest("DELETE", f"{NAMESPACE}/retention")
            async with asyncio.timeout(120):
                while await life.rest.get(TOPICS):
                    await asyncio.sleep(0.005)
            await until(lambda: not life.topics())
            await life.peer.produce(producer_id=5)
            assert await life.peer.send(b"new", 0, producer_id=5) > position

    play(tmp_path, script)


def test_a_message_beyond_its_time_to_live_is_expired_and_no_other(tmp_path: Path) -> None:
    """By the periodic look, and by request; what has come a moment ago stays, whatever its
    client's clock said."""

    async def script(lives: Lives) -> None:
        async with lives.one() as life:
            await life.peer.produce()
            assert (await life.peer.subscribe(1)).type == Type.SUCCESS
            topic = life.topic()
            cursor = topic.core.subscription("s").cursor
            await life.publish(1)
            await until(lambda: len(topic.core.ages.marks) == 1)
            await life.rest("POST", f"{NAMESPACE}/messageTTL", 1)
            await until(lambda: cursor.mark_delete == 1)
            await life.rest("DELETE", f"{NAMESPACE}/messageTTL")
            data = api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
            life.peer.write(requests.send(1, 1, encode_entry(data, b"x")))
            await life.peer.answer(Type.SEND_RECEIPT)
            await life.rest("POST", f"{PATH}/subscription/s/expireMessages/3600")
            await life.rest("POST", f"{PATH}/all_subscription/expireMessages/3600")
            assert cursor.mark_delete == 1
            assert topic.subscriptions["s"].traffic.messages_expired == 1
            assert (await life.rest.get(f"{PATH}/stats"))["subscriptions"]["s"]["msgBacklog"] == 1
            await life.rest("POST", f"{PATH}/subscription/s/expireMessages/-1", status=400)
            [ledger, number] = life.topic().core.last_confirmed
            await life.rest(
                "POST",
                f"{PATH}/subscription/s/expireMessages",
                {"ledgerId": ledger, "entryId": number},
            )
            assert cursor.mark_delete == 2

    play(tmp_path, script, retention_check_s=1000.0)


def test_a_late_commit_expires_nothing_that_is_younger_than_it_looks(tmp_path: Path) -> None:
    """Its entries were sent before those that they lie behind."""

    async def script(lives: Lives) -> None:
        async with lives.one() as life:
            await life.peer.produce()
            assert (await life.peer.subscribe(1)).type == Type.SUCCESS
            await late_commit(life.peer, TxnId(0, 0))
            topic = life.topic()
            assert [await first_published_at(topic, cutoff) for cutoff in (1500, 1800, 2000)] == [
                5,
                8,
                10,
            ]

    play(tmp_path, script, topic_check_s=1000.0)


@pytest.mark.parametrize(
    ("policy", "code"), [("producer_request_hold", 7), ("producer_exception", 8)]
)
def test_a_backlog_beyond_its_quota_keeps_producers_away(
    tmp_path: Path, policy: str, code: int
) -> None:
    """Those that are there are disconnected, new ones refused; once the backlog is gone they are
    welcome."""

    async def script(lives: Lives) -> None:
        async with lives.one() as life:
            await life.peer.produce()
            await life.rest("PUT", f"{PATH}/subscription/s", {"ledgerId": -1, "entryId": -1})
            await life.publish(5)
            await life.rest(
                "POST", f"{NAMESPACE}/backlogQuota", {"limitSize": 4000, "policy": policy}
            )
            await life.peer.answer(Type.CLOSE_PRODUCER)
            refused = await life.peer.ask("producer", topic=TOPIC, producer_id=2)
            assert (refused.type, refused.error.error) == (Type.ERROR, code)
            await life.rest("POST", f"{PATH}/subscription/s/skip/4")
            topic = life.topic()
            await until(lambda: topic.publishing.block is None)
            await life.peer.produce(producer_id=3)

    play(tmp_path, script)


def test_a_quota_acts_at_the_next_producer_and_when_it_changes(tmp_path: Path) -> None:
    """Of a namespace and of a topic, without waiting for the periodic look, which never comes
    here; and it is lifted in the same way."""

    async def script(lives: Lives) -> None:
        async with lives.one() as life:
            await life.peer.produce()
            await life.rest("PUT", f"{PATH}/subscription/s", {"ledgerId": -1, "entryId": -1})
            await life.publish(3)
            await life.rest(
                "POST",
                f"{NAMESPACE}/backlogQuota",
                {"limitSize": 2000, "policy": "producer_exception"},
            )
            await life.peer.answer(Type.CLOSE_PRODUCER)
            refused = await life.peer.ask("producer", topic=TOPIC, producer_id=2)
            assert (refused.type, refused.error.error) == (
                Type.ERROR,
                WireCode.PRODUCER_BLOCKED_QUOTA_EXCEPTION,
            )
            await life.rest(
                "POST",
                f"{PATH}/backlogQuota",
                {"limitSize": 5000, "policy": "producer_request_hold"},
            )
            await until(lambda: life.topic().publishing.block is None)
            await life.peer.produce(producer_id=3)
            for number in range(3):
                await life.peer.send(PAYLOAD, number, 3)
            sent_away = await life.peer.ask("producer", topic=TOPIC, producer_id=4)
            assert (sent_away.type, sent_away.close_producer.producer_id) == (
                Type.CLOSE_PRODUCER,
                3,
            )
            assert (
                await life.peer.answer(Type.ERROR)
            ).error.error == WireCode.PRODUCER_BLOCKED_QUOTA_ERROR
            await life.rest("POST", f"{PATH}/subscription/s/skip/4")
            await life.peer.produce(producer_id=5)

    play(tmp_path, script, topic_check_s=1000.0)


def test_eviction_moves_the_slowest_subscription_on(tmp_path: Path) -> None:
    """To nine tenths of the limit; a faster one is not touched."""

    async def script(lives: Lives) -> None:
        async with lives.one() as life:
            await life.peer.produce()
            for name in ("slow", "fast"):
                await life.rest(
                    "PUT", f"{PATH}/subscription/{name}", {"ledgerId": -1, "entryId": -1}
                )
            await life.publish(100)
            await life.rest("POST", f"{PATH}/subscription/fast/skip/95")
            await life.rest(
                "POST",
                f"{PATH}/backlogQuota",
                {"limitSize": 50_000, "policy": "consumer_backlog_eviction"},
            )
            core = life.topic().core
            slow, fast = core.subscription("slow").cursor, core.subscription("fast").cursor
            await until(lambda: slow.backlog < 50)
            assert slow.backlog >= 35
            assert fast.backlog == 5

    play(tmp_path, script)


def test_a_compacted_topic_keeps_what_is_behind_its_view_until_its_name_begins_again(
    tmp_path: Path,
) -> None:
    """Retention drops what the view stands for; what was compacted in an earlier incarnation of
    the name holds nothing back."""

    async def script(lives: Lives) -> None:
        async with lives.one() as life:
            await life.peer.produce()
            horizon = (await life.publish(5))[2]
            topic = life.topic()
            context, view = topic.context, TopicSegments(compacted=Compacted(1, horizon, ()))
            await commit_manifest(
                context.store,
                context.volume,
                CLOCK,
                topic.bundle.name,
                lambda manifest: manifest.with_topic(TOPIC, view),
            )
            await life.rest("POST", f"{PATH}/trim", status=200)
            assert topic.core.ledgers.first == 3
            await life.rest("DELETE", f"{PATH}?force=true")
            await life.peer.answer(Type.CLOSE_PRODUCER)
            await life.peer.produce(producer_id=2)
            await life.peer.send(b"x", 0, producer_id=2)
            again = life.topic()
            await life.rest("POST", f"{PATH}/trim", status=200)
            assert again.core.ledgers.first == again.core.ledgers.end

    play(tmp_path, script, retention_check_s=1000.0, maintenance_s=1000.0)


def test_a_subscription_that_nobody_uses_expires(tmp_path: Path) -> None:
    """After as many minutes as the policy says, and not while it has a consumer."""

    async def script(lives: Lives) -> None:
        async with lives.one() as life:
            await life.peer.produce()
            assert (await life.peer.subscribe(1, subscription="used")).type == Type.SUCCESS
            await life.rest("PUT", f"{PATH}/subscription/unused", {})
            await life.rest("POST", f"{NAMESPACE}/subscriptionExpirationTime", 60)
            topic = life.topic()
            await until(lambda: topic.subscriptions["unused"].unused_since_ms is not None)
            now_ms = elapsed_ms(topic.context.clock)
            await expire_subscriptions(topic, now_ms + 59 * 60_000)
            assert sorted(topic.subscriptions) == ["unused", "used"]
            await expire_subscriptions(topic, now_ms + 60 * 60_000)
            assert sorted(topic.subscriptions) == ["used"]

    play(tmp_path, script)


def test_truncation_drops_everything_and_no_subscription_waits_for_it(tmp_path: Path) -> None:
    async def script(lives: Lives) -> None:
        async with lives.one(crash=True) as life:
            await life.peer.produce()
            await life.rest("PUT", f"{PATH}/subscription/s", {"ledgerId": -1, "entryId": -1})
            positions = await life.publish(4)
            await life.rest("DELETE", f"{PATH}/truncate")
            assert life.topic().core.subscription("s").backlog == 0
        async with lives.one() as life:
            assert (await life.rest.get(f"{PATH}/stats"))["subscriptions"]["s"]["msgBacklog"] == 0
            await life.peer.produce()
            assert (await life.publish(1)) > positions[-1:]
            assert (await life.rest.get(f"{PATH}/stats"))["subscriptions"]["s"]["msgBacklog"] == 1

    play(tmp_path, script)
