"""`python -m dev.differential.rest_answers`: ask Apache Pulsar again what its REST answers.

Owns: `PATHS` and `answers`: what GET shows of a namespace with a plain and a partitioned topic that
hold messages and have a consumer; `changed`: what the steps of rest_changes answer. An answer is its
status and the shape of its JSON (names of fields and types of values). Imports: the official Python
client, dev.testbed, rest_changes. Why shapes: values differ from run to run; what a tool reads are
names and types.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulsar

from dev.differential.rest_changes import CHANGES
from dev.testbed.cluster import request
from dev.testbed.oracle import Oracle, version

RECORDED = Path("tests/differential/recorded_rest_answers.json")
TENANT, NAMESPACE, SUBSCRIPTION = "answers", "answers/ns", "sub"
MESSAGES, RECEIVE_MS, DEPTH_MAX = 4, 60_000, 4
NAMESPACE_POLICIES = (
    "allowedClusters antiAffinity autoSubscriptionCreation autoTopicCreation backlogQuotaMap bundles "
    "compactionThreshold deduplication deduplicationSnapshotInterval delayedDelivery dispatchRate "
    "dispatcherPauseOnAckStatePersistent encryptionRequired entryFilters inactiveTopicPolicies "
    "isAllowAutoUpdateSchema maxConsumersPerSubscription maxConsumersPerTopic maxProducersPerTopic "
    "maxSubscriptionsPerTopic maxTopicsPerNamespace maxUnackedMessagesPerConsumer "
    "maxUnackedMessagesPerSubscription messageTTL offloadDeletionLagMs offloadPolicies "
    "offloadThreshold offloadThresholdInSeconds permissions permissions/subscription persistence "
    "persistence/bookieAffinity properties property/absent publishRate replication "
    "replicatorDispatchRate resourcegroup retention schemaAutoUpdateCompatibilityStrategy "
    "schemaCompatibilityStrategy schemaValidationEnforced subscribeRate subscriptionAuthMode "
    "subscriptionDispatchRate subscriptionExpirationTime subscriptionTypesEnabled topics"
)
TOPIC_POLICIES = (
    "autoSubscriptionCreation backlogQuotaMap compactionThreshold deduplicationEnabled "
    "deduplicationSnapshotInterval delayedDelivery dispatchRate dispatcherPauseOnAckStatePersistent "
    "entryFilters inactiveTopicPolicies maxConsumers maxConsumersPerSubscription maxMessageSize "
    "maxProducers maxSubscriptionsPerTopic maxUnackedMessagesOnConsumer "
    "maxUnackedMessagesOnSubscription messageTTL offloadPolicies persistence publishRate replication "
    "replicatorDispatchRate retention schemaCompatibilityStrategy schemaValidationEnforced "
    "subscribeRate subscriptionDispatchRate subscriptionTypesEnabled"
)
TOPIC_FACTS = (
    "compaction examinemessage internal-info internalStats lastMessageId ledger/0/entry/0 messageid/0 "
    "offload partitioned-internalStats partitioned-stats partitions permissions properties stats "
    f"subscriptions subscription/{SUBSCRIPTION}/position/1 subscription/{SUBSCRIPTION}/properties"
)
CLUSTER_FACTS = (
    "bookies/all bookies/racks-info broker-stats/load-report broker-stats/metrics broker-stats/topics "
    "brokers brokers/standalone brokers/configuration brokers/configuration/runtime "
    "brokers/configuration/values brokers/health brokers/internal-configuration "
    "brokers/leaderBroker brokers/ready brokers/version clusters clusters/standalone "
    "clusters/standalone/failureDomains clusters/standalone/failureDomains/absent "
    "clusters/standalone/namespaceIsolationPolicies clusters/standalone/peers resource-quotas "
    "resourcegroups resourcegroups/absent tenants tenants/absent namespaces/absent "
    f"tenants/{TENANT} namespaces/{TENANT} namespaces/{TENANT}/absent namespaces/{NAMESPACE} "
    f"persistent/{NAMESPACE} persistent/{NAMESPACE}/partitioned non-persistent/{NAMESPACE} "
    f"persistent/{TENANT}/absent persistent/{NAMESPACE}/absent/stats "
    f"persistent/{NAMESPACE}/many-partition-0/stats"
)
SCHEMA_FACTS = ("schema", "schema/0", "schemas", "metadata")
PATHS = [
    *(f"/admin/v2/{path}" for path in CLUSTER_FACTS.split()),
    *(f"/admin/v2/namespaces/{NAMESPACE}/{name}" for name in NAMESPACE_POLICIES.split()),
    *(f"/admin/v2/persistent/{NAMESPACE}/one/{name}" for name in TOPIC_POLICIES.split()),
    *(
        f"/admin/v2/persistent/{NAMESPACE}/one/{name}?applied=true"
        for name in TOPIC_POLICIES.split()
    ),
    *(
        f"/admin/v2/persistent/{NAMESPACE}/{topic}/{fact}"
        for topic in ("one", "many")
        for fact in TOPIC_FACTS.split()
    ),
    *(
        f"/admin/v2/schemas/{NAMESPACE}/{topic}/{fact}"
        for topic in ("one", "typed")
        for fact in SCHEMA_FACTS
    ),
    *(f"/lookup/v2/topic/persistent/{NAMESPACE}/{end}" for end in ("one", "one/bundle", "absent")),
]


@contextmanager
def prepared(service_url: str, http_url: str) -> Iterator[None]:
    """The namespace and its topics; while it lasts, producers and consumers are connected."""
    admin = f"{http_url}/admin/v2"
    info = {"adminRoles": ["role"], "allowedClusters": ["standalone"]}
    for path, body in (
        (f"tenants/{TENANT}", info),
        (f"namespaces/{NAMESPACE}", {}),
        (f"persistent/{NAMESPACE}/one", None),
        (f"persistent/{NAMESPACE}/many/partitions", 2),
    ):
        status, said = request("PUT", f"{admin}/{path}", body=body)
        assert status == 204, (path, said)
    schema = {"type": "STRING", "schema": "", "properties": {"k": "v"}}
    status, said = request("POST", f"{admin}/schemas/{NAMESPACE}/typed/schema", body=schema)
    assert status == 200, said
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        for topic in ("one", "many"):
            name = f"persistent://{NAMESPACE}/{topic}"
            consumer = client.subscribe(
                name, SUBSCRIPTION, initial_position=pulsar.InitialPosition.Earliest
            )
            producer = client.create_producer(name, batching_enabled=False)
            for number in range(MESSAGES):
                producer.send(b"%d" % number, partition_key="k", properties={"a": "b"})
            consumer.acknowledge(consumer.receive(RECEIVE_MS))
        yield
    finally:
        client.close()


def answers(http_url: str) -> dict[str, Any]:
    """Status and shape by path; of refusals Pulsar's sentence."""
    return {path: _answer("GET", http_url + path) for path in PATHS}


