"""The chart's life on a real API server of its own: install, upgrade, refused and granted
uninstall, reinstall."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.testbed.control_plane import OPERATOR_NAMESPACE, ROOT, UNINSTALL_USER, ControlPlane, binary
from tests.apiserver.rights import requests

pytestmark = pytest.mark.slow

CHART = ROOT / "charts" / "magnetar"
GOLDEN = ROOT / "tests" / "unit" / "chart" / "golden"
IMAGE = ("--set", "image.repository=registry.example/magnetar")
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/brokerclusters.magnetar.io"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{OPERATOR_NAMESPACE}/deployments/magnetar-operator"
JOB = f"/apis/batch/v1/namespaces/{OPERATOR_NAMESPACE}/jobs/magnetar-uninstall-check"
CLUSTERS = "/apis/magnetar.io/v1alpha1/namespaces/default/brokerclusters"
STARTED, ENDED = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"
JOB_TIMEOUT_S = 240.0


def helm(plane: ControlPlane, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "KUBECONFIG": str(plane.kubeconfig),
        "HELM_NAMESPACE": OPERATOR_NAMESPACE,
    }
    command = [binary("helm"), *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def install(plane: ControlPlane, chart: Path = CHART, *arguments: str) -> str:
    done = helm(
        plane,
        "upgrade",
        "--install",
        "magnetar",
        str(chart),
        "--create-namespace",
        *IMAGE,
        *arguments,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class UninstallCheck:
    """Plays the Job controller for the pre-delete hook: runs the real program with the hook's
    own account, and reports how it ended."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self.said = ""
        self._thread = threading.Thread(target=self._play)

    def __enter__(self) -> UninstallCheck:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _play(self) -> None:
        deadline = time.monotonic() + JOB_TIMEOUT_S
        while (found := self._plane.request("GET", JOB))[0] != 200 or found[1].get(
            "status", {}
        ).get("startTime"):
            if time.monotonic() > deadline:
                return
            time.sleep(0.05)
        container = found[1]["spec"]["template"]["spec"]["containers"][0]
        environment = {
            **os.environ,
            **{item["name"]: item.get("value", "") for item in container["env"]},
            "KUBECONFIG": str(self._plane.uninstall_kubeconfig),
            "PYTHONPATH": ":".join(
                str(ROOT / part) for part in ("broker_image", "operator", "spark_jobs")
            ),
        }
        program = [sys.executable, *container["args"][1:]]
        ended = subprocess.run(
            program, env=environment, capture_output=True, text=True, check=False, timeout=240
        )
        self.said = ended.stderr
        kinds = (
            ("SuccessCriteriaMet", "Complete")
            if ended.returncode == 0
            else ("FailureTarget", "Failed")
        )
        conditions = [
            {"type": kind, "status": "True", "lastTransitionTime": ENDED} for kind in kinds
        ]
        status: dict[str, Any] = {"startTime": STARTED, "conditions": conditions}
        if ended.returncode == 0:
            status |= {"completionTime": ENDED, "succeeded": 1}
        self._plane.must(
            "PATCH", f"{JOB}/status", {"status": status}, "application/merge-patch+json"
        )


def test_installing_shows_what_to_do_next(chart_plane: ControlPlane) -> None:
    """The notes name the namespaces and objects of this release."""
    notes = install(chart_plane).partition("NOTES:")[2]
    assert f"watching {OPERATOR_NAMESPACE}." in notes
    assert "Resources in other namespaces are not seen" in notes
    assert "A BrokerCluster without spec.auth is open" in notes
    assert f"kubectl -n {OPERATOR_NAMESPACE} rollout status deployment/magnetar-operator" in notes
    assert "helm uninstall is refused while BrokerClusters exist" in notes
    assert chart_plane.must("GET", DEPLOYMENT)["spec"]["replicas"] == 1
    scoped = install(
        chart_plane,
        CHART,
        "--set",
        "watchNamespaces={default,kube-public},replicas=2,uninstallCheck.enabled=false",
    )
    assert "2 operators (one works, the others stand by)" in scoped
    assert "watching default, kube-public" in scoped
    assert "kubectl apply -n default" in scoped
    assert "helm uninstall stops the operator only" in scoped
    assert "watching all namespaces" in install(chart_plane, CHART, "--set", "watchNamespaces={*}")
    install(chart_plane, CHART, "--reset-values")


