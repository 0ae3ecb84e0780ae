"""A cluster on S3 beside the quickstart: brokers and the pods of a DataJob open the same bucket.

The store is a process on this machine, on the address at which pods reach it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from dev.kube.addresses import BRIDGE_IP
from dev.s3.server import BUCKET, CREDENTIALS, REGION, S3Server
from tests.kubernetes.conftest import READ_MS, Node

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(1800)]

NAME, KEYS = "objects", "objects-keys"
TOPIC = "persistent://public/default/prices"
GENERATIONS, PRODUCTS = 5, 200


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    if os.environ.get("CONTEXT"):
        pytest.skip("pods of another cluster do not reach an S3 server on this machine")
    server = S3Server(tmp_path_factory.mktemp("s3"), BRIDGE_IP)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def objects(node: Node, store: S3Server) -> Iterator[str]:
    """The service URL of a Ready cluster whose messages are in the bucket."""
    keys = {name: CREDENTIALS[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    literals = [f"--from-literal={name}={value}" for name, value in keys.items()]
    node.run("create", "secret", "generic", KEYS, *literals)
    s3 = {
        "bucket": BUCKET,
        "region": REGION,
        "endpoint": store.endpoint,
        "credentials": {"secretRef": {"name": KEYS}},
    }
    apply(node, "BrokerCluster", {"storage": {"s3": s3}, "etcd": {"managed": {}}})
    node.wait("Ready", lambda: node.condition("brokercluster", NAME, "Ready") == "True")
    yield node.service_url(NAME)
    node.run("delete", "brokercluster", NAME, "--wait=true")
    node.run("delete", "pvc", "-l", f"magnetar.io/cluster={NAME}")
    node.run("delete", "secret", KEYS)


def apply(node: Node, kind: str, spec: dict[str, Any]) -> None:
    """A resource named as the cluster."""
    manifest = {
        "apiVersion": "magnetar.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": NAME},
        "spec": spec,
    }
    node.run("apply", "-f", "-", given=json.dumps(manifest))


def read_compacted(client: pulsar.Client) -> dict[str, str]:
    """Key -> value of what a reader of the compacted view sees; no key comes twice."""
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, is_read_compacted=True)
    found: dict[str, str] = {}
    while reader.has_message_available():
        message = reader.read_next(READ_MS)
        assert message.partition_key() not in found
        found[message.partition_key()] = message.data().decode()
    reader.close()
    return found


def test_a_datajob_compacts_what_is_in_a_bucket(node: Node, objects: str) -> None:
    """Driver and executor pods read the log there and write segments there; readers get the
    newest message of each key. No pod has a volume of messages."""
    client = pulsar.Client(objects, operation_timeout_seconds=120)
    producer = client.create_producer(TOPIC, block_if_queue_full=True)
    newest = {f"product-{number}": f"{GENERATIONS - 1}" for number in range(PRODUCTS)}
    for generation in range(GENERATIONS):
        for key in newest:
            producer.send_async(str(generation).encode(), None, partition_key=key)
    producer.flush()
    apply(
        node,
        "DataJob",
        {
            "clusterRef": {"name": NAME},
            "compaction": {"topic": TOPIC},
            "executors": {"instances": 1, "cores": 1, "cpu": "200m", "memoryMib": 512},
        },
    )
    components: set[str] = set()

    def succeeded() -> bool:
        pods = node.get("pods", "", "-l", f"magnetar.io/job={NAME}")["items"]
        for pod in pods:
            components.add(pod["metadata"]["labels"]["app.kubernetes.io/component"])
            assert not [v for v in pod["spec"]["volumes"] if "persistentVolumeClaim" in v]
        status = node.get("datajob", NAME).get("status", {})
        assert status.get("state") != "Failed", node.report()
        return bool(status.get("state") == "Succeeded")

    node.wait("DataJob Succeeded", succeeded)
    assert components == {"driver", "executor"}
    result = node.get("datajob", NAME)["status"]["history"][0]["result"]
    assert int(result["messages_in"]) == GENERATIONS * PRODUCTS, result
    assert read_compacted(client) == newest
    client.close()
    node.run("delete", "datajob", NAME)
