"""The official pulsar-admin against a standalone server and against three brokers: what it sets
is what it gets, and refusals are its own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pulsar
import pytest

from dev.server_process import ServerProcess
from dev.testbed.cluster import Cluster
from tests.clients.conftest import QUIET
from tests.clients.pulsar_admin import PulsarAdmin

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]
NUMBERS = itertools.count()


@dataclass(frozen=True)
class Site:
    """Where the commands go."""

    admin: PulsarAdmin
    service_url: str
    brokers: int


@pytest.fixture(scope="module", params=["standalone", "cluster"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """A server, or three brokers, one JVM with pulsar-admin, and a tenant `acme`."""
    directory = tmp_path_factory.mktemp(request.param)
    running: ServerProcess | Cluster
    if request.param == "standalone":
        running = ServerProcess(directory)
        running.start()
        http_url, brokers = running.http_url, 1
    else:
        running = Cluster(directory / "cluster")
        running.start()
        http_url, brokers = running.brokers[running.entry].http_url, len(running.brokers)
    admin = PulsarAdmin(http_url, directory)
    try:
        admin("tenants create acme --admin-roles admin --allowed-clusters standalone")
        yield Site(admin, running.service_url, brokers)
    finally:
        admin.close()
        running.stop()


@pytest.fixture
def namespace(site: Site) -> str:
    """A namespace of the test's own."""
    name = f"acme/n{next(NUMBERS)}"
    site.admin(f"namespaces create {name} --bundles 8")
    return name


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


def test_tenants_and_clusters(site: Site) -> None:
    """Created, read, changed, listed, removed; what is there already, or is not, is refused."""
    admin = site.admin
    assert admin.json("tenants get acme") == {
        "adminRoles": ["admin"],
        "allowedClusters": ["standalone"],
    }
    admin("tenants create beta --allowed-clusters standalone")
    assert {"acme", "beta", "public"} <= set(admin.lines("tenants list"))
    admin("tenants update beta --admin-roles root")
    assert admin.json("tenants get beta")["adminRoles"] == ["root"]
    assert "already exist" in admin.refused("tenants create beta")
    admin("tenants delete beta")
    assert "does not exist" in admin.refused("tenants get beta")
    assert admin.lines("clusters list") == ["standalone"]
    admin("clusters create west --url http://west:8080 --broker-url pulsar://west:6650")
    assert admin.json("clusters get west")["brokerServiceUrl"] == "pulsar://west:6650"
    admin("clusters update west --url http://west:8081")
    assert admin.json("clusters get west")["serviceUrl"] == "http://west:8081"
    admin("clusters update-peer-clusters west --peer-clusters standalone")
    assert admin.json("clusters get-peer-clusters west") == ["standalone"]
    admin("clusters create-failure-domain standalone --domain-name d --broker-list b1")
    admin("clusters update-failure-domain standalone --domain-name d --broker-list b2")
    assert admin.json("clusters get-failure-domain standalone --domain-name d") == {
        "brokers": ["b2"]
    }
    assert "b2" in admin("clusters list-failure-domains standalone")
    admin("clusters delete-failure-domain standalone --domain-name d")
    assert admin("clusters list-failure-domains standalone") == ""
    parameters = "--auto-failover-policy-params min_limit=1,usage_threshold=80"
    admin(
        "ns-isolation-policy set standalone p --auto-failover-policy-type min_available "
        f"{parameters} --namespaces acme/.* --primary b1 --secondary b2"
    )
    assert admin.json("ns-isolation-policy get standalone p")["primary"] == ["b1"]
    assert "acme/.*" in admin("ns-isolation-policy list standalone")
    admin("ns-isolation-policy delete standalone p")
    admin("clusters delete west")
    assert "does not exist" in admin.refused("clusters get west")


def test_namespaces_and_their_bundles(site: Site, namespace: str) -> None:
    admin = site.admin
    assert namespace in admin.lines("namespaces list acme")
    bundles = admin.json(f"namespaces bundles {namespace}")
    assert (bundles["numBundles"], bundles["boundaries"][0], bundles["boundaries"][-1]) == (
        8,
        "0x00000000",
        "0xffffffff",
    )
    policies = admin.json(f"namespaces policies {namespace}")
    assert (policies["replication_clusters"], policies["bundles"]["numBundles"]) == (
        ["standalone"],
        8,
    )
    assert "already exist" in admin.refused(f"namespaces create {namespace}")
    assert admin(f"namespaces topics {namespace}") == ""
    admin(f"topics create {namespace}/t")
    assert admin.lines(f"namespaces topics {namespace}") == [f"persistent://{namespace}/t"]
    span = admin(f"topics bundle-range {namespace}/t")
    positions = admin.json(f"namespaces get-topic-positions {namespace} -b {span}")
    assert list(positions["topicHashPositions"]) == [f"persistent://{namespace}/t"]
    assert "non empty" in admin.refused(f"namespaces delete {namespace}")
    admin(f"namespaces delete {namespace} -f")
    assert namespace not in admin.lines("namespaces list acme")
    assert "does not exist" in admin.refused(f"namespaces policies {namespace}")


