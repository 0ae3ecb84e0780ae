"""The builders: stable, safe and complete."""

from __future__ import annotations

import copy
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from magnetar.resources import BrokerCluster, DataJob, TransactionCoordinator, parse_manifest
from magnetar.resources.base import sentence_of
from magnetar.resources.quantities import amount
from magnetar_operator import names
from magnetar_operator.brokers.desired import desired, identity_of
from magnetar_operator.builders.job_pods import (
    OVERHEAD_MIN_MIB,
    driver_pod,
    executor_pod,
    job_policy,
    job_secret,
)
from magnetar_operator.builders.magnetar_pod import GRACE_BEYOND_DRAIN_S
from magnetar_operator.builders.object import spark_image_of
from magnetar_operator.builders.storage_claim import storage_claim
from magnetar_operator.engine.planning import plan, sealed
from tests.support.samples import DEFAULTS, cluster, job

ROOT = Path(__file__).resolve().parents[4]
KUBEADM_CPU = Decimal("0.95")
"""API server, controllers, scheduler, etcd, two DNS servers and kindnet."""

specs = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.integers(0, 9),
        "config": st.dictionaries(
            st.sampled_from(["moves_parallel_max", "lease_ttl_s"]), st.sampled_from([3, 4])
        ),
        "drainTimeoutSeconds": st.integers(1, 600),
        "storage": st.sampled_from(
            [
                {"volumeClaim": {}},
                {"s3": {"bucket": "messages"}},
                {"volumeClaim": {"existingClaim": "mine"}},
                {"volumeClaim": {"storageClassName": "fast", "size": "1024Mi"}},
            ]
        ),
        "etcd": st.sampled_from([{"managed": {}}, {"external": {"endpoints": ["e:2379"]}}]),
        "podTemplate": st.sampled_from(
            [
                {},
                {"affinity": {}, "priorityClassName": "high"},
                {"nodeSelector": {"a": "b"}, "tolerations": [{"key": "k", "operator": "Exists"}]},
            ]
        ),
    },
)


def manifests(replicas: int = 1, **spec: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {identity_of(found): found for found in desired(cluster(**spec), DEFAULTS, replicas, {})}


def broker_pod(**spec: Any) -> dict[str, Any]:
    template: dict[str, Any] = manifests(**spec)["StatefulSet", "main-broker"]["spec"]["template"]
    return template


@pytest.mark.slow
@given(specs)
def test_planning_against_what_was_just_applied_yields_nothing(spec: dict[str, Any]) -> None:
    """Also after the API server has added its own fields to every object."""
    resource = cluster(**spec)
    observed: dict[tuple[str, str], dict[str, Any]] = {}
    for manifest in desired(resource, DEFAULTS, 2, {}):
        stored = copy.deepcopy(sealed(manifest))
        stored["metadata"] |= {"uid": "x", "resourceVersion": "7", "generation": 1}
        stored.setdefault("spec", {})["addedByTheServer"] = True
        observed[identity_of(manifest)] = stored
    assert plan(desired(resource, DEFAULTS, 2, observed), observed, "u-1") == []


def test_nothing_that_holds_data_is_owned_by_the_cluster() -> None:
    for (kind, _), manifest in manifests().items():
        owned = bool(manifest["metadata"].get("ownerReferences"))
        assert owned == (kind != "PersistentVolumeClaim")
    etcd = manifests()["StatefulSet", "main-etcd"]["spec"]
    assert etcd["persistentVolumeClaimRetentionPolicy"] == {
        "whenDeleted": "Retain",
        "whenScaled": "Retain",
    }


@pytest.mark.parametrize("name", ["main-broker", "main-etcd"])
def test_pods_pass_the_restricted_security_standard(name: str) -> None:
    pod = manifests()["StatefulSet", name]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@given(st.integers(1, 3600))
def test_the_grace_period_outlasts_the_drain(seconds: int) -> None:
    """A broker that is killed in its drain leaves its bundles to a takeover."""
    pod = broker_pod(drainTimeoutSeconds=seconds)
    assert pod["spec"]["terminationGracePeriodSeconds"] == seconds + GRACE_BEYOND_DRAIN_S
    data = manifests(drainTimeoutSeconds=seconds)["ConfigMap", "main-broker"]["data"]
    assert data["MAGNETAR_DRAIN_TIMEOUT_S"] == str(seconds)


def test_the_brokers_template_is_the_reviewed_one() -> None:
    """An upgrade of the operator restarts every broker whose template differs by a byte: a change
    must be meant.

    After an intended one: UPDATE_GOLDEN=1 python -m pytest
    tests/unit/operator/builders/test_builders.py, and read the diff.
    """
    additions = {
        "labels": {"team": "a"},
        "annotations": {"b": "c"},
        "nodeSelector": {"d": "e"},
        "tolerations": [{"key": "f"}],
    }
    full = broker_pod(
        image={"repository": "r.example/m", "tag": "7", "pullPolicy": "Always"},
        config={"moves_parallel_max": 9},
        podTemplate=additions,
        drainTimeoutSeconds=7,
        resources={"requests": {"cpu": 1}, "limits": {"memory": "1Gi"}},
        storage={"volumeClaim": {"existingClaim": "mine"}},
        etcd={"external": {"endpoints": ["http://a:1", "b:2"]}},
    )
    text = json.dumps({"default": broker_pod(), "full": full}, indent=1) + "\n"
    golden = Path(__file__).parent / "golden" / "broker_template.json"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


AFFINITY: dict[str, Any] = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["fast"]}]}
            ]
        }
    },
    "podAntiAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 10,
                "podAffinityTerm": {
                    "labelSelector": {"matchLabels": {"app": "db"}},
                    "topologyKey": "kubernetes.io/hostname",
                },
            }
        ]
    },
}


