"""What REST refuses, with which status and in which words: Apache Pulsar 4.2's, request by request.

One broker serves all rows of a group. Before them it has a plain topic `t` with a subscription `s`
and two messages, an empty one `empty`, a partitioned one `many`, a non-persistent one `np`, and a
namespace without topics. No row changes what another one needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.brokers import TOPIC
from tests.support.rest import NAMESPACE, TOPICS, Rest, broker_with_rest

V2, ABSENT = "/admin/v2", "/admin/v2/namespaces/public/absent"
CLUSTER, TENANT = f"{V2}/clusters/standalone", f"{V2}/tenants"
NP = f"{V2}/non-persistent/public/default/np"
T, EMPTY, MANY, NONE = (f"{TOPICS}/{name}" for name in ("t", "empty", "many", "none"))
BUNDLE = "0x00000000_0x40000000"
INFO = {"adminRoles": [], "allowedClusters": ["standalone"]}
ID = {"ledgerId": 1, "entryId": 0, "partitionIndex": -1}
QUORUMS = {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2}
NO_NAMESPACE = "Namespace does not exist"
NO_TOPIC = "Topic persistent://public/default/none not found"
NO_PARTITIONED = "Partitioned Topic persistent://public/default/none not found"


class Row(NamedTuple):
    """One request, the status of its refusal and how the reason begins."""

    method: str
    path: str
    body: Any
    status: int
    reason: str


def row(request: str, body: Any, status: int, reason: str) -> Row:
    method, path = request.split(" ", 1)
    return Row(method, path, body, status, reason)


CLUSTERS = [
    row(f"GET {V2}/clusters/no", None, 404, "Cluster does not exist"),
    row(f"PUT {CLUSTER}", {}, 409, "Cluster already exists"),
    row(f"PUT {V2}/clusters/c%20d", {}, 412, "Cluster name is not valid"),
    row(f"PUT {V2}/clusters/new", None, 400, "cluster data is required"),
    row(f"POST {V2}/clusters/no", {}, 404, "Cluster does not exist"),
    row(f"DELETE {V2}/clusters/no", None, 404, "Cluster does not exist"),
    row(f"DELETE {CLUSTER}", None, 412, "Cluster not empty"),
    row(f"GET {V2}/clusters/no/peers", None, 404, "Cluster does not exist"),
    row(f"POST {V2}/clusters/no/peers", [], 404, "Cluster does not exist"),
    row(f"POST {CLUSTER}/peers", ["standalone"], 412, "standalone itself can't be part of"),
    row(f"POST {CLUSTER}/peers", ["no"], 412, "Peer cluster no does not exist"),
    row(f"GET {V2}/clusters/no/failureDomains/d", None, 412, "Cluster no does not exist."),
    row(f"POST {V2}/clusters/no/failureDomains/d", {}, 412, "Cluster no does not exist."),
    row(f"DELETE {V2}/clusters/no/failureDomains/d", None, 412, "Cluster no does not exist."),
    row(f"GET {CLUSTER}/failureDomains/d", None, 404, "Domain d for cluster standalone does not"),
    row(f"DELETE {CLUSTER}/failureDomains/d", None, 404, "Domain-name d or cluster standalone"),
    row(f"POST {CLUSTER}/failureDomains/b", {"brokers": ["x"]}, 409, "[x] already exists in a"),
]
ISOLATION = f"{CLUSTER}/namespaceIsolationPolicies"
NO_POLICIES = "NamespaceIsolationPolicies for cluster standalone does not exist"
ISOLATIONS = [
    row(f"GET {ISOLATION}", None, 404, NO_POLICIES),
    row(f"GET {ISOLATION}/p", None, 404, NO_POLICIES),
    row(f"GET {ISOLATION}/brokers", None, 404, NO_POLICIES),
    row(f"GET {ISOLATION}/brokers/b:1", None, 404, NO_POLICIES),
    row(f"POST {ISOLATION}/p", {}, 400, "Invalid format of input policy data. policy: p"),
    row(
        f"GET {V2}/clusters/no/namespaceIsolationPolicies", None, 404, "Cluster no does not exist."
    ),
    row(
        f"POST {V2}/clusters/no/namespaceIsolationPolicies/p",
        {},
        412,
        "Cluster no does not exist.",
    ),
]
TENANTS = [
    row(f"GET {TENANT}/no", None, 404, "Tenant does not exist"),
    row(f"PUT {TENANT}/public", INFO, 409, "Tenant already exist"),
    row(f"PUT {TENANT}/a%20b", INFO, 412, "Tenant name is not valid"),
    row(f"PUT {TENANT}/new", None, 412, "TenantInfo is null"),
    row(f"PUT {TENANT}/new", {}, 412, "Clusters cannot be null"),
    row(f"PUT {TENANT}/new", {"allowedClusters": [""]}, 412, "Clusters cannot be empty or blank"),
    row(f"PUT {TENANT}/new", {"allowedClusters": ["no"]}, 412, "Clusters do not exist"),
    row(f"PUT {TENANT}/new", {**INFO, "adminRoles": [" a"]}, 412, "AdminRoles contains whitespace"),
    row(
        f"PUT {TENANT}/new",
        {**INFO, "adminRoles": "a"},
        400,
        "TenantInfo.adminRoles: 'a' is not a list",
    ),
    row(f"POST {TENANT}/no", INFO, 404, "Tenant no not found"),
    row(f"DELETE {TENANT}/no", None, 404, "Tenant doesn't exist"),
    row(f"DELETE {TENANT}/public", None, 409, "The tenant still has active namespaces"),
]
NAMESPACES = [
    row(f"GET {V2}/namespaces/no", None, 404, "Tenant not found"),
    row(f"GET {ABSENT}", None, 404, NO_NAMESPACE),
    row(f"PUT {NAMESPACE}", {}, 409, "Namespace already exists"),
    row(f"PUT {V2}/namespaces/no/new", {}, 404, "Tenant does not exist"),
    row(f"PUT {V2}/namespaces/public/a%20b", {}, 412, "Namespace name is not valid"),
    row(
        f"PUT {V2}/namespaces/public/new", {"bundles": {"numBundles": 1 << 40}}, 400, "Invalid num"
    ),
    row(
        f"PUT {V2}/namespaces/public/new",
        {"bundles": {"boundaries": ["0x00000000", "0x10000000"], "numBundles": 1}},
        400,
        "Input bundles do not cover the whole hash range",
    ),
    row(
        f"PUT {V2}/namespaces/public/new",
        {"message_ttl_in_seconds": -1},
        412,
        "Invalid value for message TTL",
    ),
    row(
        f"PUT {V2}/namespaces/public/new",
        {"replication_clusters": ["no"]},
        403,
        "Cluster [no] is not in the list of allowed clusters list for tenant [public]",
    ),
    row(f"DELETE {ABSENT}", None, 404, "Namespace public/absent does not exist."),
    row(f"DELETE {NAMESPACE}", None, 409, "Cannot delete non empty namespace"),
    row(f"GET {ABSENT}/topics", None, 404, NO_NAMESPACE),
    row(f"GET {V2}/persistent/public/absent", None, 404, NO_NAMESPACE),
    row(f"GET {V2}/persistent/public/absent/partitioned", None, 404, NO_NAMESPACE),
    row(f"GET {ABSENT}/bundles", None, 404, NO_NAMESPACE),
    row(f"PUT {ABSENT}/unload", None, 404, "Namespace not found"),
    row(f"PUT {NAMESPACE}/0x00000000_0x10000000/unload", None, 412, "Invalid upper boundary for"),
    row(f"PUT {NAMESPACE}/0x10000000_0x20000000/unload", None, 412, "Cannot find bundle"),
    row(f"PUT {NAMESPACE}/0x10000000_0x20000000/split", None, 412, "Cannot find bundle"),
    row(
        f"PUT {NAMESPACE}/{BUNDLE}/split?splitAlgorithmName=x",
        None,
        412,
        "Unsupported namespace bundle split algorithm",
    ),
    row(
        f"PUT {NAMESPACE}/{BUNDLE}/split?splitAlgorithmName=specified_positions_divide",
        None,
        412,
        "With specified_positions_divide split algorithm, splitBoundaries must not be empty",
    ),
    row(f"POST {ABSENT}/clearBacklog", None, 404, "Namespace not found"),
    row(f"POST {ABSENT}/unsubscribe/s", None, 404, "Namespace not found"),
    row(f"GET {ABSENT}/permissions", None, 404, NO_NAMESPACE),
    row(f"POST {ABSENT}/permissions/r", ["produce"], 404, "Topic's namespace does not exist"),
    row(f"POST {NAMESPACE}/permissions/r", ["dance"], 400, "permissions.r: 'dance' is not known"),
    row(f"GET {ABSENT}/properties", None, 404, NO_NAMESPACE),
    row(f"GET {ABSENT}/retention", None, 404, NO_NAMESPACE),
    row(f"GET {ABSENT}/backlogQuotaMap", None, 404, NO_NAMESPACE),
]
NAMESPACE_POLICIES = [
    row(f"POST {ABSENT}/messageTTL", 5, 404, NO_NAMESPACE),
    row(f"POST {NAMESPACE}/messageTTL", -1, 412, "Invalid value for message TTL"),
    row(f"POST {NAMESPACE}/messageTTL", "soon", 400, "message_ttl_in_seconds: 'soon' is not a"),
    row(f"POST {NAMESPACE}/subscriptionExpirationTime", -1, 412, "Invalid value for subscription"),
    row(
        f"POST {NAMESPACE}/maxProducersPerTopic", -1, 412, "maxProducersPerTopic must be 0 or more"
    ),
    row(
        f"POST {NAMESPACE}/maxConsumersPerTopic", -1, 412, "maxConsumersPerTopic must be 0 or more"
    ),
    row(
        f"POST {NAMESPACE}/maxConsumersPerSubscription",
        -1,
        412,
        "maxConsumersPerSubscription must be 0 or more",
    ),
    row(
        f"POST {NAMESPACE}/maxUnackedMessagesPerConsumer",
        -1,
        412,
        "maxUnackedMessagesPerConsumer must be 0 or more",
    ),
    row(
        f"POST {NAMESPACE}/maxUnackedMessagesPerSubscription",
        -1,
        412,
        "maxUnackedMessagesPerSubscription must be 0 or more",
    ),
    row(
        f"POST {NAMESPACE}/maxSubscriptionsPerTopic",
        -1,
        412,
        "maxSubscriptionsPerTopic must be 0 or more",
    ),
    row(f"POST {NAMESPACE}/maxTopicsPerNamespace", -1, 412, "maxTopicsPerNamespace must be 0 or"),
    row(
        f"POST {NAMESPACE}/deduplicationSnapshotInterval",
        -1,
        412,
        "interval must be greater than or equal to 0",
    ),
    row(
        f"POST {NAMESPACE}/persistence", QUORUMS, 400, "Bookkeeper Ensemble (1) >= WriteQuorum (2)"
    ),
    row(
        f"POST {NAMESPACE}/persistence",
        {**QUORUMS, "bookkeeperEnsemble": 9},
        400,
        "Bookkeeper-Ensemble must be <= 5 and > 0.",
    ),
    row(f"POST {NAMESPACE}/persistence", None, 400, "persistence policies should not be null"),
    row(
        f"POST {NAMESPACE}/retention",
        {"retentionTimeInMinutes": -2, "retentionSizeInMB": 1},
        400,
        "Invalid retention policy: time limit must be >= -1",
    ),
    row(
        f"POST {NAMESPACE}/retention",
        {"retentionTimeInMinutes": 5},
        400,
        "Invalid retention policy: Setting a single time or size limit to 0 is invalid",
    ),
    row(
        f"POST {NAMESPACE}/backlogQuota?backlogQuotaType=disk",
        {"limit": 1},
        400,
        "backlogQuotaType: 'disk' is not known",
    ),
    row(f"POST {NAMESPACE}/replication", None, 412, "ClusterIds should not be null or empty"),
    row(f"POST {NAMESPACE}/replication", [], 412, "ClusterIds should not be null or empty"),
    row(f"POST {NAMESPACE}/replication", ["no"], 403, "Invalid cluster id: no"),
    row(
        f"POST {NAMESPACE}/allowedClusters",
        ["no"],
        403,
        "Cluster [no] is not in the list of allowed",
    ),
    row(f"POST {NAMESPACE}/antiAffinity", None, 412, "Anti-affinity group can't be empty"),
    row(f"POST {NAMESPACE}/resourcegroup/no", None, 412, "ResourceGroup does not exist"),
    row(
        f"POST {NAMESPACE}/autoTopicCreation",
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 0},
        412,
        "Invalid configuration for autoTopicCreationOverride. the detail is",
    ),
    row(
        f"POST {NAMESPACE}/entryFilters", {"entryFilterNames": ""}, 400, "entryFilterNames can't be"
    ),
    row(f"POST {NAMESPACE}/offloadPolicies", None, 412, "The offloadPolicies must be specified"),
]
TOPIC_LIFE = [
    row(f"PUT {T}", {}, 409, "This topic already exists"),
    row(f"PUT {MANY}", {}, 409, "This topic already exists"),
    row(f"PUT {V2}/persistent/public/absent/t", {}, 404, "Namespace not found"),
    row(f"DELETE {NONE}", None, 404, NO_TOPIC),
    row(
        f"DELETE {MANY}",
        None,
        409,
        "persistent://public/default/many is a partitioned topic, instead of calling delete topic",
    ),
    row(f"PUT {MANY}/partitions", 2, 409, "This topic already exists"),
    row(f"PUT {T}/partitions", 2, 409, "This topic already exists"),
    row(f"PUT {NONE}/partitions", 0, 406, "Number of partitions should be more than 0"),
    row(f"PUT {NONE}/partitions", "many", 400, "metadata.partitions: 'many' is not a whole number"),
    row(f"PUT {NONE}-partition-1/partitions", 2, 412, "Partitioned Topic Name should not contain"),
    row(
        f"POST {NONE}/partitions",
        2,
        409,
        "Topic persistent://public/default/none is not the partitioned topic.",
    ),
    row(f"POST {T}/partitions", 2, 409, "Topic persistent://public/default/t is not the partition"),
    row(f"POST {MANY}/partitions", 1, 422, "Desired partitions 1 can't be less than the current"),
    row(f"POST {MANY}/partitions", 0, 422, "Desired partitions 0 can't be less than the current"),
    row(f"DELETE {NONE}/partitions", None, 404, f"{NO_TOPIC}."),
    row(f"DELETE {T}/partitions", None, 409, "persistent://public/default/t is a non-partitioned"),
    row(
        f"POST {NONE}/createMissedPartitions",
        None,
        404,
        "Topic persistent://public/default/none does not exist",
    ),
    row(f"GET {NONE}/stats", None, 404, NO_TOPIC),
    row(f"GET {NONE}/internalStats", None, 404, NO_TOPIC),
    row(f"GET {NONE}/internal-info", None, 404, NO_TOPIC),
    row(f"GET {NONE}/partitioned-stats", None, 404, NO_PARTITIONED),
    row(f"GET {NONE}/partitioned-internalStats", None, 404, NO_PARTITIONED),
    row(f"GET {T}/partitioned-stats", None, 404, "Partitioned Topic persistent://public/default/t"),
    row(f"GET {MANY}/lastMessageId", None, 404, "Topic persistent://public/default/many not found"),
    row(f"GET {NP}/lastMessageId", None, 405, "GetLastMessageId on a non-persistent topic is not"),
    row(f"GET {NONE}/lastMessageId", None, 404, NO_TOPIC),
    row(f"PUT {NONE}/unload", None, 404, NO_TOPIC),
    row(f"POST {NONE}/terminate", None, 404, NO_TOPIC),
    row(f"POST {MANY}/terminate", None, 405, "Termination of a partitioned topic is not allowed"),
    row(f"POST {NP}/terminate", None, 406, "Need to provide a persistent topic name"),
    row(
        f"POST {NP}/terminate/partitions",
        None,
        405,
        "Termination of a non-partitioned topic is not",
    ),
    row(
        f"POST {T}/terminate/partitions", None, 405, "Termination of a non-partitioned topic is not"
    ),
    row(f"POST {NONE}/trim", None, 404, NO_TOPIC),
    row(f"POST {NP}/trim", None, 405, "Trim on a non-persistent topic is not allowed"),
    row(f"DELETE {NONE}/truncate", None, 404, NO_TOPIC),
    row(f"DELETE {NP}/truncate", None, 412, "unsupport truncate"),
    row(f"GET {NONE}/offload", None, 404, NO_TOPIC),
    row(f"PUT {T}/offload", ID, 405, "Offloading is not offered by Magnetar"),
    row(f"GET {NONE}/properties", None, 404, NO_TOPIC),
    row(f"PUT {NONE}/properties", {"a": "b"}, 404, NO_TOPIC),
    row(f"DELETE {NONE}/properties?key=a", None, 404, NO_TOPIC),
    row(
        f"GET {V2}/persistent/public/default/a%E2%80%A8b/stats",
        None,
        412,
        "Topic name is not valid",
    ),
    row(f"GET {V2}/persistent/a%20b/default/t/stats", None, 412, "Topic name is not valid"),
]
SUBSCRIPTIONS = [
    row(f"GET {NONE}/subscriptions", None, 404, NO_TOPIC),
    row(f"PUT {T}/subscription/s", ID, 409, "Subscription already exists for topic"),
    row(f"PUT {NP}/subscription/s", None, 400, "Create subscription on non-persistent topic can"),
    row(f"DELETE {T}/subscription/no", None, 404, "Subscription no not found for topic"),
    row(f"DELETE {NONE}/subscription/no", None, 404, NO_TOPIC),
    row(f"DELETE {MANY}/subscription/no", None, 404, "Subscription no"),
    row(f"GET {T}/subscription/no/properties", None, 404, "Subscription no not found for topic"),
    row(f"PUT {T}/subscription/no/properties", {}, 404, "Subscription no not found for topic"),
    row(f"POST {T}/subscription/no/skip/1", None, 404, "Subscription no not found for topic"),
    row(f"POST {T}/subscription/no/skip_all", None, 404, "Subscription no not found for topic"),
    row(f"POST {MANY}/subscription/s/skip/1", None, 405, "Skip messages on a partitioned topic is"),
    row(
        f"POST {T}/subscription/no/resetcursor/1", None, 404, "Subscription no not found for topic"
    ),
    row(f"POST {T}/subscription/no/resetcursor", ID, 404, "Subscription no not found for topic"),
    row(
        f"POST {MANY}/subscription/s/resetcursor", ID, 405, "Reset-cursor at position is not allow"
    ),
    row(f"POST {T}/subscription/no/expireMessages/9", None, 404, "Subscription no not found for"),
    row(
        f"POST {EMPTY}/subscription/s/expireMessages/9",
        None,
        409,
        "Expire message by timestamp not issued on topic persistent://public/default/empty",
    ),
    row(
        f"POST {T}/subscription/s/expireMessages",
        {**ID, "partitionIndex": 3},
        412,
        "Invalid parameter for expire message by position, partition index",
    ),
    row(f"POST {MANY}/subscription/s/expireMessages", ID, 405, "Expire message at position is not"),
    row(
        f"POST {NP}/all_subscription/expireMessages/9", None, 405, "Expire messages for all subscr"
    ),
    row(f"POST {NONE}/all_subscription/expireMessages/9", None, 404, NO_TOPIC),
    row(f"GET {T}/subscription/s/position/9", None, 404, "Message not found"),
    row(f"GET {MANY}/subscription/s/position/1", None, 405, "Peek messages on a partitioned topic"),
    row(
        f"GET {NP}/subscription/s/position/1", None, 405, "Peek messages on a non-persistent topic"
    ),
    row(
        f"POST {MANY}/subscription/s/analyzeBacklog", None, 405, "Analyze backlog on a partitioned"
    ),
    row(f"POST {T}/subscription/no/analyzeBacklog", None, 404, "Subscription no not found for"),
]
MESSAGES = [
    row(f"GET {MANY}/examinemessage", None, 405, "Examine messages on a partitioned topic is not"),
    row(f"GET {NP}/examinemessage", None, 405, "Examine messages on a non-persistent topic is not"),
    row(
        f"GET {EMPTY}/examinemessage", None, 412, "Could not examine messages due to the total mes"
    ),
    row(f"GET {MANY}/ledger/1/entry/0", None, 405, "GetMessageById is not allowed on partitioned-"),
    row(f"GET {T}/ledger/123/entry/0", None, 404, "Message id not found"),
    row(f"GET {MANY}/messageid/1", None, 405, "Get message ID by timestamp on a partitioned topic"),
    row(
        f"GET {NP}/messageid/1", None, 405, "Get message ID by timestamp on a non-persistent topic"
    ),
    row(
        f"PUT {MANY}/backlogSize", ID, 405, "calculate backlog size is not allowed for partitioned"
    ),
    row(f"PUT {NONE}/backlogSize", ID, 404, NO_TOPIC),
]
TOPIC_POLICIES = [
    row(f"GET {NONE}/retention", None, 404, NO_TOPIC),
    row(f"POST {NONE}/maxProducers", 1, 404, NO_TOPIC),
    row(
        f"GET {MANY}-partition-0/retention", None, 412, "Not allowed to set/get topic policy for a"
    ),
    row(f"POST {T}/messageTTL?messageTTL=-1", None, 412, "Invalid value for message TTL"),
    row(f"POST {T}/maxProducers", -1, 412, "maxProducers must be 0 or more"),
    row(f"POST {T}/maxConsumers", -1, 412, "maxConsumers must be 0 or more"),
    row(
        f"POST {T}/maxSubscriptionsPerTopic", -1, 412, "maxSubscriptionsPerTopic must be 0 or more"
    ),
    row(
        f"POST {T}/maxConsumersPerSubscription",
        -1,
        412,
        "Invalid value for maxConsumersPerSubscription",
    ),
    row(f"POST {T}/maxUnackedMessagesOnConsumer", -1, 412, "maxUnackedNum must be 0 or more"),
    row(f"POST {T}/maxUnackedMessagesOnSubscription", -1, 412, "maxUnackedNum must be 0 or more"),
    row(f"POST {T}/maxMessageSize", -1, 412, "topic-level maxMessageSize must be greater than or"),
    row(
        f"POST {T}/maxMessageSize", 1 << 30, 412, "topic-level maxMessageSize must be greater than"
    ),
    row(f"POST {T}/deduplicationSnapshotInterval", -1, 412, "interval must be 0 or more"),
    row(f"POST {T}/persistence", QUORUMS, 400, "Bookkeeper Ensemble (1) >= WriteQuorum (2)"),
    row(f"POST {T}/replication", [], 412, "ClusterIds should not be null or empty"),
    row(
        f"POST {T}/replication", ["no"], 412, "Can not remove local cluster from the local topic-l"
    ),
    row(f"POST {T}/replication", ["standalone", "no"], 403, "Invalid cluster id: no"),
    row(
        f"POST {T}/retention", {"retentionSizeInMB": -2}, 400, "Invalid retention policy: size lim"
    ),
]
SCHEMA = f"{V2}/schemas/public/default/t"
OTHERS = [
    row(f"GET {SCHEMA}/schema", None, 404, "Schema not found"),
    row(f"GET {SCHEMA}/schema/0", None, 404, "Schema not found"),
    row(f"GET {SCHEMA}/metadata", None, 404, "Schema"),
    row(f"GET {V2}/resourcegroups/no", None, 404, "ResourceGroup does not exist"),
    row(f"DELETE {V2}/resourcegroups/no", None, 404, "ResourceGroup does not exist"),
    row(f"DELETE {V2}/resourcegroups/used", None, 412, "ResourceGroup is in use"),
    row(f"GET {V2}/resource-quotas/public/absent/{BUNDLE}", None, 404, NO_NAMESPACE),
    row(f"POST {V2}/brokers/configuration/no/1", None, 412, "Can't update non-dynamic configurat"),
    row(f"DELETE {V2}/brokers/configuration/no", None, 412, "Can't delete non-dynamic configurat"),
    row(f"GET {V2}/brokers/no", None, 404, "Cluster does not exist"),
    row("GET /lookup/v2/topic/persistent/public/absent/t", None, 404, "Namespace not found"),
    row(f"GET {V2}/nothing", None, 404, "GET /admin/v2/nothing is not offered"),
    row(f"PATCH {NAMESPACE}", None, 405, f"PATCH {NAMESPACE} is not offered"),
]
GROUPS = {
    "clusters": CLUSTERS,
    "isolation policies": ISOLATIONS,
    "tenants": TENANTS,
    "namespaces": NAMESPACES,
    "policies of namespaces": NAMESPACE_POLICIES,
    "topics": TOPIC_LIFE,
    "subscriptions": SUBSCRIPTIONS,
    "messages": MESSAGES,
    "policies of topics": TOPIC_POLICIES,
    "others": OTHERS,
}


async def _prepare(rest: Rest) -> None:
    await rest("PUT", EMPTY)
    await rest("PUT", f"{EMPTY}/subscription/s")
    await rest("PUT", f"{T}/subscription/s", {"ledgerId": -1, "entryId": -1})
    await rest("PUT", f"{MANY}/partitions", 2)
    await rest("PUT", f"{MANY}/subscription/s")
    await rest("PUT", NP)
    await rest("POST", f"{CLUSTER}/failureDomains/a", {"brokers": ["x"]})
    await rest("PUT", f"{V2}/namespaces/public/grouped")
    await rest("PUT", f"{V2}/resourcegroups/used", {"publishRateInMsgs": 1000})
    await rest("POST", f"{V2}/namespaces/public/grouped/resourcegroup/used")


@pytest.mark.parametrize("group", GROUPS)
async def test_each_request_is_refused_with_pulsars_status_and_words(
    tmp_path: Path, group: str
) -> None:
    wrong = []
    async with broker_with_rest(tmp_path) as (_broker, rest, peer):
        await peer.produce()
        await peer.send(b"a", 1)
        await peer.send(b"b", 2)
        await _prepare(rest)
        for request in GROUPS[group]:
            answer = await rest.ask(request.method, request.path, request.body)
            body = answer.json() if answer.content else {}
            reason = str(body.get("reason")) if isinstance(body, dict) else str(body)
            if answer.status_code != request.status or not reason.startswith(request.reason):
                wrong.append(f"{request}\n    {answer.status_code} {body}")
            elif not set(body) <= {"reason", "remedy"}:
                wrong.append(f"{request}\n    {body}")
    assert not wrong, "\n".join(["", *wrong])
    assert str(TOPIC) == "persistent://public/default/t"
