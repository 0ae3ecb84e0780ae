"""The official pulsar-admin against a standalone server and against three brokers: tenants,
clusters, namespaces, brokers and all policies. What it sets is what it gets, and refusals are its
own."""

from __future__ import annotations

import pytest

from tests.clients.pulsar_admin import Site

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]


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
