"""What REST answers about messages, subscriptions, brokers and stored documents, over a real
broker."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from magnetar.balance.settings import FIELDS
from magnetar.broker.incarnation import Broker
from magnetar.errors import StorageError
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.entries import BatchMessage, encode_batch, encode_entry
from tests.support.brokers import Peer, Type
from tests.support.rest import NAMESPACE, TOPICS, Rest, broker_with_rest, refusal_text

Script = Callable[[Broker, Rest, Peer], Coroutine[Any, Any, None]]
T = f"{TOPICS}/t"
S = f"{T}/subscription/s"
LATEST = (1 << 63) - 1


async def play(directory: Path, script: Script, **settings: Any) -> None:
    async with broker_with_rest(directory, **settings) as (broker, rest, peer):
        await script(broker, rest, peer)


async def send_entry(peer: Peer, data: bytes, sequence: int, messages: int = 1) -> None:
    peer.write(requests.send(1, sequence, data, messages=messages))
    await peer.answer(Type.SEND_RECEIPT)


async def publish(peer: Peer, count: int = 3) -> None:
    """`m0`, `m1`, ... published at 1000, 2000, ... ms."""
    await peer.produce()
    for number in range(count):
        metadata = api.MessageMetadata(
            producer_name="p", sequence_id=number, publish_time=1000 * (number + 1)
        )
        metadata.properties.add(key="n", value=str(number))
        await send_entry(peer, encode_entry(metadata, f"m{number}".encode()), number)


async def test_messages_are_peeked_at_examined_and_found(tmp_path: Path) -> None:
    """By place before a subscription, from either end, by id and by time; nothing is
    acknowledged by it."""

    async def script(_broker: Broker, rest: Rest, peer: Peer) -> None:
        await publish(peer)
        await rest("PUT", S, {"ledgerId": -1, "entryId": -1})
        peeked = await rest.ask("GET", f"{S}/position/2")
        assert (peeked.status_code, peeked.content) == (200, b"m1")
        assert peeked.headers["content-type"] == "application/octet-stream"
        ledger, _, entry = peeked.headers["x-pulsar-message-id"].partition(":")
        assert int(entry) == 1
        assert json.loads(peeked.headers["x-pulsar-property"]) == {"n": "1"}
        assert peeked.headers["x-pulsar-publish-time"] == "1970-01-01T00:00:02.000Z"
        assert (
            peeked.headers["x-pulsar-producer-name"],
            peeked.headers["x-pulsar-sequence-id"],
        ) == ("p", "1")
        assert "x-pulsar-num-batch-message" not in peeked.headers
        await rest("POST", f"{S}/skip/1")
        assert (await rest.ask("GET", f"{S}/position/1")).content == b"m1"
        assert "2 messages" in refusal_text(await rest("GET", f"{S}/position/3", status=404))
        for query, payload in (
            ("earliest", "m0"),
            ("earliest&messagePosition=2", "m1"),
            ("latest", "m2"),
            ("latest&messagePosition=9", "m0"),
        ):
            assert (
                await rest.ask("GET", f"{T}/examinemessage?initialPosition={query}")
            ).content == payload.encode()
        assert (await rest.ask("GET", f"{T}/ledger/{ledger}/entry/2")).content == b"m2"
        for time, found in ((0, 0), (2000, 1), (2001, 2), (9000, 3)):
            assert (await rest.get(f"{T}/messageid/{time}")) == {
                "ledgerId": int(ledger),
                "entryId": found,
                "partitionIndex": -1,
                "batchSize": 0,
                "batchIndex": -1,
            }
        assert (
            await rest(
                "PUT", f"{T}/backlogSize", {"ledgerId": int(ledger), "entryId": 2}, status=200
            )
        ) == 0
        assert (
            await rest("PUT", f"{T}/backlogSize", {"ledgerId": -1, "entryId": -1}, status=200)
        ) > 0

    await play(tmp_path, script)


async def test_a_compressed_batch_comes_whole_and_unpacked(tmp_path: Path) -> None:
    """Its headers tell how many messages it has; what a client wrote into its names cannot break
    the answer's head."""

    async def script(_broker: Broker, rest: Rest, peer: Peer) -> None:
        await peer.produce()
        batch = encode_batch(
            [
                BatchMessage(api.SingleMessageMetadata(payload_size=1), value)
                for value in (b"a", b"b")
            ]
        )
        metadata = api.MessageMetadata(
            producer_name="p\r\nX-Evil: 1 ü",
            sequence_id=0,
            publish_time=(1 << 63) - 1,
            num_messages_in_batch=2,
            compression=api.ZLIB,
            uncompressed_size=len(batch),
        )
        await send_entry(peer, encode_entry(metadata, zlib.compress(batch)), 0, 2)
        found = await rest.ask("GET", f"{T}/examinemessage")
        assert (found.status_code, found.content) == (200, batch)
        assert (
            found.headers["x-pulsar-num-batch-message"],
            found.headers["x-pulsar-compression"],
        ) == ("2", "ZLIB")
        assert "x-evil" not in found.headers
        assert found.headers["x-pulsar-producer-name"].startswith("p??X-Evil: 1")
        assert found.headers["x-pulsar-publish-time"] == str((1 << 63) - 1)

    await play(tmp_path, script)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", f"{S}/position/0", 400),
        ("GET", f"{S}/position/x", 400),
        ("GET", f"{TOPICS}/absent/subscription/s/position/1", 404),
        ("GET", f"{TOPICS}/empty/examinemessage", 412),
        ("GET", f"{T}/examinemessage?initialPosition=middle", 400),
        ("GET", f"{T}/ledger/1/entry/0", 404),
        ("GET", f"{T}/ledger/{1 << 80}/entry/{1 << 80}", 404),
        ("GET", f"{TOPICS}/many/examinemessage", 405),
        ("GET", f"{TOPICS}/many/messageid/0", 405),
        ("POST", f"{TOPICS}/many/subscription/s/resetcursor", 405),
        ("GET", "/admin/v2/non-persistent/public/default/t/examinemessage", 405),
        ("PUT", f"{T}/backlogSize", 400),
        ("PUT", "/admin/v2/non-persistent/public/default/t/compaction", 405),
        ("PUT", f"{TOPICS}/absent/compaction", 404),
        ("PUT", f"{NAMESPACE}/0x00000000_0x00000001/unload", 412),
        ("POST", f"{NAMESPACE}/0x00000000_0x00000001/clearBacklog", 412),
        ("PUT", f"{NAMESPACE}/unload?destinationBroker=nobody", 400),
        ("POST", "/admin/v2/brokers/configuration/lease_ttl_s/9", 412),
        ("POST", "/admin/v2/brokers/configuration/absent/9", 412),
        ("GET", "/admin/v2/brokers/absent", 404),
        ("GET", "/admin/v2/brokers/standalone/nobody:1/ownedNamespaces", 404),
        ("GET", "/admin/v2/clusters/absent/peers", 404),
        ("GET", "/admin/v2/clusters/standalone/failureDomains/absent", 404),
        ("GET", "/admin/v2/resourcegroups/absent", 404),
        ("DELETE", f"{NAMESPACE}/permissions/s/nobody", 404),
    ],
)
async def test_what_is_wrong_is_refused_with_a_reason(
    tmp_path: Path, method: str, path: str, status: int
) -> None:
    async def script(_broker: Broker, rest: Rest, peer: Peer) -> None:
        await publish(peer, 1)
        await rest("PUT", S, {"ledgerId": -1, "entryId": -1})
        await rest("PUT", f"{TOPICS}/empty")
        await rest("PUT", f"{TOPICS}/many/partitions", 2)
        body = {"ledgerId": 1, "entryId": 0} if path.endswith("resetcursor") else None
        await rest(method, path, body, status=status)

    await play(tmp_path, script)