def changed(http_url: str) -> list[list[Any]]:
    """What each of the changes answers, of which none was made before."""
    return [_answer(method, f"{http_url}/admin/v2/{path}", body) for method, path, body in CHANGES]


def _answer(method: str, url: str, body: object = None) -> list[Any]:
    try:
        status, found = request(method, url, body=body)
    except ValueError:  # not JSON: text, or a page of the server's own about an error
        return ["text"]
    if status >= 400:
        return [status, found["reason"] if isinstance(found, dict) else None]
    return [status, shape(found)]


def shape(value: Any, depth: int = 0) -> Any:
    """Names of fields and types of values. Names of topics, bundles and numbers are alike."""
    if isinstance(value, dict):
        if depth > DEPTH_MAX:
            return "object"
        return {
            re.sub(r"0x[0-9a-f]{8}|\d+|127\.0\.0\.1\S*", "*", key): shape(found, depth + 1)
            for key, found in sorted(value.items())
        }
    if isinstance(value, list):
        return [shape(value[0], depth + 1)] if value else []
    return None if value is None else type(value).__name__


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="magnetar-answers-") as directory,
        Oracle(Path(directory)) as oracle,
        prepared(oracle.service_url, oracle.http_url),
    ):
        found = {
            "pulsar": version(),
            "answers": answers(oracle.http_url),
            "changes": changed(oracle.http_url),
        }
    RECORDED.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    print(f"{len(PATHS) + len(CHANGES)} answers in {RECORDED}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
