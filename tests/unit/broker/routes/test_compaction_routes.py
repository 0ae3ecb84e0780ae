"""REST of topic compaction and its statistics, over a real broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.broker.upkeep import topic_compaction
from magnetar.wire import requests
from tests.support.brokers import Peer, Type, entry
from tests.support.polling import until
from tests.support.rest import NAMESPACE, TOPICS, Rest, broker_with_rest

T = f"{TOPICS}/t"
NOT_RUN = {"status": "NOT_RUN", "lastError": ""}
SUCCESS = {"status": "SUCCESS", "lastError": ""}


async def publish(peer: Peer, count: int, *, first: int = 0, producer: int = 1) -> None:
    for number in range(first, first + count):
        data = entry(b"v%d" % number, number, partition_key=f"k{number % 3}")
        peer.write(requests.send(producer, number, data))
        await peer.answer(Type.SEND_RECEIPT)


async def ended(rest: Rest, path: str = T) -> dict[str, Any]:
    while (await rest.get(f"{path}/compaction"))["status"] == "RUNNING":
        await asyncio.sleep(0.01)
    found: dict[str, Any] = await rest.get(f"{path}/compaction")
    return found


async def test_a_topic_is_compacted_by_request_and_shows_what_came_of_it(tmp_path: Path) -> None:
    async with broker_with_rest(tmp_path) as (_, rest, peer):
        await peer.produce()
        await publish(peer, 9)
        assert await rest.get(f"{T}/compaction") == NOT_RUN
        before = await rest.get(f"{T}/stats")
        assert set(before["compaction"].values()) == {0}
        assert (await rest.get(f"{T}/internalStats"))["compactedLedger"]["entries"] == -1
        await rest("PUT", f"{T}/compaction")
        assert await ended(rest) == SUCCESS
        stats = (await rest.get(f"{T}/stats"))["compaction"]
        assert stats["lastCompactionRemovedEventCount"] == 6
        assert stats["lastCompactionSucceedTimestamp"] > stats["lastCompactionFailedTimestamp"] == 0
        ledger = (await rest.get(f"{T}/internalStats"))["compactedLedger"]
        assert (ledger["ledgerId"], ledger["entries"]) == (1, 3)
        assert ledger["size"] > 0


async def test_one_that_runs_or_waits_is_refused_as_pulsar_does(tmp_path: Path) -> None:
    async with broker_with_rest(tmp_path) as (broker, rest, peer):
        await peer.produce()
        await publish(peer, 3)
        hold(broker)
        await rest("PUT", f"{T}/compaction")
        assert (await rest.get(f"{T}/compaction"))["status"] == "RUNNING"
        refused = await rest("PUT", f"{T}/compaction", status=409)
        assert refused["reason"] == "Compaction already in progress"


def hold(broker: Broker) -> None:
    """Requests wait from now on."""
    broker.maintenance.topic_compactor._wanted.set = lambda: None  # type: ignore[method-assign]


async def test_too_many_requests_and_too_large_topics_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remedy is in the sentence, and the setting."""
    monkeypatch.setattr(topic_compaction, "WAITING_MAX", 1)
    async with broker_with_rest(tmp_path, compaction_bytes_max=1024) as (broker, rest, peer):
        await peer.produce()
        await publish(peer, 90)
        refused = await rest("PUT", f"{T}/compaction", status=429)
        assert "compaction_bytes_max=1024" in refused["reason"]
        assert "DataJob" in refused["remedy"]
        hold(broker)
        for name in ("a", "b"):
            await rest("PUT", f"{TOPICS}/{name}")
        await rest("PUT", f"{TOPICS}/a/compaction")
        refused = await rest("PUT", f"{TOPICS}/b/compaction", status=429)
        assert "1 topics wait for their compaction" in refused["reason"]


async def test_all_partitions_are_compacted(tmp_path: Path) -> None:
    """A partition that nobody has used has nothing to compact."""
    async with broker_with_rest(tmp_path) as (_, rest, peer):
        await rest("PUT", f"{TOPICS}/many/partitions", 3)
        for number in (0, 2):
            topic = f"persistent://public/default/many-partition-{number}"
            await peer.lookup(topic)
            await peer.produce(number + 1, topic)
            await publish(peer, 6, producer=number + 1)
        assert await rest.get(f"{TOPICS}/many/compaction") == NOT_RUN
        await rest("PUT", f"{TOPICS}/many/compaction")
        for number in (0, 2):
            part = f"{TOPICS}/many-partition-{number}"
            assert await ended(rest, part) == SUCCESS
            assert (await rest.get(f"{part}/internalStats"))["compactedLedger"]["entries"] == 3


async def test_a_threshold_has_the_owner_compact(tmp_path: Path) -> None:
    """Checked in the round of maintenance: bytes behind the view, by namespace or topic."""
    async with broker_with_rest(tmp_path, maintenance_s=3600.0) as (broker, rest, peer):
        await peer.produce()
        await publish(peer, 9)
        await rest("PUT", f"{NAMESPACE}/compactionThreshold", 100_000)
        assert await rest.get(f"{NAMESPACE}/compactionThreshold") == 100_000
        await broker.maintenance.round()
        assert await rest.get(f"{T}/compaction") == NOT_RUN
        await rest("POST", f"{T}/compactionThreshold", 100)
        assert await rest.get(f"{T}/compactionThreshold") == 100
        await until(lambda: threshold_of(broker) == 100)
        await broker.maintenance.round()
        assert await ended(rest) == SUCCESS
        succeeded = (await rest.get(f"{T}/stats"))["compaction"]["lastCompactionSucceedTimestamp"]
        await broker.maintenance.round()
        again = (await rest.get(f"{T}/stats"))["compaction"]["lastCompactionSucceedTimestamp"]
        assert again == succeeded, "nothing lies behind the view"
        await publish(peer, 9, first=9)
        await broker.maintenance.round()
        assert await ended(rest) == SUCCESS
        assert (await rest.get(f"{T}/internalStats"))["compactedLedger"]["ledgerId"] == 2
        await rest("DELETE", f"{T}/compactionThreshold")
        await publish(peer, 9, first=18)
        await until(lambda: threshold_of(broker) == 100_000)
        await broker.maintenance.round()
        assert await ended(rest) == SUCCESS
        assert (await rest.get(f"{T}/internalStats"))["compactedLedger"]["ledgerId"] == 2


def threshold_of(broker: Broker) -> int:
    hosts = [host for owned in broker.ownership.owned.values() for host in owned.topics.values()]
    return next(
        host.policies.compaction_threshold for host in hosts if str(host.name).endswith("/t")
    )