@pytest.mark.parametrize("name", ["default", "minimal", "full"])
def test_reviewed_renders_are_accepted_by_the_api_server(
    chart_plane: ControlPlane, name: str
) -> None:
    """Every object of the golden renders, with strict validation; kinds of prometheus-operator
    are not defined here."""
    documents = [d for d in yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text()) if d]
    known = [d for d in documents if d["apiVersion"] != "monitoring.coreos.com/v1"]
    for namespace in {d["metadata"].get("namespace") for d in known} - {None, OPERATOR_NAMESPACE}:
        chart_plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    chart_plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": OPERATOR_NAMESPACE}})
    text = yaml.safe_dump_all(known)
    applied = chart_plane.kubectl(
        "apply",
        "--server-side",
        "--force-conflicts",
        "--dry-run=server",
        "--validate=strict",
        "-f",
        "-",
        text_input=text,
    )
    assert applied.returncode == 0, applied.stderr
    assert len(applied.stdout.splitlines()) == len(known)


def test_an_upgrade_brings_new_fields_of_the_definitions(
    chart_plane: ControlPlane, tmp_path: Path
) -> None:
    """helm itself never upgrades what is in crds/; the chart's definitions are templates, so
    that a new field arrives."""
    install(chart_plane)
    chart = tmp_path / "magnetar"
    shutil.copytree(CHART, chart)
    file = chart / "files" / "crds" / "brokerclusters.magnetar.io.yaml"
    definition = yaml.safe_load(file.read_text())
    properties = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][
        "spec"
    ]["properties"]
    properties["colour"] = {"type": "string", "description": "Of a later version."}
    file.write_text(yaml.safe_dump(definition))
    uid = chart_plane.must("GET", DEFINITION)["metadata"]["uid"]
    install(chart_plane, chart)
    found = chart_plane.must("GET", DEFINITION)
    stored = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"][
        "properties"
    ]
    assert stored["colour"]["description"] == "Of a later version."
    assert found["metadata"]["uid"] == uid, "replaced, which would have deleted every resource"
    install(chart_plane)
    found = chart_plane.must("GET", DEFINITION)
    assert "colour" not in json.dumps(found["spec"]["versions"][0]["schema"]), (
        "rolling back takes it away again"
    )


def test_uninstalling_is_refused_while_clusters_exist_and_loses_nothing(
    chart_plane: ControlPlane,
) -> None:
    """Refused with the reason in the Job's log and in an Event, and without the Job afterwards;
    passed with --no-hooks.

    A new release of the same name takes everything up again.
    """
    watching = ("--set", "watchNamespaces={default}")
    install(chart_plane, CHART, *watching)
    waited = chart_plane.kubectl(
        "wait", "--for=condition=Established", "crd", "--all", "--timeout=120s"
    )
    assert waited.returncode == 0, waited.stderr
    manifest = {
        "apiVersion": "magnetar.io/v1alpha1",
        "kind": "BrokerCluster",
        "metadata": {"name": "main"},
        "spec": {},
    }
    uid = chart_plane.must("POST", CLUSTERS, manifest)["metadata"]["uid"]

    with UninstallCheck(chart_plane) as check:
        refused = helm(chart_plane, "uninstall", "magnetar", "--timeout", "240s")
    assert refused.returncode != 0
    assert "BrokerClusters exist (default/main)" in check.said
    assert "--no-hooks" in check.said
    assert chart_plane.request("GET", JOB)[0] == 404
    events = chart_plane.must("GET", f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/events")["items"]
    assert [found["message"] for found in events if found["reason"] == "UninstallRefused"] == [
        check.said.strip()
    ]
    assert chart_plane.request("GET", DEPLOYMENT)[0] == 200

    passed = helm(chart_plane, "uninstall", "magnetar", "--no-hooks")
    assert passed.returncode == 0, passed.stderr
    assert chart_plane.request("GET", DEPLOYMENT)[0] == 404
    assert chart_plane.must("GET", f"{CLUSTERS}/main")["metadata"]["uid"] == uid
    install(chart_plane, CHART, *watching)
    assert chart_plane.must("GET", f"{CLUSTERS}/main")["metadata"]["uid"] == uid

    chart_plane.must("DELETE", f"{CLUSTERS}/main")
    with UninstallCheck(chart_plane) as check:
        granted = helm(chart_plane, "uninstall", "magnetar", "--timeout", "240s")
    assert granted.returncode == 0, granted.stderr + check.said
    assert chart_plane.request("GET", DEPLOYMENT)[0] == 404
    assert chart_plane.request("GET", DEFINITION)[0] == 200, "definitions outlive the release"
    asked = requests(chart_plane.audit_log, UNINSTALL_USER)
    assert {(found.right.verb, found.status) for found in asked} == {("list", 200), ("create", 201)}