def test_what_is_given_of_placement_is_in_the_pod_as_it_was_written() -> None:
    """Affinity as it would stand in a pod, without a field more; the spread replaces ours, but
    counts our pods; the account has its name."""
    spread = {"topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
    additions = {
        "affinity": AFFINITY, "topologySpreadConstraints": [spread], "priorityClassName": "high",
        "serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/r"},
    }  # fmt: skip
    made = manifests(podTemplate=additions, image={"pullSecrets": ["registry"]})
    pod, plain = (
        made["StatefulSet", "main-broker"]["spec"]["template"]["spec"],
        broker_pod()["spec"],
    )
    assert pod["affinity"] == AFFINITY
    assert pod["priorityClassName"] == "high"
    (constraint,) = pod["topologySpreadConstraints"]
    assert constraint == {
        **spread,
        "maxSkew": 1,
        "labelSelector": plain["topologySpreadConstraints"][0]["labelSelector"],
    }
    assert not {"affinity", "priorityClassName", "imagePullSecrets"} & set(plain)
    assert made["ServiceAccount", "main-broker"]["metadata"]["annotations"][
        "eks.amazonaws.com/role-arn"
    ].endswith("role/r")
    for name in ("main-broker", "main-etcd"):
        assert made["StatefulSet", name]["spec"]["template"]["spec"]["imagePullSecrets"] == [
            {"name": "registry"}
        ]


@pytest.mark.parametrize(
    ("addition", "said"),
    [
        ({"terminationGracePeriodSeconds": 1}, "is not a field"),
        ({"containers": []}, "is not a field"),
        ({"securityContext": {}}, "is not a field"),
        (
            {
                "affinity": {
                    "podAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "z"}]
                    }
                }
            },
            "say which pods",
        ),
        ({"topologySpreadConstraints": [{"topologyKey": "z", "maxSkew": 0}]}, "maxSkew"),
    ],
)
def test_what_drains_and_fencing_depend_on_cannot_be_given(
    addition: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said if said != "is not a field" else "Extra inputs"):
        cluster(podTemplate=addition)


def test_settings_change_the_template_and_replicas_do_not() -> None:
    """Only the first is a reason to restart."""
    assert broker_pod() == broker_pod(replicas=7)
    assert broker_pod() != broker_pod(config={"moves_parallel_max": 9})


def test_brokers_are_started_on_the_clusters_store_and_volume() -> None:
    container = broker_pod()["spec"]["containers"][0]
    assert container["args"] == [
        "magnetar", "broker", "--name", "$(POD_NAME)", "--store", "etcd://main-etcd.shop.svc:2379",
        "--store-tls", "/etc/magnetar/etcd", "--volume", "/var/lib/magnetar", "--advertised-address", "$(POD_IP)",
        "--broker-port", "6650", "--http-port", "8080",
    ]  # fmt: skip
    external = broker_pod(etcd={"external": {"endpoints": ["http://a:1", "b:2"]}})["spec"][
        "containers"
    ][0]["args"]
    assert external[external.index("--store") + 1] == "etcd://a:1,b:2"
    assert "--store-tls" not in external


