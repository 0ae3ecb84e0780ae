"""The official pulsar-admin on topics, subscriptions, messages, statistics and schemas: of a
standalone server and, wherever they are served, of three brokers."""

from __future__ import annotations

import json
from pathlib import Path

import pulsar
import pytest

from tests.clients.conftest import QUIET
from tests.clients.pulsar_admin import Site

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]


def publish(site: Site, topic: str, count: int, **options: object) -> None:
    """`m0`, `m1`, ... from the official Python client."""
    client = pulsar.Client(site.service_url, operation_timeout_seconds=60, logger=QUIET)
    try:
        producer = client.create_producer(topic, **options)
        for number in range(count):
            producer.send(f"m{number}".encode(), properties={"n": str(number)})
    finally:
        client.close()


def backlog(site: Site, topic: str, subscription: str = "s") -> int:
    return int(
        site.admin.json(f"topics stats {topic}")["subscriptions"][subscription]["msgBacklog"]
    )


def test_messages_are_looked_at_and_passed_over(site: Site, namespace: str) -> None:
    """Peek, examine, find by id and time; skip, clear, expire and reset a cursor, each seen in
    the backlog."""
    admin, topic = site.admin, f"persistent://{namespace}/t"
    admin(f"topics create {topic}")
    admin(f"topics create-subscription {topic} -s s -m earliest")
    assert "not found" in admin.refused(f"topics stats {topic}-absent")
    publish(site, topic, 4)
    assert backlog(site, topic) == 4
    peeked = admin(f"topics peek-messages {topic} -s s -n 2")
    assert "m0" in bytes_shown(peeked)
    assert "m1" in bytes_shown(peeked)
    assert "m2" not in bytes_shown(peeked)
    assert "m3" in bytes_shown(admin(f"topics examine-messages {topic} -i latest -m 1"))
    last = admin.json(f"topics last-message-id {topic}")
    assert last["entryId"] == 3
    found = admin(f"topics get-message-by-id {topic} -l {last['ledgerId']} -e 1")
    assert "m1" in bytes_shown(found)
    first = admin.json(f"topics get-message-id {topic} -d 2020-01-01T00:00:00Z")
    assert (first["ledgerId"], first["entryId"]) == (last["ledgerId"], 0)
    assert int(admin(f"topics get-backlog-size {topic} -m {last['ledgerId']}:1")) > 0
    assert admin.json(f"topics analyze-backlog {topic} -s s")["entries"] == 4
    admin(f"topics skip {topic} -s s -n 1")
    assert backlog(site, topic) == 3
    admin(f"topics clear-backlog {topic} -s s")
    assert backlog(site, topic) == 0
    assert bytes_shown(admin(f"topics peek-messages {topic} -s s -n 1")) == ""
    admin(f"topics reset-cursor {topic} -s s -t 1h")
    assert backlog(site, topic) == 4
    admin(f"topics reset-cursor {topic} -s s -m {last['ledgerId']}:2")
    assert backlog(site, topic) == 2
    admin(f"topics reset-cursor {topic} -s s -m earliest")
    admin(f"topics expire-messages {topic} -s s -t 3600")
    assert backlog(site, topic) == 4, "nothing is that old"
    admin(f"topics expire-messages {topic} -s s -p {last['ledgerId']}:1")
    assert backlog(site, topic) == 2
    internal = admin.json(f"topics stats-internal {topic}")
    assert (internal["numberOfEntries"], internal["cursors"]["s"]["markDeletePosition"]) == (
        4,
        f"{last['ledgerId']}:1",
    )
    assert "s" in admin.json(f"topics info-internal {topic}")["cursors"]
    admin(f"topics truncate {topic}")
    assert admin.json(f"topics stats {topic}")["backlogSize"] == 0


def bytes_shown(printed: str) -> str:
    """The payloads in what a command prints, which is a dump in hexadecimal with the text beside
    it."""
    return "".join(
        line.rpartition("|")[0].rpartition("|")[2]
        for line in printed.splitlines()
        if line.startswith("|0000")
    )


