"""Clocks that are wrong, over a real broker: what decides about data goes by time that was seen
to pass, and goes on in the next incarnation."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.broker.bundles.bundle import HEARTBEAT_S
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.broker.upkeep.expiry import (
    delete_unused,
    drop_unneeded,
    enforce_quota,
    expire_due,
    expire_subscriptions,
)
from magnetar.clock import SystemClock, elapsed_ms
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.entries import encode_entry
from tests.support.brokers import CLOCK, Type
from tests.support.polling import until
from tests.support.rest import NAMESPACE
from tests.support.topic_lives import PATH, Life, Lives, play

YEAR_MS = 365 * 24 * 3_600_000
TTL_S = 60


class Clocks:
    """By how much the clocks of the broker are ahead of the machine's."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.wall_ms, self.elapsed_s = 0, 1_000_000.0
        machine = SystemClock()
        patch.setattr(CLOCK, "wall_ms", lambda: machine.wall_ms() + self.wall_ms)
        patch.setattr(CLOCK, "monotonic", lambda: machine.monotonic() + self.elapsed_s)

    def pass_time(self, seconds: float) -> None:
        """Both go on, as they do when time passes."""
        self.elapsed_s += seconds
        self.wall_ms += int(seconds * 1000)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


async def look(topic: TopicHost) -> None:
    """Everything that becomes due by itself."""
    topic.core.age(elapsed_ms(CLOCK))
    for work in (expire_due, enforce_quota, expire_subscriptions, delete_unused):
        await work(topic, elapsed_ms(CLOCK))
    await drop_unneeded(topic, elapsed_ms(CLOCK), grace_ms=0)


async def prepare(life: Life) -> TopicHost:
    """A topic with a time to live, retention, an age quota and deletion of what is unused, and
    two subscriptions that nobody uses."""
    for name in ("s", "behind"):
        await life.rest("PUT", f"{PATH}/subscription/{name}", {"ledgerId": -1, "entryId": -1})
    await life.rest(
        "POST", f"{NAMESPACE}/retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1}
    )
    await life.rest("POST", f"{NAMESPACE}/messageTTL", TTL_S)
    await life.rest("POST", f"{NAMESPACE}/subscriptionExpirationTime", 2)
    quota = {"limitTime": 3600, "policy": "consumer_backlog_eviction"}
    await life.rest("POST", f"{NAMESPACE}/backlogQuota?backlogQuotaType=message_age", quota)
    topic = life.topic()
    await until(lambda: bool(topic.policies.backlog_quotas))
    return topic


@pytest.mark.parametrize("jump_ms", [YEAR_MS, -YEAR_MS])
def test_a_wall_clock_that_jumps_decides_nothing(
    tmp_path: Path, clocks: Clocks, jump_ms: int
) -> None:
    """Nothing is expired, dropped or deleted by a jump, and what was published while the clock
    was wrong is when its time has come."""

    async def script(lives: Lives) -> None:
        async with lives.one() as life:
            await life.peer.produce()
            topic = await prepare(life)
            await life.publish(2)
            await look(topic)
            clocks.wall_ms += jump_ms
            await life.publish(2, 2)
            for _ in range(2):
                await look(topic)
            assert sorted(topic.subscriptions) == ["behind", "s"]
            assert [found.backlog for found in topic.core.subscriptions.values()] == [4, 4]
            clocks.wall_ms -= jump_ms
            clocks.pass_time(TTL_S + 1)
            await look(topic)
            assert [found.backlog for found in topic.core.subscriptions.values()] == [0, 0]
            assert topic.core.ledgers.first == 4
            clocks.pass_time(61)
            await look(topic)
            assert not topic.subscriptions

    play(tmp_path, script, topic_check_s=1000.0)