def test_an_adopted_claim_keeps_what_cannot_change() -> None:
    """A cluster made again finds its volume, whatever class, modes and size it has now."""
    existing = {
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "old",
            "resources": {"requests": {"storage": "20Gi"}},
        }
    }
    claim = storage_claim(
        cluster(storage={"volumeClaim": {"storageClassName": "new", "size": "10Gi"}}), existing
    )
    assert claim is not None
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "20Gi"}},
    }
    assert storage_claim(cluster(storage={"volumeClaim": {"existingClaim": "mine"}}), None) is None


@pytest.mark.slow
def test_the_driver_gets_the_command_line_that_the_job_parses() -> None:
    """Every option is one of `magnetar_jobs.compact`'s own parser."""
    compact = pytest.importorskip("magnetar_jobs.compact")
    pod = driver_pod(
        job(compaction={"topic": "persistent://a/b/c", "retainKeyless": True}),
        cluster(),
        DEFAULTS,
        "once-01234567",
        2,
    )
    arguments = pod["spec"]["containers"][0]["args"]
    assert arguments[:3] == ["python3", "-m", "magnetar_jobs.compact"]
    parsed = compact.parse_arguments(arguments[3:])
    assert (parsed.topic, parsed.job, parsed.run, parsed.retain_keyless) == (
        "persistent://a/b/c",
        "shop/prices",
        "once-01234567",
        True,
    )
    assert (parsed.executors, parsed.executor_memory_mib, parsed.executor_cores) == (1, 512, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "field", "module"),
    [
        ("Compaction", "compaction", "compact"),
        ("TransactionLogCompaction", "transactionLogCompaction", "transaction_log"),
    ],
)
@pytest.mark.parametrize(
    "whose", [{"topic": "persistent://a/b/c"}, {"namespace": "a/b"}], ids=["topic", "namespace"]
)
def test_compactions_get_the_command_line_that_they_parse(
    kind: str, field: str, module: str, whose: dict[str, str]
) -> None:
    driver_module = pytest.importorskip(f"magnetar_jobs.{module}")
    resource = job(**{"type": kind, "compaction": None, field: whose})
    driver, _ = job_pods_of(resource)
    arguments = driver["spec"]["containers"][0]["args"]
    assert arguments[:3] == ["python3", "-m", f"magnetar_jobs.{module}"]
    parsed = driver_module.parse_arguments(arguments[3:])
    assert (parsed.topic, parsed.namespace) == (whose.get("topic"), whose.get("namespace"))
    assert (parsed.job, parsed.run, parsed.executors) == ("shop/prices", "once-01234567", 1)


@pytest.mark.slow
def test_load_analytics_gets_the_command_line_that_it_parses() -> None:
    load_analytics = pytest.importorskip("magnetar_jobs.load_analytics")
    for spec, expected in (
        (None, (14.0, 600, 24.0, 5)),
        (
            {"historyDays": 3, "windowSeconds": 60, "validHours": 2, "sampleTopics": 0},
            (3.0, 60, 2.0, 0),
        ),
    ):
        resource = job(type="LoadAnalytics", compaction=None, loadAnalytics=spec)
        driver, _ = job_pods_of(resource)
        arguments = driver["spec"]["containers"][0]["args"]
        assert arguments[:3] == ["python3", "-m", "magnetar_jobs.load_analytics"]
        parsed = load_analytics.parse_arguments(arguments[3:])
        found = (parsed.days, parsed.window_seconds, parsed.valid_hours, parsed.sample_topics)
        assert found == expected
        load_analytics.Options(*found).check()


@pytest.mark.slow
def test_a_script_is_mounted_into_its_driver_alone_and_gets_its_arguments() -> None:
    """The command line is one of `magnetar_jobs.script`'s own parser."""
    script = pytest.importorskip("magnetar_jobs.script")
    resource = job(
        type="PySpark",
        compaction=None,
        pySpark={"configMap": "report", "key": "daily.py", "arguments": ["--day", "monday"]},
    )
    driver, executor = job_pods_of(resource)
    (container,) = driver["spec"]["containers"]
    assert container["args"][:3] == ["python3", "-m", "magnetar_jobs.script"]
    parsed = script.parse_arguments([*container["args"][3:]])
    assert (str(parsed.script), parsed.arguments) == ("/script/daily.py", ["--day", "monday"])
    assert parsed.executors == 1
    assert driver["spec"]["volumes"][-1] == {"name": "script", "configMap": {"name": "report"}}
    assert container["volumeMounts"][-1]["readOnly"]
    assert "script" not in {volume["name"] for volume in executor["spec"]["volumes"]}