def test_topics_and_their_subscriptions(site: Site, namespace: str) -> None:
    admin, topic = site.admin, f"persistent://{namespace}/t"
    admin(f"topics create {topic}")
    assert "already exist" in admin.refused(f"topics create {topic}")
    admin(f"topics create-subscription {topic} -s a -p k=v")
    admin(f"topics create-subscription {topic} -s b -m earliest")
    assert sorted(admin.lines(f"topics subscriptions {topic}")) == ["a", "b"]
    assert admin.json(f"topics get-subscription-properties {topic} -s a") == {"k": "v"}
    admin(f"topics update-subscription-properties {topic} -s a -p k=w")
    assert admin.json(f"topics get-subscription-properties {topic} -s a") == {"k": "w"}
    admin(f"topics unsubscribe {topic} -s b")
    assert admin.lines(f"topics subscriptions {topic}") == ["a"]
    assert "not found" in admin.refused(f"topics unsubscribe {topic} -s b")
    assert admin(f"topics lookup {topic}").startswith("pulsar://")
    admin(f"topics unload {topic}")
    assert admin.lines(f"topics subscriptions {topic}") == ["a"], "whichever broker serves it now"
    admin(f"topics trim-topic {topic}")
    assert "not been run" in admin(f"topics compaction-status {topic}")
    assert "requested" in admin(f"topics compact {topic}")
    assert "was a success" in admin(f"topics compaction-status -w {topic}")
    assert "terminated" in admin(f"topics terminate {topic}")
    admin(f"topics delete {topic}")  # with the subscription, which nobody uses
    assert admin(f"topics list {namespace}") == ""
    volatile = f"non-persistent://{namespace}/v"
    admin(f"topics create {volatile}")
    assert admin.json(f"topics stats {volatile}")["msgInCounter"] == 0
    admin(f"topics delete {volatile}")


def test_partitioned_topics(site: Site, namespace: str) -> None:
    """Their partitions are served by whichever brokers; one command reaches all of them."""
    admin, topic = site.admin, f"persistent://{namespace}/p"
    admin(f"topics create-partitioned-topic {topic} -p 4 -m k=v")
    assert admin.json(f"topics get-partitioned-topic-metadata {topic}") == {
        "partitions": 4,
        "deleted": False,
        "properties": {"k": "v"},
    }
    assert admin.lines(f"topics list-partitioned-topics {namespace}") == [topic]
    admin(f"topics create-subscription {topic} -s s -m earliest -p a=b")
    assert admin.json(f"topics get-subscription-properties {topic} -s s") == {"a": "b"}
    publish(
        site, topic, 8, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
    )
    stats = admin.json(f"topics partitioned-stats {topic} --per-partition")
    # Counters are of a term: a bundle that the leader moves concurrently begins again.
    assert (stats["subscriptions"]["s"]["msgBacklog"], len(stats["partitions"])) == (8, 4)
    assert len(admin.json(f"topics partitioned-stats-internal {topic}")["partitions"]) == 4
    assert len(admin.lines(f"topics partitioned-lookup {topic}")) == 4
    admin(f"topics clear-backlog {topic} -s s")
    assert admin.json(f"topics partitioned-stats {topic}")["subscriptions"]["s"]["msgBacklog"] == 0
    admin(f"topics reset-cursor {topic} -s s -t 1h")
    assert admin.json(f"topics partitioned-stats {topic}")["subscriptions"]["s"]["msgBacklog"] == 8
    assert "partitioned" in admin.refused(f"topics examine-messages {topic} -i latest -m 1")
    admin(f"topics update-partitioned-topic {topic} -p 5")
    assert admin.json(f"topics get-partitioned-topic-metadata {topic}")["partitions"] == 5
    assert len(admin.lines(f"topics list {namespace}")) == 5
    admin(f"topics unload {topic}")
    assert admin.json(f"topics partitioned-stats {topic}")["subscriptions"]["s"]["msgBacklog"] == 8
    assert "terminated" in admin(f"topics partitioned-terminate {topic}").lower()
    admin(f"topics delete-partitioned-topic {topic} -f")
    assert (
        admin(f"topics list {namespace}")
        == admin(f"topics list-partitioned-topics {namespace}")
        == ""
    )