async def test_subscriptions_of_partitions_begin_where_asked_and_keep_their_properties(
    tmp_path: Path,
) -> None:
    async def script(_broker: Broker, rest: Rest, _peer: Peer) -> None:
        many = f"{TOPICS}/many"
        await rest("PUT", f"{many}/partitions", {"partitions": 2, "properties": {"a": "b"}})
        assert await rest.get(f"{many}/partitions") == {
            "partitions": 2,
            "deleted": False,
            "properties": {"a": "b"},
        }
        await rest(
            "PUT",
            f"{many}/subscription/s",
            {"ledgerId": LATEST, "entryId": LATEST, "properties": {"k": "v"}},
        )
        assert await rest.get(f"{many}-partition-1/subscription/s/properties") == {"k": "v"}
        await rest("PUT", f"{many}/subscription/s/properties", {"k": "w"})
        assert await rest.get(f"{many}/subscription/s/properties") == {"k": "w"}
        await rest("POST", f"{many}/createMissedPartitions")
        found = await rest.get(f"{many}/partitioned-internalStats")
        assert sorted(found["partitions"]) == [
            f"persistent://public/default/many-partition-{number}" for number in (0, 1)
        ]

    await play(tmp_path, script)


async def test_a_subscription_of_an_absent_topic_creates_what_the_namespace_lets_it_create(
    tmp_path: Path,
) -> None:
    """A plain topic, the partitions that auto-creation makes, or 404 and nothing at all where it
    is forbidden; a number too high is none."""

    async def script(_broker: Broker, rest: Rest, peer: Peer) -> None:
        await rest(
            "PUT",
            f"{TOPICS}/plain/subscription/s",
            {"ledgerId": -1, "entryId": -1, "properties": {"k": "v"}},
        )
        await peer.produce(topic="persistent://public/default/plain")
        await send_entry(
            peer,
            encode_entry(
                api.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"m"
            ),
            0,
        )
        assert (await rest.ask("GET", f"{TOPICS}/plain/subscription/s/position/1")).content == b"m"
        await rest("PUT", f"{TOPICS}/plain/subscription/s", {}, status=409)
        policy = f"{NAMESPACE}/autoTopicCreation"
        await rest(
            "POST",
            policy,
            {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
        )
        await rest("PUT", f"{TOPICS}/many/subscription/s", {})
        assert (await rest.get(f"{TOPICS}/many/partitions"))["partitions"] == 3
        for number in range(3):
            assert await rest.get(f"{TOPICS}/many-partition-{number}/subscriptions") == ["s"]
        await rest("PUT", f"{TOPICS}/many-partition-3/subscription/s", {}, status=409)
        await rest("POST", policy, {"allowAutoTopicCreation": False})
        before = await rest.get(TOPICS)
        assert (
            "absent"
            in (await rest("PUT", f"{TOPICS}/absent/subscription/s", {}, status=404))["reason"]
        )
        assert await rest.get(TOPICS) == before
        await rest("PUT", f"{TOPICS}/plain/subscription/other", {})
        assert await rest.get(f"{TOPICS}/plain/subscriptions") == ["other", "s"]

    await play(tmp_path, script)


async def test_health_is_a_message_that_was_published_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Concurrent checks share one round trip; a broker that cannot do it says so with 503."""

    async def failing() -> None:
        raise StorageError("the disk is gone")

    async def script(broker: Broker, rest: Rest, _peer: Peer) -> None:
        before = broker.metrics.traffic().messages_out
        answers = await asyncio.gather(
            *(rest.ask("GET", "/admin/v2/brokers/health?topicVersion=V2") for _ in range(5))
        )
        assert {(found.status_code, found.text) for found in answers} == {(200, "ok")}
        assert broker.metrics.traffic().messages_out == before + 1
        assert await rest.get("/admin/v2/namespaces/pulsar") == ["pulsar/system"]
        monkeypatch.setattr(broker.context.log, "barrier", failing)
        refused = await rest("GET", "/admin/v2/brokers/health", status=503)
        assert "flush its log" in refused["reason"]

    await play(tmp_path, script)


async def test_brokers_tell_what_they_are_and_do(tmp_path: Path) -> None:
    async def script(_broker: Broker, rest: Rest, peer: Peer) -> None:
        await publish(peer)
        # from the start: an election that settles is waited for
        leader = await rest.get("/admin/v2/brokers/leaderBroker")
        [address] = await rest.get("/admin/v2/brokers/standalone")
        assert await rest.get("/admin/v2/brokers") == [address] == [leader["brokerId"]]
        [bundle] = await rest.get(f"/admin/v2/brokers/standalone/{address}/ownedNamespaces")
        namespace, _, span = bundle.rpartition("/")
        assert namespace == "public/default"
        topics = await rest.get("/admin/v2/broker-stats/topics")
        assert (
            topics[namespace][span]["persistent"]["persistent://public/default/t"]["msgInCounter"]
            == 3
        )
        assert (await rest.get("/admin/v2/broker-stats/metrics"))[0]["metrics"]["brk_msg_in"] == 3
        assert (await rest.get("/admin/v2/broker-stats/load-report"))["bundles"] == [bundle]
        assert (await rest.get("/admin/v2/brokers/configuration/runtime"))["lease_ttl_s"] == "30.0"
        assert set(FIELDS) < set(await rest.get("/admin/v2/brokers/configuration"))
        assert await rest.get("/admin/v2/brokers/configuration/values") == {}
        assert (await rest.get("/admin/v2/brokers/internal-configuration"))[
            "metadataStoreUrl"
        ] == "memory"
        assert (
            await rest.ask("GET", "/lookup/v2/topic/persistent/public/default/t/bundle")
        ).text == span
        await rest("GET", "/admin/v2/brokers/backlog-quota-check")

    await play(tmp_path, script)


async def test_bundles_are_listed_cleared_and_unloaded(tmp_path: Path) -> None:
    """Work on a namespace reaches its bundles; work on a bundle only its own topics."""

    async def script(broker: Broker, rest: Rest, peer: Peer) -> None:
        await publish(peer)
        await rest("PUT", S, {"ledgerId": -1, "entryId": -1})
        found = await rest.get(f"{NAMESPACE}/bundles")
        assert (found["numBundles"], len(found["boundaries"])) == (
            len(found["boundaries"]) - 1,
            found["numBundles"] + 1,
        )
        span = (await rest.ask("GET", "/lookup/v2/topic/persistent/public/default/t/bundle")).text
        assert await rest.get(f"{TOPICS}?bundle={span}") == ["persistent://public/default/t"]
        positions = await rest.get(f"{NAMESPACE}/{span}/topicHashPositions")
        assert list(positions["topicHashPositions"]) == ["persistent://public/default/t"]
        await rest("POST", f"{NAMESPACE}/{span}/clearBacklog/s")
        assert (await rest.get(f"{T}/stats"))["subscriptions"]["s"]["msgBacklog"] == 0
        await rest("POST", f"{S}/resetcursor", {"ledgerId": -1, "entryId": -1})
        await rest("POST", f"{NAMESPACE}/clearBacklog")
        assert (await rest.get(f"{T}/stats"))["subscriptions"]["s"]["msgBacklog"] == 0
        await rest("POST", f"{NAMESPACE}/unsubscribe/absent")
        await rest("POST", f"{NAMESPACE}/{span}/unsubscribe/s")
        assert await rest.get(f"{T}/subscriptions") == []
        await rest("PUT", f"{NAMESPACE}/unload")
        assert not broker.ownership.owned

    await play(tmp_path, script)


ISOLATION = {
    "namespaces": ["public/.*"],
    "primary": ["b.*"],
    "secondary": [],
    "auto_failover_policy": {
        "policy_type": "min_available",
        "parameters": {"min_limit": "1", "usage_threshold": "80"},
    },
}


async def test_what_is_only_stored_comes_back_as_it_came(tmp_path: Path) -> None:
    """Peers, domains, isolation policies and groups, each by name; removed again they are gone.
    Quotas are refused, for nothing would look at them."""

    async def script(_broker: Broker, rest: Rest, _peer: Peer) -> None:
        base = "/admin/v2/clusters/standalone"
        await rest("PUT", "/admin/v2/clusters/other", {"serviceUrl": "http://x"}, status=200)
        await rest("POST", f"{base}/peers", ["other"])
        assert await rest.get(f"{base}/peers") == ["other"]
        for part, found, status in (
            ("failureDomains", {"brokers": ["b"]}, 200),
            ("namespaceIsolationPolicies", ISOLATION, 204),
        ):
            await rest("POST", f"{base}/{part}/a", found)
            assert await rest.get(f"{base}/{part}") == {"a": found}
            assert await rest.get(f"{base}/{part}/a") == found
            if found is ISOLATION:
                assert len(await rest.get(f"{base}/{part}/brokers")) == 1
            await rest("DELETE", f"{base}/{part}/a", status=status)
        assert await rest.get(f"{base}/failureDomains") == {}
        await rest("GET", f"{base}/namespaceIsolationPolicies", status=404)
        await rest("PUT", "/admin/v2/resourcegroups/g", {"publishRateInMsgs": "1"})
        await rest("PUT", "/admin/v2/resourcegroups/g", {"dispatchRateInBytes": 9})
        assert await rest.get("/admin/v2/resourcegroups/g") == {
            "publishRateInMsgs": 1,
            "publishRateInBytes": -1,
            "dispatchRateInMsgs": -1,
            "dispatchRateInBytes": 9,
        }
        assert await rest.get("/admin/v2/resourcegroups") == ["g"]
        await rest("DELETE", "/admin/v2/resourcegroups/g")
        quota = "/admin/v2/resource-quotas/public/default/0x00000000_0x40000000"
        default = await rest.get("/admin/v2/resource-quotas")
        assert "measured" in (await rest("POST", quota, {"msgRateIn": 1}, status=405))["reason"]
        await rest("DELETE", quota)
        assert await rest.get(quota) == default
        assert await rest.get("/admin/v2/bookies/all") == {"bookies": []}

    await play(tmp_path, script)


async def test_permissions_by_namespace_topic_and_subscription(tmp_path: Path) -> None:
    async def script(_broker: Broker, rest: Rest, _peer: Peer) -> None:
        await rest("POST", f"{NAMESPACE}/permissions/r", ["consume"])
        await rest("POST", f"{T}/permissions/r", ["produce"])
        await rest("POST", f"{NAMESPACE}/permissions/subscription/s", ["r"])
        assert await rest.get(f"{NAMESPACE}/permissions") == {"r": ["consume"]}
        assert await rest.get(f"{T}/permissions") == {"r": ["consume", "produce"]}
        assert await rest.get(f"{NAMESPACE}/permissions/subscription") == {"s": ["r"]}
        await rest("DELETE", f"{T}/permissions/r")
        await rest("DELETE", f"{NAMESPACE}/permissions/s/r")
        assert await rest.get(f"{T}/permissions") == {"r": ["consume"]}
        assert await rest.get(f"{NAMESPACE}/permissions/subscription") == {}

    await play(tmp_path, script)