@pytest.mark.slow
def test_an_executor_gets_the_command_line_that_it_parses_and_the_drivers_secret() -> None:
    """Spark's ports, the secret's variable and the name of the application are spelled in two
    places, compared here."""
    executor, session = (
        pytest.importorskip("magnetar_jobs.executor"),
        pytest.importorskip("magnetar_jobs.session"),
    )
    resource = job(executors={"instances": 2, "cores": 3, "cpu": "200m", "memoryMib": 600})
    driver, pod = job_pods_of(resource)
    container = pod["spec"]["containers"][0]
    assert container["args"][:3] == ["python3", "-m", "magnetar_jobs.executor"]
    parsed = executor.parse_arguments(container["args"][3:])
    assert (parsed.driver, parsed.application, parsed.number) == (
        "10.1.2.3",
        driver["metadata"]["name"],
        2,
    )
    assert (parsed.cores, parsed.memory_mib) == (3, 600)
    assert container["resources"]["requests"] == {
        "cpu": "200m",
        "memory": f"{600 + OVERHEAD_MIN_MIB}Mi",
    }
    variables = {found["name"] for found in container["env"]}
    assert variables == {session.POD_IP, session.SECRET}
    assert variables | {session.POD_NAME} == {
        found["name"] for found in driver["spec"]["containers"][0]["env"]
    }
    assert (names.SPARK_DRIVER_PORT, names.SPARK_BLOCK_PORT) == (
        session.DRIVER_PORT,
        session.BLOCK_MANAGER_PORT,
    )
    secret = job_secret(resource, cluster(), b"\x01" * 32)
    chosen = {
        found["name"]: found.get("valueFrom", {}).get("secretKeyRef") for found in container["env"]
    }[session.SECRET]
    assert (chosen["name"], chosen["key"]) == (secret["metadata"]["name"], *secret["data"])


def job_pods_of(resource: DataJob) -> tuple[dict[str, Any], dict[str, Any]]:
    """A driver that runs, and its second executor."""
    driver = driver_pod(resource, cluster(), DEFAULTS, "once-01234567", 1)
    driver["metadata"]["uid"], driver["status"] = "d-1", {"phase": "Running", "podIP": "10.1.2.3"}
    return driver, executor_pod(resource, cluster(), DEFAULTS, driver, 2)


