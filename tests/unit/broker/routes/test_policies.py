"""Policies, tenants and clusters over REST and a real broker: every row of the table, what is
refused, and that it acts at once and lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.broker.routes.policy_table import NAMESPACE_POLICIES, NO_QUOTA, TOPIC_POLICIES
from magnetar.clock import SystemClock
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.names import NamespaceName
from magnetar.policies import NO_RATE, BacklogQuota, Policies, effective, readable
from magnetar.policy_shapes import DESTINATION_STORAGE, REFUSE, UNSET_POLICIES
from tests.support.brokers import SETTINGS, TOPIC, Node, Peer, open_peer, running_broker, volume_in
from tests.support.rest import NAMESPACE, TOPICS, Rest, broker_with_rest, rest_over

Script = Callable[[Broker, Rest, Peer], Coroutine[Any, Any, None]]
VALUES: dict[str, Any] = {
    "retention_policies": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 100},
    "message_ttl_in_seconds": 30,
    "delayed_delivery_policies": {
        "tickTime": 500,
        "active": True,
        "maxDeliveryDelayInMillis": 0,
    },
    "watermarks": {"enabled": True, "idleTimeout": 60, "snapshotInterval": 1000},
    "inactive_topic_policies": {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 10,
        "deleteWhileInactive": True,
    },
    "subscription_types_enabled": ["Exclusive", "Shared"],
    "autoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": False},
    "autoTopicCreationOverride": {
        "allowAutoTopicCreation": True,
        "topicType": "partitioned",
        "defaultNumPartitions": 2,
    },
    "deduplicationEnabled": True,
    "encryption_required": True,
    "replication_clusters": ["standalone"],
    "allowed_clusters": ["standalone"],
    "schema_compatibility_strategy": "BACKWARD",
    "schema_auto_update_compatibility_strategy": "Full",
    "subscription_auth_mode": "Prefix",
    "anti_affinity": "g",
    "resource_group_name": "g",
    "schema_validation_enforced": True,
    "is_allow_auto_update_schema": False,
    "dispatcherPauseOnAckStatePersistentEnabled": True,
    "publishMaxMessageRate": {
        "publishThrottlingRateInMsg": 1000,
        "publishThrottlingRateInByte": -1,
    },
    "clusterSubscribeRate": {"subscribeThrottlingRatePerConsumer": 9, "ratePeriodInSecond": 30},
    **{
        key: {
            "dispatchThrottlingRateInMsg": 1000,
            "dispatchThrottlingRateInByte": 1,
            "relativeToPublishRate": False,
            "ratePeriodInSecond": 1,
        }
        for key in ("topicDispatchRate", "subscriptionDispatchRate", "replicatorDispatchRate")
    },
    "persistence": {
        "bookkeeperEnsemble": 3,
        "bookkeeperWriteQuorum": 2,
        "bookkeeperAckQuorum": 2,
        "managedLedgerMaxMarkDeleteRate": 1.5,
    },
}
REFUSED = frozenset(
    {"offload_policies", "offload_threshold", "offload_threshold_in_seconds"}
    | {"offload_deletion_lag_ms", "entryFilters", "bookie_affinity", "migration"}
)
INFO = {"adminRoles": [], "allowedClusters": ["standalone"]}
NUMBERS = frozenset(
    {
        "max_consumers_per_subscription",
        "max_subscriptions_per_topic",
        "deduplicationSnapshotIntervalSeconds",
        "compaction_threshold",
        "max_producers_per_topic",
        "max_consumers_per_topic",
        "max_topics_per_namespace",
        "max_unacked_messages_per_consumer",
        "max_unacked_messages_per_subscription",
        "subscription_expiration_time_minutes",
        "max_message_size",
    }
)


def value_of(key: str) -> Any:
    """Something that can be stored under a key, in its one form."""
    return VALUES.get(key, 7 if key in NUMBERS else None)


async def play(directory: Path, script: Script, **settings: Any) -> None:
    async with broker_with_rest(directory, **settings) as (broker, rest, peer):
        await script(broker, rest, peer)


async def test_every_policy_is_set_returned_and_removed_at_both_levels(tmp_path: Path) -> None:
    """PUT and POST set, GET returns what was given, DELETE brings back what an unset policy
    answers: a value or no body."""

    async def script(_broker: Broker, rest: Rest, peer: Peer) -> None:
        await peer.produce()
        await rest("PUT", "/admin/v2/resourcegroups/g", {})
        for base, table in ((NAMESPACE, NAMESPACE_POLICIES), (f"{TOPICS}/t", TOPIC_POLICIES)):
            for name, row in table.items():
                value = value_of(row.key)
                if row.key in REFUSED:
                    refused = await rest.ask("POST", f"{base}/{name}", {"entryFilterNames": "a"})
                    assert refused.status_code in (400, 405), name
                    continue
                for method in ("POST", "PUT"):
                    written = row.written if base == NAMESPACE else 204
                    await rest(method, f"{base}/{name}", value, status=written)
                    found = await rest.ask("GET", f"{base}/{name}")
                    assert (found.text if row.plain else found.json()) == value, name
                await rest("DELETE", f"{base}/{name}")
                found = await rest.ask("GET", f"{base}/{name}")
                if row.unset is None:
                    assert (found.status_code, found.content) == (row.status, b""), name
                else:
                    assert found.json() == row.unset, name

    await play(tmp_path, script)


async def test_what_holds_without_a_policy_is_shown_as_applied(tmp_path: Path) -> None:
    """A topic's own policy, else its namespace's, else what the broker does, which is what Pulsar
    does by default."""

    async def script(_broker: Broker, rest: Rest, peer: Peer) -> None:
        await peer.produce()
        for name, row in TOPIC_POLICIES.items():
            found = await rest.ask("GET", f"{TOPICS}/t/{name}?applied=true")
            shown = row.unset if row.applied is None else row.applied
            assert (found.json() if found.content else None) == shown, name
            if row.applied is not None:
                held, without = effective(Policies(), {}, readable({row.key: shown})), Policies()
                assert held.schema_compatibility is without.schema_compatibility
                assert not held.subscribe_rate.limits
                said = {"subscribe_rate": NO_RATE, "schema_strategy": without.schema_strategy}
                assert replace(held, **said) == without, name
        quota = {"limit": 1000, "limitSize": 1000, "limitTime": -1, "policy": REFUSE}
        await rest("POST", f"{NAMESPACE}/backlogQuota", quota)
        assert await rest.get(f"{TOPICS}/t/backlogQuotaMap") == {}
        assert await rest.get(f"{TOPICS}/t/backlogQuotaMap?applied=true") == {
            "destination_storage": quota,
            "message_age": NO_QUOTA,
        }

    await play(tmp_path, script)


async def test_a_namespace_shows_all_policies_of_pulsars_document(tmp_path: Path) -> None:
    """With what Pulsar has for those that are not set; the same document makes the same
    namespace."""

    async def script(_broker: Broker, rest: Rest, _peer: Peer) -> None:
        await rest("PUT", "/admin/v2/namespaces/public/plain", {})
        shown = await rest.get("/admin/v2/namespaces/public/plain")
        assert shown == {
            **UNSET_POLICIES,
            "replication_clusters": ["standalone"],
            "bundles": shown["bundles"],
        }
        await rest("PUT", "/admin/v2/namespaces/public/copy", shown)
        await rest("POST", "/admin/v2/namespaces/public/copy/messageTTL", 60)
        changed = await rest.get("/admin/v2/namespaces/public/copy")
        assert changed == {**shown, "message_ttl_in_seconds": 60}

    await play(tmp_path, script)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", f"{NAMESPACE}/messageTTL", "soon", 400),
        ("POST", f"{NAMESPACE}/dispatchRate", 5, 400),
        ("POST", f"{NAMESPACE}/replication", {"a": 1}, 400),
        ("POST", f"{NAMESPACE}/isAllowAutoUpdateSchema", 1.5, 400),
        ("POST", f"{NAMESPACE}/retention", {"retentionTimeInMinutes": 5}, 400),
        ("POST", f"{NAMESPACE}/backlogQuota?backlogQuotaType=disk", {"limit": 1}, 400),
        ("POST", f"{NAMESPACE}/backlogQuota", {"limit": 1, "policy": "wait"}, 400),
        ("POST", f"{NAMESPACE}/permissions/r", "produce", 400),
        ("PUT", f"{NAMESPACE}/properties", {"a": [1]}, 400),
        ("GET", "/admin/v2/namespaces/no/where/retention", None, 404),
        ("POST", "/admin/v2/namespaces/no/where/retention", VALUES["retention_policies"], 404),
        ("GET", f"{TOPICS}/absent/retention", None, 404),
        ("PATCH", f"{NAMESPACE}/retention", None, 405),
        ("GET", f"{NAMESPACE}/unheardOf", None, 404),
        ("PUT", "/admin/v2/clusters/standalone", {}, 409),
        ("PUT", "/admin/v2/tenants/public", INFO, 409),
        ("POST", "/admin/v2/tenants/absent", INFO, 404),
        ("GET", "/admin/v2/tenants/absent", None, 404),
        ("GET", "/admin/v2/clusters/absent", None, 404),
        ("DELETE", "/admin/v2/tenants/public", None, 409),
        ("DELETE", "/admin/v2/clusters/standalone", None, 412),
        ("PUT", "/admin/v2/tenants/a%20b", INFO, 412),
        ("PUT", "/admin/v2/tenants/x", {"adminRoles": "me"}, 400),
        ("DELETE", "/admin/v2/namespaces/no/where", None, 404),
    ],
)
async def test_what_is_wrong_is_refused_with_a_reason(
    tmp_path: Path, method: str, path: str, body: Any, status: int
) -> None:
    async def script(_broker: Broker, rest: Rest, _peer: Peer) -> None:
        await rest(method, path, body, status=status)

    await play(tmp_path, script)


@pytest.mark.parametrize(
    "value",
    [
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        '{"a": "\\ud800"}',
        '{"\\udfff": 1}',
        '{"a": ' + "[" * 500 + "]" * 500 + "}",
    ],
    ids=["nan", "infinity", "overflow", "surrogate", "surrogate-key", "nested"],
)
async def test_what_could_not_be_returned_is_not_stored(tmp_path: Path, value: str) -> None:
    """Python reads more than JSON is: a policy, a property or a document of that kind would be
    an error for clients that ask for it afterwards."""

    async def script(_broker: Broker, rest: Rest, peer: Peer) -> None:
        await peer.produce()
        for method, path in (
            ("POST", f"{NAMESPACE}/persistence"),
            ("POST", f"{TOPICS}/t/persistence"),
            ("PUT", f"{TOPICS}/t/subscription/s/properties"),
            ("PUT", "/admin/v2/resourcegroups/g"),
        ):
            found = await rest.ask(method, path, content=value.encode())
            assert found.status_code == 400, (path, found.status_code, found.text)
            assert found.json()["reason"].startswith("body: "), found.text
        assert not (await rest.ask("GET", f"{NAMESPACE}/persistence")).content

    await play(tmp_path, script)


async def test_a_policy_acts_at_once_on_topics_that_are_open_and_on_new_ones(
    tmp_path: Path,
) -> None:
    """The namespace's, then the topic's own over it; removal brings back what is below."""

    async def script(broker: Broker, rest: Rest, peer: Peer) -> None:
        await peer.produce()
        service = broker.service
        [topic] = [
            found for owned in broker.ownership.owned.values() for found in owned.topics.values()
        ]
        await rest("POST", f"{NAMESPACE}/deduplication", True)
        await rest("POST", f"{NAMESPACE}/messageTTL", 60)
        assert topic.policies.deduplication_enabled
        assert service.namespace_policies(NamespaceName("public", "default")).message_ttl_s == 60
        await rest("POST", f"{TOPICS}/t/messageTTL?messageTTL=5")
        assert (topic.policies.message_ttl_s, topic.policies.deduplication_enabled) == (5, True)
        assert await rest.get(f"{TOPICS}/t/messageTTL") == 5
        await rest("DELETE", f"{TOPICS}/t/messageTTL")
        assert topic.policies.message_ttl_s == 60
        assert await rest.get(f"{TOPICS}/t/messageTTL?applied=true") == 60
        await rest("DELETE", f"{NAMESPACE}/deduplication")
        assert not topic.policies.deduplication_enabled

    await play(tmp_path, script)


async def test_quotas_properties_and_permissions(tmp_path: Path) -> None:
    """What has more than one value under one name: by type, by key, by role."""

    async def script(broker: Broker, rest: Rest, peer: Peer) -> None:
        await peer.produce()
        [topic] = [
            found for owned in broker.ownership.owned.values() for found in owned.topics.values()
        ]
        for base in (NAMESPACE, f"{TOPICS}/t"):
            await rest("POST", f"{base}/backlogQuota", {"limit": 1000, "policy": REFUSE})
            await rest(
                "POST",
                f"{base}/backlogQuota?backlogQuotaType=message_age",
                {"limitTime": 60, "policy": REFUSE},
            )
            found = await rest.get(f"{base}/backlogQuotaMap")
            assert found["destination_storage"] == {
                "limit": 1000,
                "limitSize": 1000,
                "limitTime": -1,
                "policy": REFUSE,
            }
            await rest("DELETE", f"{base}/backlogQuota?backlogQuotaType=message_age")
            assert list(await rest.get(f"{base}/backlogQuotaMap")) == ["destination_storage"]
            assert topic.policies.backlog_quotas == {
                DESTINATION_STORAGE: BacklogQuota(1000, -1, REFUSE)
            }
            await rest("DELETE", f"{base}/backlogQuota")
            assert await rest.get(f"{base}/backlogQuotaMap") == {}
            await rest("PUT", f"{base}/properties", {"a": "1", "b": "2"})
            await rest("PUT", f"{base}/properties", {"b": "3"})
            assert await rest.get(f"{base}/properties") == {"a": "1", "b": "3"}
            await rest("DELETE", f"{base}/properties?key=a")
            assert await rest.get(f"{base}/properties") == {"b": "3"}
        await rest("PUT", f"{NAMESPACE}/property/k/v%2Fw")
        for method in ("GET", "DELETE"):
            assert (await rest.ask(method, f"{NAMESPACE}/property/k")).text == "v/w"
        assert (await rest.ask("GET", f"{NAMESPACE}/property/k")).content == b""
        await rest("POST", f"{NAMESPACE}/permissions/me", ["produce", "consume"])
        assert await rest.get(f"{NAMESPACE}/permissions") == {"me": ["produce", "consume"]}
        await rest("DELETE", f"{NAMESPACE}/permissions/me")
        assert await rest.get(f"{NAMESPACE}/permissions") == {}

    await play(tmp_path, script)


async def test_policies_survive_a_restart(tmp_path: Path) -> None:
    """Those of a namespace and of a partitioned topic are in the store, those of a topic in its
    log."""

    store = MemoryStore(SystemClock())
    async with volume_in(tmp_path) as volume:
        for life in range(2):
            broker = await Node(store, volume, "broker-0", replace(SETTINGS)).start()
            try:
                async with rest_over(tmp_path, broker) as rest, open_peer(broker) as peer:
                    await peer.lookup()
                    if life == 0:
                        await peer.produce()
                        await rest("PUT", f"{TOPICS}/many/partitions", 2)
                        for path in (
                            f"{NAMESPACE}/messageTTL",
                            f"{TOPICS}/t/maxProducers",
                            f"{TOPICS}/many/maxConsumers",
                        ):
                            await rest("POST", path, 9)
                        await rest("PUT", f"{TOPICS}/t/properties", {"mine": "yes"})
                    assert await rest.get(f"{NAMESPACE}/messageTTL") == 9
                    assert await rest.get(f"{TOPICS}/t/maxProducers") == 9
                    assert await rest.get(f"{TOPICS}/many/maxConsumers") == 9
                    assert await rest.get(f"{TOPICS}/t/properties") == {"mine": "yes"}
                    partition = f"{TOPIC[:-1]}many-partition-0"
                    await peer.lookup(partition)
                    await peer.produce(producer_id=2, topic=partition)
                    found = {
                        name: host
                        for owned in broker.ownership.owned.values()
                        for name, host in owned.topics.items()
                    }
                    assert (
                        found[partition].policies.max_consumers,
                        found[partition].policies.message_ttl_s,
                    ) == (9, 9)
                    assert found[TOPIC].policies.max_producers == 9
            finally:
                await broker.close()
    await store.close()


async def test_tenants_and_clusters_are_created_once(tmp_path: Path) -> None:
    """Suites PUT them first, and take 409 for done; what was given comes back."""

    async def script(_broker: Broker, rest: Rest, _peer: Peer) -> None:
        await rest("PUT", "/admin/v2/clusters/other", {"serviceUrl": "http://o"}, status=200)
        await rest("PUT", "/admin/v2/clusters/other", {"serviceUrl": "http://o"}, status=409)
        await rest("POST", "/admin/v2/clusters/other", {"serviceUrl": "http://p"}, status=200)
        assert (await rest.get("/admin/v2/clusters/other"))["serviceUrl"] == "http://p"
        assert await rest.get("/admin/v2/clusters") == ["other", "standalone"]
        await rest("DELETE", "/admin/v2/clusters/other")
        await rest(
            "PUT",
            "/admin/v2/tenants/mine",
            {"adminRoles": ["me"], "allowedClusters": ["standalone"]},
        )
        await rest("PUT", "/admin/v2/tenants/mine", INFO, status=409)
        assert await rest.get("/admin/v2/tenants/mine") == {
            "adminRoles": ["me"],
            "allowedClusters": ["standalone"],
        }
        await rest(
            "PUT",
            "/admin/v2/namespaces/mine/ns",
            {"message_ttl_in_seconds": 4, "replication_clusters": ["standalone"]},
        )
        assert (await rest.get("/admin/v2/namespaces/mine/ns"))["message_ttl_in_seconds"] == 4
        assert await rest.get("/admin/v2/namespaces/mine") == ["mine/ns"]
        await rest("DELETE", "/admin/v2/tenants/mine", status=409)
        await rest("DELETE", "/admin/v2/namespaces/mine/ns")
        assert await rest.get("/admin/v2/namespaces/mine") == []
        await rest("DELETE", "/admin/v2/tenants/mine")
        assert await rest.get("/admin/v2/tenants") == ["public", "pulsar"]
        assert len(await rest.get("/admin/v2/brokers/standalone")) == 1

    await play(tmp_path, script)


async def test_who_asks_another_broker_is_sent_to_the_owner(tmp_path: Path) -> None:
    """307 with the whole path and query, as Pulsar's admin clients follow it; what is in the
    store is answered anywhere."""

    store = MemoryStore(SystemClock())
    async with running_broker(tmp_path, store=store) as first, open_peer(first) as peer:
        await peer.lookup()
        await peer.produce()
        async with (
            running_broker(tmp_path, store=store, name="broker-1") as second,
            rest_over(tmp_path, second) as rest,
        ):
            path = f"{TOPICS}/t/stats?getPreciseBacklog=true"
            found = await rest.ask("GET", path)
            assert (found.status_code, found.headers["location"]) == (
                307,
                first.context.http_url + path,
            )
            await rest("POST", f"{NAMESPACE}/messageTTL", 5)
            async with asyncio.timeout(120):
                while (
                    first.service.namespace_policies(
                        NamespaceName("public", "default")
                    ).message_ttl_s
                    != 5
                ):
                    await asyncio.sleep(0.01)
    await store.close()