NAMESPACE_POLICIES = (
    ("retention {n} --size 100M --time 3h", "retention", '"retentionSizeInMB" : 100'),
    ("message-ttl {n} -ttl 100", "message-ttl", "100"),
    ("deduplication {n} --enable", "deduplication", "true"),
    (
        "auto-topic-creation {n} --enable --type partitioned --num-partitions 2",
        "auto-topic-creation",
        '"defaultNumPartitions" : 2',
    ),
    (
        "auto-subscription-creation {n} --enable",
        "auto-subscription-creation",
        '"allowAutoSubscriptionCreation" : true',
    ),
    (
        "dispatch-rate {n} --msg-dispatch-rate 10",
        "dispatch-rate",
        '"dispatchThrottlingRateInMsg" : 10',
    ),
    ("publish-rate {n} --msg-publish-rate 11", "publish-rate", '"publishThrottlingRateInMsg" : 11'),
    (
        "subscribe-rate {n} --subscribe-rate 2",
        "subscribe-rate",
        '"subscribeThrottlingRatePerConsumer" : 2',
    ),
    (
        "subscription-dispatch-rate {n} --msg-dispatch-rate 12",
        "subscription-dispatch-rate",
        '"dispatchThrottlingRateInMsg" : 12',
    ),
    ("persistence {n} -a 1 -e 1 -w 1 -r 1.0", "persistence", '"bookkeeperEnsemble" : 1'),
    ("delayed-delivery {n} --enable --time 2s", "delayed-delivery", '"tickTime" : 2000'),
    ("max-producers-per-topic {n} -p 3", "max-producers-per-topic", "3"),
    ("max-consumers-per-topic {n} -c 4", "max-consumers-per-topic", "4"),
    ("max-consumers-per-subscription {n} -c 5", "max-consumers-per-subscription", "5"),
    ("max-topics-per-namespace {n} -t 100", "max-topics-per-namespace", "100"),
    ("max-unacked-messages-per-consumer {n} -c 50", "max-unacked-messages-per-consumer", "50"),
    ("compaction-threshold {n} --threshold 10M", "compaction-threshold", "10485760"),
    (
        "subscription-types-enabled {n} -t Shared,Failover",
        "subscription-types-enabled",
        '"Failover"',
    ),
    ("deduplication-snapshot-interval {n} -i 100", "deduplication-snapshot-interval", "100"),
    ("resource-group {n} -rgn g", "resource-group", "g"),
)
KEPT_POLICIES = (
    ("encryption-required {n} --enable", "encryption-required", "true"),
    (
        "subscription-auth-mode {n} --subscription-auth-mode Prefix",
        "subscription-auth-mode",
        "Prefix",
    ),
    (
        "schema-compatibility-strategy {n} --compatibility BACKWARD",
        "schema-compatibility-strategy",
        "BACKWARD",
    ),
    ("is-allow-auto-update-schema {n} --disable", "is-allow-auto-update-schema", "false"),
    ("schema-validation-enforce {n} --enable", "schema-validation-enforce", "true"),
    ("anti-affinity-group {n} -g grp", "anti-affinity-group", "grp"),
    ("clusters {n} -c standalone", "clusters", "standalone"),
)