@pytest.mark.parametrize("crash", [False, True], ids=["transferred", "crash"])
@pytest.mark.parametrize("checkpoint", [False, True], ids=["log", "checkpoint"])
def test_ages_go_on_in_the_next_incarnation(
    tmp_path: Path, clocks: Clocks, crash: bool, checkpoint: bool
) -> None:
    """On a machine that was started at another time and whose wall clock is a year ahead: time
    that an owner saw pass counts, no other."""

    async def script(lives: Lives) -> None:
        async with lives.one(crash=crash) as life:
            await life.peer.produce()
            topic = await prepare(life)
            await life.publish(1)
            await look(topic)
            clocks.pass_time(40)
            if checkpoint:
                await life.broker.ownership.checkpointer.checkpoint(str(topic.bundle.name))
            await life.publish(1, 1)
        clocks.elapsed_s -= 500_000
        clocks.wall_ms += YEAR_MS
        async with lives.one(crash=crash) as life:
            topic = life.topic()
            await until(lambda: topic.policies.message_ttl_s == TTL_S)
            await look(topic)
            assert topic.core.subscription("s").backlog == 2
            clocks.pass_time(21)
            await look(topic)
            assert topic.core.subscription("s").backlog == 1
        clocks.elapsed_s += 700_000
        clocks.wall_ms -= YEAR_MS
        async with lives.one() as life:
            topic = life.topic()
            await until(lambda: topic.policies.message_ttl_s == TTL_S)
            await look(topic)
            assert topic.core.subscription("s").backlog == 1
            clocks.pass_time(40)
            await look(topic)
            assert topic.core.subscription("s").backlog == 0

    play(tmp_path, script, topic_check_s=1000.0, txn_inquire_s=3600.0)


def test_a_crash_forgets_little_of_the_age_of_what_lies_idle(
    tmp_path: Path, clocks: Clocks
) -> None:
    """A bundle to which nothing is written notes now and then that time has passed, and only if
    it holds anything."""

    async def script(lives: Lives) -> None:
        async with lives.one(crash=True) as life:
            await life.peer.produce()
            topic = life.topic()
            written = topic.bundle.replay.total
            clocks.pass_time(HEARTBEAT_S)
            topic.bundle.keep_time()
            topic.bundle.keep_time()
            assert topic.bundle.replay.total == written, "it is empty"
            await prepare(life)
            await life.publish(1)
            topic.bundle.keep_time()
            for _ in range(3):
                clocks.pass_time(HEARTBEAT_S)
                topic.bundle.keep_time()
                topic.bundle.keep_time()
            await life.broker.context.log.barrier()
        async with lives.one() as life:
            topic = life.topic()
            [mark] = topic.core.ages.marks
            assert (
                3 * HEARTBEAT_S
                <= (elapsed_ms(CLOCK) - mark.elapsed_ms) / 1000
                < 3 * HEARTBEAT_S + 60
            )

    play(tmp_path, script, topic_check_s=1000.0)


@pytest.mark.parametrize("offset_ms", [0, YEAR_MS, -YEAR_MS])
def test_between_two_marks_of_age_publish_times_decide_as_far_as_they_agree(
    tmp_path: Path, clocks: Clocks, offset_ms: int
) -> None:
    """Whatever the client's clock says: its differences count. Absurd ones, and entries that
    cannot be read, expire nobody else's early."""

    async def script(lives: Lives) -> None:
        async with lives.one() as life:
            await life.peer.produce()
            await life.rest("PUT", f"{PATH}/subscription/s", {"ledgerId": -1, "entryId": -1})
            topic, cursor = life.topic(), life.topic().core.subscription("s").cursor
            published_ms = CLOCK.wall_ms() + offset_ms

            async def publish(sequence: int, publish_ms: int) -> None:
                data = api.MessageMetadata(
                    producer_name="p", sequence_id=sequence, publish_time=publish_ms
                )
                life.peer.write(requests.send(1, sequence, encode_entry(data, b"x")))
                await life.peer.answer(Type.SEND_RECEIPT)

            await publish(0, published_ms)
            topic.core.age(elapsed_ms(CLOCK))
            for number in range(1, 10):
                clocks.pass_time(10)
                await publish(number, published_ms + 10_000 * number)
            topic.core.age(elapsed_ms(CLOCK))  # one mark for all nine
            clocks.pass_time(5)
            await life.rest("POST", f"{PATH}/subscription/s/expireMessages/50")
            assert cursor.mark_delete == 5
            await publish(10, 1)
            for number, publish_ms in ((11, 1 << 60), (12, published_ms)):
                clocks.pass_time(10)
                await publish(number, publish_ms)
            topic.core.age(elapsed_ms(CLOCK))
            await life.rest("POST", f"{PATH}/subscription/s/expireMessages/24")
            assert cursor.mark_delete == 10
            await life.rest("POST", f"{PATH}/subscription/s/expireMessages/5")
            assert cursor.mark_delete <= 12, "the last of them is young"

    play(tmp_path, script, topic_check_s=1000.0)