def test_work_on_a_whole_namespace_reaches_every_broker(site: Site, namespace: str) -> None:
    """Backlogs are cleared, subscriptions deleted and bundles unloaded wherever they are served."""
    admin = site.admin
    topics = [f"persistent://{namespace}/t{number}" for number in range(6)]
    for topic in topics:
        admin(f"topics create {topic}")
        for subscription in ("s", "u"):
            admin(f"topics create-subscription {topic} -s {subscription} -m earliest")
        publish(site, topic, 1)
    if site.brokers > 1:
        assert len({admin(f"topics lookup {topic}") for topic in topics}) > 1, (
            "more than one broker serves them"
        )
    admin(f"namespaces clear-backlog {namespace} -s s --force")
    assert [(backlog(site, topic), backlog(site, topic, "u")) for topic in topics] == [(0, 1)] * 6
    admin(f"namespaces clear-backlog {namespace} --force")
    assert [backlog(site, topic, "u") for topic in topics] == [0] * 6
    admin(f"namespaces unsubscribe {namespace} -s u")
    assert [admin.lines(f"topics subscriptions {topic}") for topic in topics] == [["s"]] * 6
    admin(f"namespaces unload {namespace}")
    assert [admin.lines(f"topics subscriptions {topic}") for topic in topics] == [["s"]] * 6
    span = admin(f"topics bundle-range {topics[0]}")
    admin(f"namespaces unload {namespace} -b {span}")
    assert admin.lines(f"topics subscriptions {topics[0]}") == ["s"]


def test_schemas(site: Site, namespace: str, tmp_path: Path) -> None:
    """Uploaded, read by version, refused where it does not fit, deleted; the strategies and
    whether schemas are enforced, of namespaces and topics."""
    admin, topic = site.admin, f"persistent://{namespace}/typed"

    def definition(*fields: dict[str, object]) -> Path:
        avro = {"type": "record", "name": "Price", "fields": list(fields)}
        path = tmp_path / "schema.json"
        path.write_text(json.dumps({"type": "AVRO", "schema": json.dumps(avro), "properties": {}}))
        return path

    cents = {"name": "cents", "type": "int"}
    unit = {"name": "unit", "type": "string"}
    admin(f"topics create {topic}")
    assert "not found" in admin.refused(f"schemas get {topic}").lower()
    admin(f"schemas upload {topic} -f {definition(cents)}")
    latest = admin.json(f"schemas get {topic}")
    assert (latest["version"], latest["schemaInfo"]["type"]) == (0, "AVRO")
    assert latest["schemaInfo"]["schema"]["fields"] == [cents]
    assert admin(f"namespaces get-schema-compatibility-strategy {namespace}") == "UNDEFINED"
    refused = admin.refused(f"schemas upload {topic} -f {definition(cents, unit)}")
    assert "compatibility check with strategy FULL" in refused
    admin(f"namespaces set-schema-compatibility-strategy {namespace} -c ALWAYS_COMPATIBLE")
    stored = admin(f"namespaces get-schema-compatibility-strategy {namespace}")
    assert stored == "ALWAYS_COMPATIBLE"
    admin(f"schemas upload {topic} -f {definition(cents, unit)}")
    assert admin.json(f"schemas get {topic}")["version"] == 1
    first = admin.json(f"schemas get {topic} --version 0")
    assert first["schema"]["fields"] == [cents]
    admin(f"namespaces set-schema-validation-enforce {namespace} --enable")
    assert admin(f"namespaces get-schema-validation-enforce {namespace}") == "true"
    admin(f"schemas delete {topic}")
    assert "not found" in admin.refused(f"schemas get {topic}").lower()
    admin(f"schemas upload {topic} -f {definition(unit)}")
    assert admin.json(f"schemas get {topic}")["version"] == 3


def test_statistics_name_the_clients_and_their_metadata(site: Site, namespace: str) -> None:
    """Of a topic and, the same fields, of a partitioned one."""
    admin, topic = site.admin, f"persistent://{namespace}/t"
    client = pulsar.Client(site.service_url, logger=QUIET)
    try:
        producer = client.create_producer(topic, properties={"team": "blue"})
        consumer = client.subscribe(topic, "s", properties={"zone": "b"})
        producer.send(b"x")
        consumer.acknowledge(consumer.receive(60_000))
        found = admin.json(f"topics stats {topic}")
        assert found["publishers"][0]["metadata"] == {"team": "blue"}
        assert found["publishers"][0]["accessMode"] == "Shared"
        subscription = found["subscriptions"]["s"]
        assert subscription["consumers"][0]["metadata"] == {"zone": "b"}
        assert subscription["lastConsumedFlowTimestamp"] > 0
        admin(f"topics create-partitioned-topic {namespace}/many -p 2")
        total = admin.json(f"topics partitioned-stats {namespace}/many")
        assert found.keys() - total.keys() <= {
            "ownerBroker",
            "deduplicationStatus",
            "oldestBacklogMessageSubscriptionName",
        }
    finally:
        client.close()
