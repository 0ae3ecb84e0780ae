"""The resource definitions on a real API server: defaults, rules, columns, subresources."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import yaml

from dev.testbed.control_plane import ROOT, ControlPlane, EtcdProcess
from magnetar.errors import InvalidRequest
from magnetar.resources import API_VERSION, KINDS, parse_manifest
from tests.apiserver.definitions import changed_spec
from tests.apiserver.stage import Scene, brokers_of, running_operator, until

pytestmark = pytest.mark.slow

TOPIC = "persistent://public/default/prices"
SPECS: dict[str, dict[str, Any]] = {
    "BrokerCluster": {},
    "TransactionCoordinator": {"clusterRef": {"name": "main"}},
    "TopicNamespace": {"clusterRef": {"name": "main"}, "tenant": "public", "namespace": "demo"},
    "DataJob": {
        "clusterRef": {"name": "main"},
        "compaction": {"topic": TOPIC},
    },
}

REFUSED = [
    ("BrokerCluster", {"image": {"repository": "x"}}, "set repository and tag together"),
    ("BrokerCluster", {"image": {"repository": "x", "tag": "latest"}}, "image.tag is latest"),
    ("BrokerCluster", {"etcd": {"managed": {"image": "etcd:latest"}}}, "image has the tag latest"),
    (
        "BrokerCluster",
        {"resources": {"requests": {"cpu": 1}, "limits": {"cpu": "999m"}}},
        "a request is above its limit",
    ),
    (
        "BrokerCluster",
        {"resources": {"limits": {"memory": "256Mi"}}},
        "a request is above its limit",
    ),
    (
        "TransactionCoordinator",
        {"resources": {"limits": {"memory": "1e6"}}},
        "a request is above its limit",
    ),
    ("BrokerCluster", {"etcd": {}}, "set exactly one of managed and external"),
    (
        "BrokerCluster",
        {"etcd": {"managed": {}, "external": {"endpoints": ["a:1"]}}},
        "set exactly one of managed and external",
    ),
    (
        "BrokerCluster",
        {"storage": {"volumeClaim": {"existingClaim": "a", "storageClassName": "b"}}},
        "set either existingClaim or storageClassName",
    ),
    ("BrokerCluster", {"config": {"keep_alive_s": 0}}, "greater than or equal to 1"),
    ("BrokerCluster", {"config": {"lease_ttl_s": 61}}, "less than or equal to 60"),
    (
        "BrokerCluster",
        {"config": {"log_file_bytes": 1 << 20}},
        "at least 4 times max_message_bytes",
    ),
    (
        "BrokerCluster",
        {"loadBalancing": {"placement": "AvgShedder"}},
        "AvgShedder works only as both strategy and placement",
    ),
    (
        "BrokerCluster",
        {"loadBalancing": {"strategy": "AvgShedder", "placement": "Planner"}},
        "AvgShedder works only as both strategy and placement",
    ),
    (
        "BrokerCluster",
        {"loadBalancing": {"splits": True}, "config": {"loadBalancerAutoBundleSplitEnabled": True}},
        "loadBalancing.splits sets loadBalancerAutoBundleSplitEnabled",
    ),
    ("BrokerCluster", {"loadBalancing": {"bandPercent": 41}}, "less than or equal to 40"),
    (
        "BrokerCluster",
        {"listeners": [{"name": "internal"}]},
        "internal is the brokers' own listener",
    ),
    (
        "BrokerCluster",
        {"listeners": [{"name": "p", "nodePort": 30000}]},
        "nodePort is for type NodePort",
    ),
    (
        "BrokerCluster",
        {"listeners": [{"name": "p", "type": "ClusterIP", "sourceRanges": ["10.0.0.0/8"]}]},
        "are for type LoadBalancer",
    ),
    (
        "BrokerCluster",
        {"listeners": [{"name": "p", "advertisedHost": "b.example.com"}]},
        "write {ordinal} in it",
    ),
    ("BrokerCluster", {"listeners": [{"name": "p"}, {"name": "p"}]}, "Duplicate value"),
    ("BrokerCluster", {"storage": {}}, "set exactly one of volumeClaim and s3"),
    (
        "BrokerCluster",
        {"storage": {"volumeClaim": {}, "s3": {"bucket": "messages"}}},
        "set exactly one of volumeClaim and s3",
    ),
    (
        "BrokerCluster",
        {
            "podTemplate": {
                "affinity": {
                    "podAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "z"}]
                    }
                }
            }
        },
        "say which pods are meant",
    ),
    (
        "BrokerCluster",
        {"auth": {"clientCertificates": True}},
        "auth.clientCertificates needs spec.tls",
    ),
    ("BrokerCluster", {"listeners": [{"name": "p", "tls": True}]}, "listeners: tls needs spec.tls"),
    (
        "BrokerCluster",
        {"tls": {"secretName": "a", "plain": "Closed"}, "listeners": [{"name": "p"}]},
        "would admit no client",
    ),
    ("BrokerCluster", {"auth": {}}, "no client would be admitted"),
    ("BrokerCluster", {"auth": {"tokens": {}}}, "set exactly one of secretKey and publicKey"),
    (
        "BrokerCluster",
        {"auth": {"anonymousRole": "a", "superUserRoles": ["a"]}},
        "which lets every client do everything",
    ),
    (
        "BrokerCluster",
        {"auth": {"anonymousRole": "a", "superUserRoles": ["b"], "proxyRoles": ["b"]}},
        "a proxy needs no rights of its own",
    ),
    ("BrokerCluster", {"replicas": -1}, "greater than or equal to 0"),
    ("BrokerCluster", {"drainTimeoutSeconds": 0}, "greater than or equal to 1"),
    ("TransactionCoordinator", {"replicas": 17}, "less than or equal to 16"),
    ("TransactionCoordinator", {"config": {"lease_ttl_s": 61}}, "less than or equal to 60"),
    ("TopicNamespace", {"tenant": "a/b"}, "tenant"),
    (
        "TopicNamespace",
        {"tenant": "pulsar", "namespace": "system"},
        "namespace pulsar/system belongs to the brokers",
    ),
    ("TopicNamespace", {"bundles": 5000}, "less than or equal to 4096"),
    (
        "TopicNamespace",
        {"policies": {"retention_policies": {"retentionTimeInMinutes": 5}}},
        "set both retentionTimeInMinutes and",
    ),
    (
        "TopicNamespace",
        {
            "policies": {
                "autoTopicCreationOverride": {
                    "allowAutoTopicCreation": True,
                    "defaultNumPartitions": 2,
                }
            }
        },
        "defaultNumPartitions is for topicType partitioned",
    ),
    (
        "TopicNamespace",
        {"policies": {"subscription_types_enabled": ["Shared", "Shared"]}},
        'Duplicate value: "Shared"',
    ),
    (
        "TopicNamespace",
        {"permissions": {"": ["produce"]}},
        "a role has a name of 1 to 200 characters",
    ),
    ("TopicNamespace", {"permissions": {"alice": []}}, "at least 1 item"),
    (
        "TopicNamespace",
        {"properties": {"x" * 201: "y"}},
        "a property has a name of 1 to 200 characters",
    ),
    ("TopicNamespace", {"tenantConfig": {}}, "set adminRoles, allowedClusters or both"),
    (
        "DataJob",
        {"compaction": {"topic": "non-persistent://public/default/x"}},
        "write persistent://tenant/namespace/topic",
    ),
    ("DataJob", {"compaction": None}, "needs compaction.topic"),
    ("DataJob", {"compaction": {}}, "compaction: write either topic or namespace"),
    (
        "DataJob",
        {"compaction": {"topic": "persistent://a/b/c", "namespace": "a/b"}},
        "compaction: write either topic or namespace",
    ),
    ("DataJob", {"runRequest": "Not A Name"}, "runRequest"),
]

IMMUTABLE: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    (
        "BrokerCluster",
        {},
        {"etcd": {"managed": None, "external": {"endpoints": ["a:1"]}}},
        "stays with the kind of store",
    ),
    ("BrokerCluster", {}, {"storage": {"volumeClaim": {"size": "1Gi"}}}, "a claim cannot shrink"),
    (
        "BrokerCluster",
        {},
        {"storage": {"volumeClaim": {"storageClassName": "other"}}},
        "a claim cannot change its class",
    ),
    (
        "TransactionCoordinator",
        {},
        {"clusterRef": {"name": "other"}},
        "make a new TransactionCoordinator for another cluster",
    ),
    (
        "BrokerCluster",
        {},
        {"storage": {"volumeClaim": None, "s3": {"bucket": "messages"}}},
        "stays with the kind of storage",
    ),
    (
        "BrokerCluster",
        {"storage": {"s3": {"bucket": "messages"}}},
        {"storage": {"s3": {"bucket": "others"}}},
        "the bucket named first",
    ),
    (
        "BrokerCluster",
        {"storage": {"s3": {"bucket": "messages"}}},
        {"storage": {"s3": {"prefix": "p"}}},
        "the prefix named first",
    ),
    ("BrokerCluster", {}, {"tls": {"secretName": "a", "plain": "Closed"}}, "begin with Open"),
    (
        "TopicNamespace",
        {},
        {"clusterRef": {"name": "other"}},
        "make a new TopicNamespace for another cluster",
    ),
    ("TopicNamespace", {}, {"bundles": 8}, "it is the initial number"),
    ("DataJob", {}, {"clusterRef": {"name": "other"}}, "make a new DataJob for another cluster"),
]


def manifest(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    content = copy.deepcopy(SPECS[kind]) | spec
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name},
        "spec": {key: value for key, value in content.items() if value is not None},
    }


def path(namespace: str, kind: str, name: str = "") -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{kind.lower()}s" + (
        f"/{name}" if name else ""
    )


def without_empty(value: Any) -> Any:
    """An object without what is None: the API server stores no nulls."""
    if isinstance(value, dict):
        return {key: without_empty(item) for key, item in value.items() if item is not None}
    return [without_empty(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_api_server_fills_in_the_models_defaults(
    control_plane: ControlPlane, namespace: str, kind: str
) -> None:
    """What is stored for a minimal spec is exactly what the model makes of it."""
    stored = control_plane.must("POST", path(namespace, kind), manifest(kind, "minimal"))
    model = KINDS[kind].model_validate(manifest(kind, "minimal"))
    assert stored["spec"] == without_empty(model.model_dump(by_alias=True, mode="json")["spec"])


@pytest.mark.parametrize(
    ("kind", "change", "sentence"),
    REFUSED,
    ids=[f"{kind}-{sentence[:30]}" for kind, _, sentence in REFUSED],
)
def test_wrong_manifests_are_refused_alike_here_and_there(
    control_plane: ControlPlane, namespace: str, kind: str, change: dict[str, Any], sentence: str
) -> None:
    """The API server and `magnetar apply` refuse the same manifest with the same sentence."""
    wrong = manifest(kind, "wrong", **change)
    status, answer = control_plane.request("POST", path(namespace, kind), wrong)
    assert status == 422
    assert sentence in answer["message"]
    with pytest.raises(InvalidRequest, match=re.escape(sentence)):
        parse_manifest(wrong)


@pytest.mark.parametrize("name", ["main-etcd", "main-coordinator", "Main", "1main", "m" * 41])
def test_names_that_children_could_not_carry_are_refused(
    control_plane: ControlPlane, namespace: str, name: str
) -> None:
    status, answer = control_plane.request(
        "POST", path(namespace, "BrokerCluster"), manifest("BrokerCluster", name)
    )
    assert status == 422, answer
    with pytest.raises(InvalidRequest, match=re.escape("metadata.name")):
        parse_manifest(manifest("BrokerCluster", name))


@pytest.mark.parametrize(
    ("kind", "first", "change", "sentence"),
    IMMUTABLE,
    ids=[sentence[:30] for *_, sentence in IMMUTABLE],
)
def test_what_must_not_change_cannot(
    control_plane: ControlPlane,
    namespace: str,
    kind: str,
    first: dict[str, Any],
    change: dict[str, Any],
    sentence: str,
) -> None:
    control_plane.must("POST", path(namespace, kind), manifest(kind, "fixed", **first))
    status, answer = control_plane.request(
        "PATCH", path(namespace, kind, "fixed"), {"spec": change}, "application/merge-patch+json"
    )
    assert status == 422
    assert sentence in answer["message"]


def test_a_misspelt_setting_is_refused_by_name(control_plane: ControlPlane, namespace: str) -> None:
    """kubectl asks for strict validation; `magnetar apply` names the setting that was meant;
    `kubectl explain` shows each with its bounds."""
    wrong = manifest("BrokerCluster", "wrong", config={"keep_alife_s": 20})
    applied = control_plane.kubectl(
        "create", "-n", namespace, "-f", "-", text_input=yaml.safe_dump(wrong)
    )
    assert applied.returncode != 0
    assert 'unknown field "spec.config.keep_alife_s"' in applied.stderr
    with pytest.raises(InvalidRequest, match="did you mean keep_alive_s"):
        parse_manifest(wrong)
    explained = control_plane.kubectl("explain", "brokercluster.spec.config.keep_alive_s").stdout
    assert "Default: 30" in explained


def test_the_scale_subresource_and_the_columns_work(
    control_plane: ControlPlane, namespace: str
) -> None:
    """`kubectl scale` changes spec.replicas; `kubectl get` by short name and by category shows
    what people look for."""
    control_plane.must("POST", path(namespace, "BrokerCluster"), manifest("BrokerCluster", "main"))
    scaled = control_plane.kubectl("scale", "-n", namespace, "bc/main", "--replicas=4")
    assert scaled.returncode == 0, scaled.stderr
    assert (
        control_plane.must("GET", path(namespace, "BrokerCluster", "main"))["spec"]["replicas"] == 4
    )
    shown = control_plane.kubectl("get", "-n", namespace, "magnetar").stdout
    assert shown.split()[:10] == [
        "NAME",
        "DESIRED",
        "CURRENT",
        "BROKERS",
        "READY",
        "READY",
        "REASON",
        "PAUSED",
        "BALANCE",
        "AGE",
    ]
    explained = control_plane.kubectl("explain", "brokercluster.spec.drainTimeoutSeconds")
    assert "transfer its bundles" in explained.stdout


@pytest.mark.parametrize(
    ("spec", "topics"),
    [
        ({"compaction": {"topic": TOPIC}}, TOPIC),
        ({"compaction": {"namespace": "acme/orders"}}, "acme/orders"),
        (
            {
                "type": "TransactionLogCompaction",
                "transactionLogCompaction": {"namespace": "acme/orders"},
            },
            "acme/orders",
        ),
        ({"type": "LoadAnalytics"}, ""),
    ],
)
def test_a_list_of_jobs_shows_on_which_topics_each_works(
    control_plane: ControlPlane, namespace: str, spec: dict[str, Any], topics: str
) -> None:
    """A topic, or all of a namespace; nothing where a job is about none."""
    job = {**manifest("DataJob", "nightly"), "spec": {"clusterRef": {"name": "main"}, **spec}}
    control_plane.must("POST", path(namespace, "DataJob"), job)
    head, row = control_plane.kubectl("get", "-n", namespace, "datajobs").stdout.splitlines()
    assert row[head.index("TOPICS") : head.index("SCHEDULE")].strip() == topics


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_paused_resource_is_seen_in_the_list(
    control_plane: ControlPlane, namespace: str, kind: str
) -> None:
    """Whether or not an operator has looked at it since."""
    pause = {"metadata": {"annotations": {"magnetar.io/paused": "true"}}}
    for name in ("paused", "works"):
        control_plane.must("POST", path(namespace, kind), manifest(kind, name))
    control_plane.must(
        "PATCH", path(namespace, kind, "paused"), pause, "application/merge-patch+json"
    )
    head, *rows = control_plane.kubectl("get", "-n", namespace, kind.lower()).stdout.splitlines()
    at = head.index("PAUSED")
    assert {row.split()[0]: row[at : at + len("PAUSED")].strip() for row in rows} == {
        "paused": "true",
        "works": "",
    }


@pytest.mark.parametrize(
    "file",
    sorted([*(ROOT / "examples/quickstart").glob("*.yaml"), *(ROOT / "examples").glob("*.yaml")]),
    ids=lambda file: file.name,
)
def test_the_examples_are_accepted_here_and_there(
    control_plane: ControlPlane, namespace: str, file: Any
) -> None:
    applied = control_plane.kubectl("apply", "-n", namespace, "--validate=strict", "-f", str(file))
    assert applied.returncode == 0, applied.stderr
    for document in yaml.safe_load_all(file.read_text()):
        if document["apiVersion"].startswith("magnetar.io/"):
            parse_manifest(document, file.name)


def test_the_committed_definitions_replace_older_ones(control_plane: ControlPlane) -> None:
    """Applying the files again, as an upgrade does, changes nothing and loses nothing."""
    applied = control_plane.kubectl(
        "apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds")
    )
    assert applied.returncode == 0, applied.stderr


async def test_an_operator_older_than_the_definitions_goes_on(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """A new field with a default is in every object, and hides none from it; a new policy, which
    a user must have set, is reported as wrong."""
    novelty: dict[str, Any] = {"type": "string", "default": "on"}
    orders = {"clusterRef": {"name": "main"}, "tenant": "acme", "namespace": "orders"}
    policy = {**orders, "policies": {"novel": 1}}
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}

    def has_novelty(answer: dict[str, Any]) -> bool:
        return "novelty" in answer.get("spec", {})

    def has_policy(answer: dict[str, Any]) -> bool:
        return "novel" in answer.get("spec", {}).get("policies", {})

    async with (
        changed_spec(scene, "BrokerCluster", "novelty", novelty, {}, has_novelty),
        changed_spec(scene, "TopicNamespace", "novelty", novelty, orders, has_novelty),
        changed_spec(scene, "TopicNamespace", "policies", anything, policy, has_policy),
        brokers_of(cluster_etcd.endpoint),
    ):
        cluster = scene.create(
            "BrokerCluster",
            "main",
            {"etcd": {"external": {"endpoints": [cluster_etcd.endpoint]}}},
        )
        assert cluster["spec"]["novelty"] == "on"
        scene.create("TopicNamespace", "orders", orders)
        scene.create("TopicNamespace", "new", {**policy, "namespace": "new"})
        async with running_operator(scene.namespace):
            await until("the brokers' StatefulSet", scene.stateful_set)
            path = scene.path("topicnamespaces", "orders")
            await until(
                "the namespace is Ready", lambda: scene.condition(path).get("status") == "True"
            )
            scene.merge(scene.path("brokerclusters", "main"), {"spec": {"replicas": 5}})
            await until("more brokers", lambda: scene.replicas() == 5)
            path = scene.path("topicnamespaces", "new")
            reported = await until(
                "it is reported",
                lambda: (
                    scene.condition(path).get("reason") == "InvalidSpec" and scene.condition(path)
                ),
            )
            assert "spec.policies.novel" in reported["message"]
