"""The chart: lint, golden renders, refusals, agreement with the operator's code.

After an intended change: UPDATE_GOLDEN=1 python -m pytest tests/unit/chart/test_chart.py, and read
the diff.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from magnetar.resources import KINDS
from magnetar.resources.definitions import NAMINGS
from magnetar_operator.builders.network_policy import OPERATOR_LABELS
from magnetar_operator.settings import OperatorSettings

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "magnetar"
GOLDEN = Path(__file__).parent / "golden"
TEMPLATE_LINES_MAX = 180
IMAGE = ("--set", "image.repository=registry.example/magnetar")
VALUES = {
    "default": IMAGE,
    "minimal": ("--values", str(GOLDEN / "minimal.values.yaml")),
    "full": ("--values", str(GOLDEN / "full.values.yaml")),
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def helm() -> str:
    built = subprocess.run(
        [sys.executable, "-m", "dev.kube", "binary", "helm"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode != 0:
        if os.environ.get("CI"):
            raise RuntimeError(built.stderr)
        pytest.skip(f"no helm, so THE CHART WAS NOT TESTED: {built.stderr.strip()[-200:]}")
    return built.stdout.split()[-1]


def render(helm: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        helm,
        "template",
        "magnetar",
        str(CHART),
        "--namespace",
        "magnetar-system",
        "--kube-version",
        "1.34.4",
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def documents(helm: str, *arguments: str) -> list[dict[str, Any]]:
    rendered = render(helm, *arguments)
    assert rendered.returncode == 0, rendered.stderr
    return [document for document in yaml.safe_load_all(rendered.stdout) if document]


def test_the_chart_lints(helm: str) -> None:
    linted = subprocess.run(
        [helm, "lint", "--strict", str(CHART), *IMAGE], capture_output=True, text=True, check=False
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.parametrize("name", list(VALUES))
def test_renders_are_the_reviewed_ones(helm: str, name: str) -> None:
    """Definitions are left out: a test of their own compares them with the models."""
    kept = [
        document
        for document in documents(helm, *VALUES[name])
        if document["kind"] != "CustomResourceDefinition"
    ]
    text = yaml.safe_dump_all(kept, sort_keys=True, width=120)
    golden = GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_an_empty_repository_fails_with_the_commands_to_run(helm: str) -> None:
    refused = render(helm)
    assert refused.returncode != 0
    for words in (
        "image.repository is empty",
        "make image REPO=",
        "kind load docker-image",
        "make cluster",
    ):
        assert words in refused.stderr


WRONG = [
    ("replicas=0", "at '/replicas': minimum: got 0, want 1"),
    ("replicas=two", "at '/replicas': got string, want integer"),
    ("watchNamespaces=shop", "at '/watchNamespaces': got string, want array"),
    ("watchNamespaces={*,shop}", "watchNamespaces has * beside names"),
    ("watchNamespaces={Shop}", "'Shop' does not match pattern"),
    ("operator.logLevel=loud", "at '/operator/logLevel': value must be one of 'debug', 'info'"),
    ("operator.resources.limits.memory=much", "'much' does not match pattern"),
    ("operator.affinity.nodeAfinity.x=1", "additional properties 'nodeAfinity' not allowed"),
    ("unknown=1", "additional properties 'unknown' not allowed"),
    ("image.digests.broker=sha256:12", "'sha256:12' does not match pattern"),
    ("metrics.alerts.enabled=maybe", "at '/metrics/alerts/enabled': value must be one of"),
    (
        "image.tag=latest",
        "image.tag is latest: two brokers of one cluster could then run different versions",
    ),
    ("serviceAccount.create=false", "set the name of the account that the operator is to use"),
    (
        "metrics.alerts.disabled={MagnetarNothing}",
        "MagnetarNothing, which is no alert of this chart. There are: MagnetarOperatorDown",
    ),
]


@pytest.mark.parametrize(("wrong", "sentence"), WRONG, ids=[wrong for wrong, _ in WRONG])
def test_wrong_values_are_refused_with_a_sentence(helm: str, wrong: str, sentence: str) -> None:
    refused = render(helm, *IMAGE, "--set", wrong)
    assert refused.returncode != 0
    assert sentence in " ".join(refused.stderr.split())


def test_definitions_are_upgraded_and_kept(helm: str) -> None:
    found = [
        document
        for document in documents(helm, *IMAGE)
        if document["kind"] == "CustomResourceDefinition"
    ]
    assert {document["spec"]["names"]["kind"] for document in found} == set(KINDS)
    assert all(
        document["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        for document in found
    )


def test_chart_and_operator_agree(helm: str) -> None:
    """Variables and labels: spelled in two places, compared here."""
    found = documents(helm, *IMAGE)
    (deployment,) = (document for document in found if document["kind"] == "Deployment")
    template = deployment["spec"]["template"]
    assert OPERATOR_LABELS.items() <= template["metadata"]["labels"].items()
    container = template["spec"]["containers"][0]
    environment = {item["name"]: item.get("value", "x") for item in container["env"]}
    settings = OperatorSettings.from_environment(environment)
    assert settings.image == "registry.example/magnetar:0.1.0"
    assert settings.http_port == container["ports"][0]["containerPort"]
    leases = next(document for document in found if document["kind"] == "Role")
    assert settings.lease_name in str(leases["rules"])


def test_a_namespaced_operator_gets_no_cluster_wide_rights_but_nodes_and_storage_classes(
    helm: str,
) -> None:
    """Each can be turned off."""
    found = documents(helm, *IMAGE, "--set", "watchNamespaces={shop,lab}")
    bound = {d["roleRef"]["name"] for d in found if d["kind"] == "ClusterRoleBinding"}
    rules = [
        rule
        for d in found
        if d["kind"] == "ClusterRole" and d["metadata"]["name"] in bound
        for rule in d["rules"]
    ]
    assert sorted(rules, key=str) == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
        {"apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": ["get"]},
    ]
    off = "watchNamespaces={shop},rbac.readNodes=false,rbac.readStorageClasses=false"
    assert not [
        d for d in documents(helm, *IMAGE, "--set", off) if d["kind"] == "ClusterRoleBinding"
    ]
    roles = {
        d["metadata"]["namespace"]
        for d in found
        if d["kind"] == "Role" and d["metadata"]["name"] == "magnetar-operator"
    }
    assert roles == {"shop", "lab"}
    own = [
        d for d in found if d["kind"] == "Role" and d["metadata"]["namespace"] == "magnetar-system"
    ]
    verbs = {
        verb
        for d in own
        for rule in d["rules"]
        if {"pods", "secrets"} & set(rule["resources"])
        for verb in rule["verbs"]
    }
    assert verbs == {"list", "watch"}


def test_by_default_an_operator_has_rights_where_it_lives_only(helm: str) -> None:
    """Of secrets and pods of other namespaces it learns nothing; {*} is asked for by name."""
    found = documents(helm, *IMAGE)
    roles = {d["metadata"]["namespace"] for d in found if d["kind"] == "Role"}
    assert roles == {"magnetar-system"}
    bound = {d["roleRef"]["name"] for d in found if d["kind"] == "ClusterRoleBinding"}
    rules = [
        rule
        for d in found
        if d["kind"] == "ClusterRole" and d["metadata"]["name"] in bound
        for rule in d["rules"]
    ]
    assert {(*rule["resources"], *rule["verbs"]) for rule in rules} == {
        ("nodes", "get"),
        ("storageclasses", "get"),
    }
    everywhere = documents(helm, *IMAGE, "--set", "watchNamespaces={*}")
    bound = {d["roleRef"]["name"] for d in everywhere if d["kind"] == "ClusterRoleBinding"}
    rules = [
        rule
        for d in everywhere
        if d["kind"] == "ClusterRole" and d["metadata"]["name"] in bound
        for rule in d["rules"]
    ]
    assert [rule for rule in rules if "secrets" in rule["resources"]]


def test_no_wildcard_and_no_deletion_of_volumes(helm: str) -> None:
    people = ("-viewer", "-editor")
    for document in documents(helm, *IMAGE):
        if document["metadata"]["name"].endswith(people):
            continue
        for rule in (
            document.get("rules", []) if document["kind"] in ("Role", "ClusterRole") else []
        ):
            assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
            if "persistentvolumeclaims" in rule["resources"]:
                assert "delete" not in rule["verbs"]


def test_people_get_roles_for_all_of_our_kinds(helm: str) -> None:
    """People who may view, edit or administer a namespace may do so with every kind; nobody but the
    operator writes a status."""
    roles = {
        d["metadata"]["name"]: d for d in documents(helm, *IMAGE) if d["kind"] == "ClusterRole"
    }
    viewer, editor = (
        roles["magnetar-magnetar-system-viewer"],
        roles["magnetar-magnetar-system-editor"],
    )
    plurals = {naming.plural for naming in NAMINGS.values()}
    assert plurals < set(viewer["rules"][0]["resources"])
    assert set(editor["rules"][0]["resources"]) == plurals
    assert set(editor["rules"][2]["resources"]) == {
        f"{naming.plural}/scale" for naming in NAMINGS.values() if naming.scalable
    }
    writing = {"create", "update", "patch", "delete", "deletecollection"}
    for rule in (*viewer["rules"], *editor["rules"]):
        assert not (
            writing & set(rule["verbs"])
            and [name for name in rule["resources"] if name.endswith("/status")]
        )
    assert not writing & {verb for rule in viewer["rules"] for verb in rule["verbs"]}


def test_two_operators_survive_node_drains_apart(helm: str) -> None:
    """Replicas 2: a disruption budget of one, and other nodes preferred; a single operator has
    no budget, which would block every drain."""
    two, one = documents(helm, *IMAGE, "--set", "replicas=2"), documents(helm, *IMAGE)
    (budget,) = (d for d in two if d["kind"] == "PodDisruptionBudget")
    (deployment,) = (d for d in two if d["kind"] == "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    rules = deployment["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert rules[0]["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= labels.items()
    assert not [d for d in one if d["kind"] == "PodDisruptionBudget"]


@pytest.mark.parametrize("name", list(VALUES))
def test_every_pod_passes_the_restricted_standard(helm: str, name: str) -> None:
    pods = [
        d["spec"].get("template", d)["spec"]
        for d in documents(helm, *VALUES[name])
        if d["kind"] in ("Deployment", "Job", "Pod")
    ]
    assert pods
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["resources"]["limits"]["memory"]
        assert (
            not [volume for volume in pod["volumes"] if "hostPath" in volume]
            if "volumes" in pod
            else True
        )


def test_monitors_and_alerts_come_with_the_kind(helm: str) -> None:
    """auto = if the cluster knows monitoring.coreos.com; true and false say so themselves."""

    def monitored(*arguments: str) -> set[str]:
        found = documents(helm, *IMAGE, *arguments)
        return {d["kind"] for d in found if d["apiVersion"] == "monitoring.coreos.com/v1"}

    known = ("--api-versions", "monitoring.coreos.com/v1")
    both = {"PodMonitor", "PrometheusRule"}
    assert monitored() == set()
    assert monitored(*known) == both
    assert monitored(*known, "--set", "metrics.alerts.enabled=false") == {"PodMonitor"}
    assert monitored("--set", "metrics.alerts.enabled=true,metrics.podMonitor.enabled=true") == both


def test_the_uninstall_check_may_list_and_write_an_event(helm: str) -> None:
    """What it prints is shown when it refuses, and its Job goes then as well. Its rights exist
    only while it runs, in the watched namespaces only."""
    for arguments, kind in (
        (("--set", "watchNamespaces={*}"), "ClusterRole"),
        (("--set", "watchNamespaces={shop}"), "Role"),
        ((), "Role"),
    ):
        found = documents(helm, *IMAGE, *arguments)
        hooks = [
            d
            for d in found
            if d["metadata"].get("annotations", {}).get("helm.sh/hook") == "pre-delete"
        ]
        (role, events) = (d for d in hooks if "rules" in d)
        assert role["kind"] == kind
        assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"list"}
        assert (events["kind"], events["metadata"]["namespace"]) == ("Role", "magnetar-system")
        assert events["rules"] == [
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}
        ]
        (job,) = (d for d in hooks if d["kind"] == "Job")
        assert "hook-failed" in job["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
        assert job["metadata"]["annotations"]["helm.sh/hook-output-log-policy"] == "hook-failed"
    assert not [
        d
        for d in documents(helm, *IMAGE, "--set", "uninstallCheck.enabled=false")
        if "pre-delete" in str(d["metadata"])
    ]


def test_admission_policies_come_with_a_kubernetes_that_has_them(helm: str) -> None:
    """One binding each, in the watched namespaces only; a policy that cannot be evaluated stops
    nobody."""

    def policies(*arguments: str) -> list[dict[str, Any]]:
        return [
            d
            for d in documents(helm, *IMAGE, *arguments)
            if d["apiVersion"] == "admissionregistration.k8s.io/v1"
        ]

    assert (
        policies("--set", "admissionPolicies.enabled=false")
        == policies("--kube-version", "1.29.0")
        == []
    )
    found = policies("--set", "watchNamespaces={shop,lab}")
    rules = {
        d["metadata"]["name"]: d["spec"] for d in found if d["kind"] == "ValidatingAdmissionPolicy"
    }
    assert {spec["failurePolicy"] for spec in rules.values()} == {"Ignore"}
    declared = [
        policy["name"]
        for policy in yaml.safe_load((CHART / "files/admission.yaml").read_text())["policies"]
    ]
    assert sorted(rules) == sorted(f"magnetar-{name}-magnetar-system" for name in declared)
    for name in declared:
        assert len(policies("--set", f"admissionPolicies.disabled={{{name}}}")) == 2 * (
            len(declared) - 1
        )
    bindings = [d["spec"] for d in found if d["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert sorted(spec["policyName"] for spec in bindings) == sorted(rules)
    for spec in bindings:
        assert spec["matchResources"]["namespaceSelector"]["matchExpressions"][0]["values"] == [
            "shop",
            "lab",
        ]
        assert ("paramRef" in spec) == ("paramKind" in rules[spec["policyName"]])


def test_templates_stay_readable() -> None:
    for path in (CHART / "templates").iterdir():
        assert len(path.read_text().splitlines()) <= TEMPLATE_LINES_MAX, path.name
