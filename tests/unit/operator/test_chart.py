"""The chart: lint, golden renders, refusals, agreement with the operator's code.

After an intended change: UPDATE_GOLDEN=1 python -m pytest tests/unit/operator/test_chart.py, and read the diff.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from magnetar_operator import names
from magnetar_operator.builders.network_policy import OPERATOR_LABELS
from magnetar_operator.settings import OperatorSettings

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "magnetar"
GOLDEN = Path(__file__).parent / "golden"
TEMPLATE_LINES_MAX = 180
IMAGE = ("--set", "image.repository=registry.example/magnetar")
VALUES = {
    "default": IMAGE,
    "minimal": (*IMAGE, "--set", "crds.install=false,metrics.service=false,rbac.create=false"),
    "full": ("--values", str(GOLDEN / "full.values.yaml")),
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def helm() -> str:
    built = subprocess.run(
        [sys.executable, "-m", "dev.kube", "binary", "helm"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if built.returncode != 0:
        if os.environ.get("CI"):
            raise RuntimeError(built.stderr)
        pytest.skip(f"no helm, so THE CHART WAS NOT TESTED: {built.stderr.strip()[-200:]}")
    return built.stdout.split()[-1]


def render(helm: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [helm, "template", "magnetar", str(CHART), "--namespace", "magnetar-system", "--kube-version", "1.34.4", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def documents(helm: str, *arguments: str) -> list[dict[str, Any]]:
    rendered = render(helm, *arguments)
    assert rendered.returncode == 0, rendered.stderr
    return [document for document in yaml.safe_load_all(rendered.stdout) if document]


def test_the_chart_lints(helm: str) -> None:
    linted = subprocess.run([helm, "lint", "--strict", str(CHART), *IMAGE], capture_output=True, text=True, check=False)
    assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.parametrize("name", list(VALUES))
def test_renders_are_the_reviewed_ones(helm: str, name: str) -> None:
    """Definitions are left out: a test of their own compares them with the models."""
    kept = [document for document in documents(helm, *VALUES[name]) if document["kind"] != "CustomResourceDefinition"]
    text = yaml.safe_dump_all(kept, sort_keys=True, width=120)
    golden = GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_an_empty_repository_fails_with_the_commands_to_run(helm: str) -> None:
    refused = render(helm)
    assert refused.returncode != 0
    for words in ("image.repository is empty", "make image REPO=", "kind load docker-image", "make cluster"):
        assert words in refused.stderr


@pytest.mark.parametrize("wrong", ["image.tag=latest", "replicas=0", "watchNamespaces=shop", "operator.logLevel=loud", "unknown=1"])
def test_the_schema_refuses_wrong_values(helm: str, wrong: str) -> None:
    refused = render(helm, *IMAGE, "--set", wrong)
    assert refused.returncode != 0
    assert wrong.partition("=")[0].rpartition(".")[2] in refused.stderr


def test_definitions_are_upgraded_and_kept(helm: str) -> None:
    found = [document for document in documents(helm, *IMAGE) if document["kind"] == "CustomResourceDefinition"]
    assert {document["spec"]["names"]["kind"] for document in found} == {"BrokerCluster", "TopicNamespace", "DataJob"}
    assert all(document["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for document in found)


def test_chart_and_operator_agree(helm: str) -> None:
    """Variables, labels, the role's name: spelled in two places, compared here."""
    found = documents(helm, *IMAGE)
    (deployment,) = (document for document in found if document["kind"] == "Deployment")
    template = deployment["spec"]["template"]
    assert OPERATOR_LABELS.items() <= template["metadata"]["labels"].items()
    container = template["spec"]["containers"][0]
    environment = {item["name"]: item.get("value", "x") for item in container["env"]}
    settings = OperatorSettings.from_environment(environment)
    assert settings.image == "registry.example/magnetar:0.1.0"
    assert settings.http_port == container["ports"][0]["containerPort"]
    roles = {document["metadata"]["name"]: document for document in found if document["kind"] == "ClusterRole"}
    assert names.SPARK_ACCOUNT in roles
    leases = next(document for document in found if document["kind"] == "Role")
    assert settings.lease_name in str(leases["rules"])


def test_a_namespaced_operator_gets_no_cluster_wide_rights_but_nodes(helm: str) -> None:
    found = documents(helm, *IMAGE, "--set", "watchNamespaces={shop,lab}")
    (cluster_role,) = (d for d in found if d["kind"] == "ClusterRole" and d["metadata"]["name"] != names.SPARK_ACCOUNT)
    assert cluster_role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]
    roles = {d["metadata"]["namespace"] for d in found if d["kind"] == "Role" and d["metadata"]["name"] == "magnetar-operator"}
    assert roles == {"shop", "lab", "magnetar-system"}


def test_no_wildcard_and_no_deletion_of_volumes(helm: str) -> None:
    for document in documents(helm, *IMAGE):
        for rule in document.get("rules", []) if document["kind"] in ("Role", "ClusterRole") else []:
            assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
            if "persistentvolumeclaims" in rule["resources"] and document["metadata"]["name"] != names.SPARK_ACCOUNT:
                assert "delete" not in rule["verbs"]


def test_templates_stay_readable() -> None:
    for path in (CHART / "templates").iterdir():
        assert len(path.read_text().splitlines()) <= TEMPLATE_LINES_MAX, path.name