def test_policies_of_namespaces(site: Site, namespace: str) -> None:
    """What is set is what is got, by itself and among all policies, which Java's client can
    read; removed, it is not set any more."""
    admin = site.admin
    admin("resourcegroups update g --msg-publish-rate 1000")
    for change, name, expected in (*NAMESPACE_POLICIES, *KEPT_POLICIES):
        admin(f"namespaces set-{change.format(n=namespace)}")
        assert expected in admin(f"namespaces get-{name} {namespace}"), name
    assert (
        admin.json(f"namespaces policies {namespace}")["topicDispatchRate"]["standalone"][
            "dispatchThrottlingRateInMsg"
        ]
        == 10
    )
    for _, name, expected in NAMESPACE_POLICIES:
        admin(f"namespaces remove-{name} {namespace}")
        assert expected not in admin(f"namespaces get-{name} {namespace}"), name
    assert admin.lines("namespaces get-anti-affinity-namespaces -c standalone -p acme -g grp") == [
        namespace
    ]
    admin(f"namespaces set-backlog-quota {namespace} --limit 10M --policy producer_exception")
    assert "limitSize=10485760" in admin(f"namespaces get-backlog-quotas {namespace}")
    admin(f"namespaces remove-backlog-quota {namespace}")
    assert admin(f"namespaces get-backlog-quotas {namespace}") == ""
    admin(f"namespaces set-properties {namespace} -p a=b")
    admin(f"namespaces set-property {namespace} -k x -v y")
    assert admin.json(f"namespaces get-properties {namespace}") == {"a": "b", "x": "y"}
    admin(f"namespaces clear-properties {namespace}")
    assert admin.json(f"namespaces get-properties {namespace}") == {}
    admin(f"namespaces grant-permission {namespace} --role r --actions produce,consume")
    assert set(admin(f"namespaces permissions {namespace}").split()) in (
        {"r", "[consume,", "produce]"},
        {"r", "[produce,", "consume]"},
    )
    admin(f"namespaces revoke-permission {namespace} --role r")
    admin(f"namespaces grant-subscription-permission {namespace} --subscription s --roles r")
    assert admin(f"namespaces subscription-permission {namespace}") == "s    [r]"
    admin(f"namespaces revoke-subscription-permission {namespace} --subscription s --role r")
    assert (
        admin(f"namespaces permissions {namespace}")
        == admin(f"namespaces subscription-permission {namespace}")
        == ""
    )


TOPIC_POLICIES = (
    ("retention {t} -t 1h -s 1M", "retention", '"retentionTimeInMinutes" : 60'),
    ("message-ttl {t} -t 10", "message-ttl", "10"),
    ("deduplication {t} -e", "deduplication", "true"),
    ("max-producers {t} -p 3", "max-producers", "3"),
    ("max-consumers {t} -c 4", "max-consumers", "4"),
    ("publish-rate {t} --msg-publish-rate 5", "publish-rate", '"publishThrottlingRateInMsg" : 5'),
    (
        "inactive-topic-policies {t} -e -t 30s -m delete_when_no_subscriptions",
        "inactive-topic-policies",
        "delete_when_no_subscriptions",
    ),
    ("delayed-delivery {t} -e -t 1s", "delayed-delivery", '"tickTime" : 1000'),
    (
        "backlog-quota {t} -l 10M -p consumer_backlog_eviction",
        "backlog-quota",
        "consumer_backlog_eviction",
    ),
)


def test_policies_of_topics(site: Site, namespace: str) -> None:
    """As of namespaces, and none is left when all are deleted at once."""
    admin, topic = site.admin, f"{namespace}/t"
    admin(f"topics create {topic}")
    for change, name, expected in TOPIC_POLICIES:
        admin(f"topicPolicies set-{change.format(t=topic)}")
        assert expected in admin(f"topicPolicies get-{name} {topic}"), name
        admin(f"topicPolicies remove-{name} {topic}")
        assert expected not in admin(f"topicPolicies get-{name} {topic}"), name
    admin(f"topics update-properties {topic} -p a=b")
    assert admin(f"topics get-properties {topic}").split() == ["a", "b"]
    admin(f"topics remove-properties {topic} -k a")
    assert admin(f"topics get-properties {topic}") == ""
    admin(f"topics grant-permission {topic} --role r --actions produce")
    assert admin(f"topics permissions {topic}") == "r    [produce]"
    admin(f"topics revoke-permission {topic} --role r")
    assert admin(f"topics permissions {topic}") == ""


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
    assert admin.lines(f"topics subscriptions {topic}") == ["a"], "whoever serves it now"
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