def test_the_pods_of_a_job_have_no_token_and_an_executor_no_certificate() -> None:
    driver, executor = job_pods_of(job())
    for pod in (driver, executor):
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["containers"][0]["image"] == DEFAULTS.spark_image
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        (container,) = pod["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert not [volume for volume in pod["spec"]["volumes"] if "hostPath" in volume]
    assert [volume["name"] for volume in executor["spec"]["volumes"]] == ["storage", "tmp"]
    assert "secret" in driver["spec"]["volumes"][-1]
    assert [owner["uid"] for owner in executor["metadata"]["ownerReferences"]] == ["d-1"]


def test_what_is_added_to_the_pods_of_a_job_replaces_nothing() -> None:
    """Labels and variables of the operator win; driver and executors are chosen for apart."""
    template = {
        "labels": {"team": "prices", names.JOB: "another"},
        "annotations": {"note": "spot"},
        "nodeSelector": {"pool": "spot"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "priorityClassName": "low",
        "env": [{"name": "LEVEL", "value": "debug"}],
    }
    driver, executor = job_pods_of(job(executors={"podTemplate": template}))
    assert "nodeSelector" not in driver["spec"]
    assert executor["spec"]["nodeSelector"] == {"pool": "spot"}
    assert executor["spec"]["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    assert executor["spec"]["priorityClassName"] == "low"
    assert executor["metadata"]["annotations"] == {"note": "spot"}
    labels = executor["metadata"]["labels"]
    assert (labels["team"], labels[names.JOB]) == ("prices", "prices")
    env = executor["spec"]["containers"][0]["env"]
    assert env[-1] == {"name": "LEVEL", "value": "debug"}
    assert executor["spec"]["serviceAccountName"] == names.SPARK_ACCOUNT


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ({"serviceAccountName": "admin"}, "podTemplate.serviceAccountName: is not a field"),
        ({"hostNetwork": True}, "podTemplate.hostNetwork: is not a field"),
        ({"securityContext": {"privileged": True}}, "podTemplate.securityContext: is not a field"),
        ({"volumes": [{"hostPath": {"path": "/"}}]}, "podTemplate.volumes: is not a field"),
        ({"env": [{"name": "SPARK_HOME", "value": "/"}]}, "choose another name"),
        ({"env": [{"name": "PATH", "value": "/"}]}, "choose another name"),
        ({"env": [{"name": "KEY", "valueFrom": {}}]}, "env.0.valueFrom: is not a field"),
        (
            {
                "annotations": {
                    "container.apparmor.security.beta.kubernetes.io/driver": "unconfined"
                }
            },
            "would replace the security profile",
        ),
    ],
)
def test_what_would_take_a_jobs_pods_out_of_their_bounds_is_refused(
    template: dict[str, Any], words: str
) -> None:
    """By the field's name, with what to do."""
    with pytest.raises(ValidationError) as caught:
        job(driver={"podTemplate": template})
    said = sentence_of(caught.value)
    assert said.startswith("spec.driver.podTemplate")
    assert words in said


def test_only_a_jobs_own_pods_reach_each_other_and_executors_reach_no_etcd() -> None:
    _, executor = job_pods_of(job())
    (rule,) = job_policy(job(), cluster())["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {names.JOB: "prices"}}}]
    assert [port["port"] for port in rule["ports"]] == [
        names.SPARK_DRIVER_PORT,
        names.SPARK_BLOCK_PORT,
    ]
    client = manifests()["NetworkPolicy", "main-etcd"]["spec"]["ingress"][0]["from"][0][
        "podSelector"
    ]
    assert client["matchExpressions"] == [
        {"key": names.COMPONENT, "operator": "NotIn", "values": ["executor"]}
    ]
    assert executor["metadata"]["labels"][names.COMPONENT] == "executor"


def test_the_example_of_a_job_fits_a_node_of_two_processors() -> None:
    """Beside the quickstart, scaled as the README says, its operator, and what kubeadm runs on a
    node of its own."""
    paths = [
        *sorted((ROOT / "examples/quickstart").glob("*.yaml")),
        ROOT / "examples/compaction.yaml",
    ]
    resources = {
        found.kind: found
        for found in (parse_manifest(yaml.safe_load(path.read_text())) for path in paths)
    }
    brokers, transactions, example = (
        resources[kind] for kind in ("BrokerCluster", "TransactionCoordinator", "DataJob")
    )
    assert isinstance(brokers, BrokerCluster)
    assert isinstance(transactions, TransactionCoordinator)
    assert isinstance(example, DataJob)
    etcd = next(
        found
        for found in desired(brokers, DEFAULTS, 2, {})
        if identity_of(found) == ("StatefulSet", "main-etcd")
    )
    executors = example.spec.executors
    asked = [
        *2 * [brokers.spec.resources.requests["cpu"]],
        transactions.spec.resources.requests["cpu"],
        etcd["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"],
        yaml.safe_load((ROOT / "charts/magnetar/values.yaml").read_text())["operator"]["resources"][
            "requests"
        ]["cpu"],
        example.spec.driver.cpu,
        *executors.instances * [executors.cpu or str(executors.cores)],
    ]
    amounts = [amount(cpu) for cpu in asked]
    assert None not in amounts
    assert sum(filter(None, amounts)) + KUBEADM_CPU <= 2


def test_a_drivers_name_follows_from_resource_run_and_attempt() -> None:
    """Making it twice is refused; another run or attempt is another pod."""
    found = {
        names.driver_pod("prices", uid, run, attempt)
        for uid in ("u", "v")
        for run in ("a", "b")
        for attempt in (1, 2)
    }
    assert len(found) == 8
    assert names.driver_pod("prices", "u", "a", 1) == names.driver_pod("prices", "u", "a", 1)
    assert max(map(len, found)) <= 63


@given(st.lists(st.integers(0, 120), unique=True, min_size=1))
def test_pods_are_ordered_by_number(ordinals: list[int]) -> None:
    """broker-10 comes after broker-9."""
    pods = [names.broker_pod("main", ordinal) for ordinal in ordinals]
    assert [names.ordinal_of(pod) for pod in sorted(pods, key=names.ordinal_of)] == sorted(ordinals)


def test_jobs_run_the_image_of_the_brokers_tag_that_holds_spark() -> None:
    own = cluster(image={"repository": "host:5000/you/m", "tag": "7"})
    assert spark_image_of(own, DEFAULTS) == "host:5000/you/m-spark:7"
    assert spark_image_of(cluster(), DEFAULTS) == DEFAULTS.spark_image
