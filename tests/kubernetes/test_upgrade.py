"""The version before this one and back: chart, operator and brokers, while clients publish to a cluster that the old version made.

Runs after the other tests of this folder: the old version has the whole Kubernetes cluster to itself.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dev import cluster
from tests.kubernetes.conftest import Node, Traffic

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(900)]

NAMESPACE = "upgrade"
ROOT = Path(__file__).resolve().parents[2]
MANIFEST = f"""\
apiVersion: magnetar.io/v1alpha1
kind: BrokerCluster
metadata: {{name: old, namespace: {NAMESPACE}}}
spec:
  replicas: 2
  storage: {{volumeClaim: {{accessModes: [ReadWriteMany], size: 10Gi}}}}
"""


@dataclass(frozen=True)
class Version:
    """What `helm upgrade` installs."""

    name: str
    chart: str
    image: str
    etcd_image: str


def _image(source: Path) -> str:
    command = [sys.executable, "-m", "dev.image", "build", "--load", "--source", str(source)]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]


@pytest.fixture(scope="module")
def versions(node: Node, tmp_path_factory: pytest.TempPathFactory) -> tuple[Version, Version]:
    """The commit before this one, and this checkout. Without history, this checkout under another image name stands for the old one."""
    if not node.tools.local:
        pytest.skip("images of two versions are built and loaded on the local node only")
    _, etcd_image = node.installed_images()
    source = tmp_path_factory.mktemp("previous")
    archive = source.with_suffix(".tar")
    found = subprocess.run(["git", "archive", "--output", str(archive), "HEAD~1"], cwd=ROOT, check=False, capture_output=True)
    if found.returncode != 0:
        print("\nno commit before this one: the same content under another name is the old version")
        subprocess.run(["git", "archive", "--output", str(archive), "HEAD"], cwd=ROOT, check=True)
    with tarfile.open(archive) as packed:
        packed.extractall(source, filter="data")
    readme = source / "README.md"
    readme.write_text(readme.read_text() + "\nThe version before.\n")  # two commits may differ in nothing that reaches the image
    old = Version("the version before", str(source / cluster.CHART), _image(source), etcd_image)
    return old, Version("this version", str(ROOT / cluster.CHART), _image(ROOT), etcd_image)


def _install(node: Node, version: Version, *options: str) -> None:
    cluster.install(node.tools, version.image, version.etcd_image, version.chart, *options)


def _brokers(node: Node) -> dict[str, dict[str, Any]]:
    selector = "magnetar.io/cluster=old,app.kubernetes.io/component=broker"
    return {pod["metadata"]["name"]: pod for pod in node.get("pods", "", "-n", NAMESPACE, "-l", selector)["items"]}


def _images(node: Node) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in _brokers(node).values()}


def _is_ready(node: Node) -> bool:
    found = node.get("brokercluster", "old", "-n", NAMESPACE)
    status = found.get("status", {})
    ready = next((entry["status"] for entry in status.get("conditions", []) if entry["type"] == "Ready"), "")
    return ready == "True" and status.get("readyReplicas") == 2 and not status.get("pendingRestarts")


def _roll_to(node: Node, version: Version, traffic: Traffic) -> None:
    """Install a version and wait until every broker runs it; for a while old and new ones serve the same clients."""
    before = traffic.total()
    traffic.measure_anew()
    started = time.monotonic()
    _install(node, version)
    mixed = False

    def rolled() -> bool:
        nonlocal mixed
        images = _images(node)
        mixed |= len(images) == 2
        return images == {version.image} and _is_ready(node)

    node.wait(f"every broker runs {version.name}", rolled, 240)
    assert mixed, "one pod after the other"
    node.wait("traffic goes on", lambda: traffic.total() > before + 500)
    assert traffic.failed == []
    print(
        f"\n{version.name} after {time.monotonic() - started:.0f} s, longest pause of one topic {traffic.longest_gap_s * 1000:.0f} ms"
    )


@pytest.fixture(scope="module")
def old_cluster(node: Node, versions: tuple[Version, Version]) -> Iterator[None]:
    """A cluster that the version before made; every other one is gone."""
    old, new = versions
    node.run("delete", "magnetar", "--all", "-A", "--wait=true")
    node.wait("pods gone", lambda: not node.get("pods", "", "-l", "magnetar.io/cluster=main")["items"], 180)
    _install(node, old)
    node.restrict(NAMESPACE)
    node.run("apply", "-f", "-", given=MANIFEST)
    node.wait("the old version's cluster is Ready", lambda: _is_ready(node), 180)
    yield
    _install(node, new)
    node.run("delete", "namespace", NAMESPACE, "--wait=true")


@pytest.mark.usefixtures("old_cluster")
def test_upgrade_rollback_and_upgrade_fail_no_send(node: Node, versions: tuple[Version, Version]) -> None:
    """Brokers of both versions serve side by side; nothing acknowledged is lost; the way back works as well."""
    old, new = versions
    with Traffic(
        node.service_url("old", NAMESPACE), [f"persistent://public/default/upgrade-{number}" for number in range(6)]
    ) as traffic:
        node.wait("traffic flows", lambda: traffic.total() > 100)
        _roll_to(node, new, traffic)
        _roll_to(node, old, traffic)
        _roll_to(node, new, traffic)
        traffic.verify()


def _reconciled(pod: dict[str, Any]) -> bool:
    """Whether this operator leads and has looked at the cluster."""
    url = f"http://{pod['status']['podIP']}:8080/metrics"
    with urllib.request.urlopen(url, timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    counted = [line for line in lines if line.startswith("controller_runtime_reconcile_total{") and "BrokerCluster" in line]
    return sum(float(line.rpartition(" ")[2]) for line in counted) >= 1


@pytest.mark.usefixtures("old_cluster")
def test_an_upgrade_of_the_operator_alone_restarts_no_broker(node: Node, versions: tuple[Version, Version]) -> None:
    """Another operator, the same brokers' template: a new operator pod leads and has reconciled, and every broker is the one that it was."""
    before = {name: pod["metadata"]["uid"] for name, pod in _brokers(node).items()}
    selector = "app.kubernetes.io/name=magnetar"
    known = {pod["metadata"]["uid"] for pod in node.get("pods", "", "-n", cluster.SYSTEM_NAMESPACE, "-l", selector)["items"]}
    _install(node, versions[1], "--set", "operator.logLevel=debug")

    def new_operator_works() -> bool:
        pods = node.get("pods", "", "-n", cluster.SYSTEM_NAMESPACE, "-l", selector)["items"]
        fresh = [pod for pod in pods if pod["metadata"]["uid"] not in known and pod["status"].get("podIP")]
        return any(_reconciled(pod) for pod in fresh)

    node.wait("the new operator has reconciled", new_operator_works, 120)
    assert {name: pod["metadata"]["uid"] for name, pod in _brokers(node).items()} == before
    assert _is_ready(node)