def test_brokers_and_their_statistics(site: Site) -> None:
    admin = site.admin
    brokers = admin.lines("brokers list standalone")
    assert len(brokers) == site.brokers
    assert admin.json("brokers leader-broker")["brokerId"] in brokers
    admin("topics create public/default/of-broker")
    owned = [admin(f"brokers namespaces standalone --url {broker}") for broker in brokers]
    assert any("public/default/0x" in found for found in owned)
    assert admin("brokers healthcheck") == admin("brokers healthcheck --topic-version V2") == "ok"
    assert "lease_ttl_s" in admin("brokers get-runtime-config")
    shedder = "loadBalancerLoadSheddingStrategy"
    assert shedder in admin("brokers list-dynamic-config")
    assert admin("brokers get-all-dynamic-config") == ""
    admin(f"brokers update-dynamic-config --config {shedder} --value ThresholdShedder")
    assert "ThresholdShedder" in admin("brokers get-all-dynamic-config")
    assert "'Nonsense' is not offered" in admin.refused(
        f"brokers update-dynamic-config --config {shedder} --value Nonsense"
    )
    admin(f"brokers delete-dynamic-config --config {shedder}")
    assert admin("brokers get-all-dynamic-config") == ""
    assert "Can't update non-dynamic configuration" in admin.refused(
        "brokers update-dynamic-config --config lease_ttl_s --value 10"
    )
    assert admin.json("brokers get-internal-config")["metadataStoreUrl"].startswith(
        ("embedded", "etcd://")
    )
    assert admin("brokers backlog-quota-check") == "ok"
    assert admin("brokers version")
    assert "brk_topics_count" in admin("broker-stats monitoring-metrics")
    assert admin.json("broker-stats mbeans") == []
    assert isinstance(admin.json("broker-stats topics"), dict)
    assert "cpu" in admin("broker-stats load-report")
    assert admin.json("resource-quotas get")["dynamic"] is True
    admin("resourcegroups create g --msg-publish-rate 10")
    assert admin.json("resourcegroups get g")["publishRateInMsgs"] == 10
    admin("resourcegroups delete g")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("functions list --tenant a --namespace b", "not offered"),
        ("schemas get public/default/t", "Schema not found"),
        ("broker-stats allocator-stats default", "allocator"),
        ("topics create-partitioned-topic public/default/none -p 0", "partitions"),
        ("namespaces create no-such-tenant-here", "namespace"),
        (
            "namespaces unload public/default -b 0x00000000_0x00000001",
            "Invalid upper boundary for bundle",
        ),
    ],
)
def test_what_is_not_offered_or_wrong_is_refused_in_words(
    site: Site, command: str, said: str
) -> None:
    assert said.lower() in site.admin.refused(command).lower()


def test_a_cluster_without_coordinators_says_so_and_a_standalone_server_is_its_own(
    site: Site, request: pytest.FixtureRequest
) -> None:
    command = "transactions coordinators-list"
    if request.node.callspec.params["site"] == "standalone":
        assert site.admin.lines(command) == [f"0    {site.service_url}"]
    else:
        assert "transactionCoordinatorEnabled" in site.admin.refused(command)


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
    assert "not compatible under FULL" in refused
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


REFUSALS = (
    ("topics stats {n}/none", "Topic persistent://{n}/none not found"),
    ("topics stats-internal {n}/none", "Topic persistent://{n}/none not found"),
    ("topics partitioned-stats {n}/none", "Partitioned Topic persistent://{n}/none not found"),
    ("topics unload {n}/none", "Topic persistent://{n}/none not found"),
    ("topics create {n}/t", "This topic already exists"),
    ("topics update-partitioned-topic {n}/none -p 2", "is not the partitioned topic."),
    ("topics terminate {n}/many", "Termination of a partitioned topic is not allowed"),
    ("topics last-message-id {n}/many", "Topic persistent://{n}/many not found"),
    ("topics unsubscribe {n}/t -s no", "Subscription no not found for topic persistent://{n}/t"),
    ("topics expire-messages {n}/t -s s -t 9", "Expire message by timestamp not issued on topic"),
    ("topics reset-cursor {n}/many -s s -m 1:0", "Reset-cursor at position is not allowed for"),
    ("topicPolicies set-max-producers {n}/t -p -1", "maxProducers must be 0 or more"),
    ("namespaces policies acme/none", "Namespace does not exist"),
    ("namespaces create {n}", "Namespace already exists"),
    ("namespaces create absent/new", "Tenant does not exist"),
    ("namespaces delete {n}", "Cannot delete non empty namespace"),
    ("namespaces set-message-ttl {n} -ttl -1", "Invalid value for message TTL"),
    (
        "namespaces set-persistence {n} -e 1 -w 2 -a 2 -r 0",
        "Bookkeeper Ensemble (1) >= WriteQuorum",
    ),
    ("namespaces set-clusters {n} -c none", "Invalid cluster id: none"),
    ("namespaces unload acme/none", "Namespace not found"),
    ("tenants get none", "Tenant does not exist"),
    ("tenants delete none", "Tenant doesn't exist"),
    ("clusters get none", "Cluster does not exist"),
    ("clusters get-failure-domain standalone --domain-name d", "Domain d for cluster standalone"),
    ("ns-isolation-policy list standalone", "NamespaceIsolationPolicies for cluster standalone"),
    ("resourcegroups get none", "ResourceGroup does not exist"),
)


def test_refusals_read_as_apache_pulsars(site: Site, namespace: str) -> None:
    """What pulsar-admin prints has the sentence of Apache Pulsar 4.2.4."""
    admin = site.admin
    admin(f"topics create {namespace}/t")
    admin(f"topics create-subscription {namespace}/t -s s")
    admin(f"topics create-partitioned-topic {namespace}/many -p 2")
    wrong = []
    for command, sentence in REFUSALS:
        said = admin.refused(command.format(n=namespace))
        if sentence.format(n=namespace) not in said:
            wrong.append((command, said))
    assert not wrong, wrong


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
