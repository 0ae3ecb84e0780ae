"""The version before this one and back: chart, operator and brokers, while clients publish to a
cluster that the old version made.

Runs after the other tests of this folder: the old version has the whole Kubernetes cluster to
itself.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dev import cluster
from tests.kubernetes.conftest import Node, Traffic

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(1800)]

NAMESPACE = "upgrade"
ROOT = Path(__file__).resolve().parents[2]
MANIFEST = f"""\
apiVersion: magnetar.io/v1alpha1
kind: BrokerCluster
metadata: {{name: old, namespace: {NAMESPACE}}}
spec:
  replicas: 2
  storage: {{volumeClaim: {{accessModes: [ReadWriteMany], size: 10Gi}}}}
---
apiVersion: magnetar.io/v1alpha1
kind: TopicNamespace
metadata: {{name: orders, namespace: {NAMESPACE}}}
spec:
  clusterRef: {{name: old}}
  tenant: shop
  namespace: orders
  bundles: 4
  policies: {{message_ttl_in_seconds: 3600}}
  properties: {{team: blue}}
"""
POLICIES = "/admin/v2/namespaces/shop/orders"
STORY = ("DriftCorrected", "Recreated", "Conflict")
"""Events of a resource whose record two versions would fight about, or that one of them would
not recognise."""


@dataclass(frozen=True)
class Version:
    """What `helm upgrade` installs."""

    name: str
    chart: str
    image: str
    etcd_image: str


def _image(source: Path) -> str:
    command = [sys.executable, "-m", "dev.image", "build", "--load", "--source", str(source)]
    return subprocess.run(
        command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.split()[-1]


@pytest.fixture(scope="module")
def versions(node: Node, tmp_path_factory: pytest.TempPathFactory) -> tuple[Version, Version]:
    """The commit before this one, and this checkout. Without history, this checkout under
    another image name stands for the old one."""
    if not node.tools.local:
        pytest.skip("images of two versions are built and loaded on the local node only")
    _, etcd_image = node.installed_images()
    source = tmp_path_factory.mktemp("previous")
    archive = source.with_suffix(".tar")
    found = subprocess.run(
        ["git", "archive", "--output", str(archive), "HEAD~1"],
        cwd=ROOT,
        check=False,
        capture_output=True,
    )
    if found.returncode != 0:
        print("\nno commit before this one: the same content under another name is the old version")
        subprocess.run(["git", "archive", "--output", str(archive), "HEAD"], cwd=ROOT, check=True)
    with tarfile.open(archive) as packed:
        packed.extractall(source, filter="data")
    readme = source / "README.md"
    # two commits may differ in nothing that reaches the image
    readme.write_text(readme.read_text() + "\nThe version before.\n")
    old = Version("the version before", str(source / cluster.CHART), _image(source), etcd_image)
    return old, Version("this version", str(ROOT / cluster.CHART), _image(ROOT), etcd_image)


def _install(node: Node, version: Version, *options: str) -> None:
    cluster.install(node.tools, version.image, version.etcd_image, version.chart, *options)


def _brokers(node: Node) -> dict[str, dict[str, Any]]:
    selector = "magnetar.io/cluster=old,app.kubernetes.io/component=broker"
    return {
        pod["metadata"]["name"]: pod
        for pod in node.get("pods", "", "-n", NAMESPACE, "-l", selector)["items"]
    }


def _images(node: Node) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in _brokers(node).values()}


def _is_ready(node: Node) -> bool:
    found = node.get("brokercluster", "old", "-n", NAMESPACE)
    status = found.get("status", {})
    ready = next(
        (entry["status"] for entry in status.get("conditions", []) if entry["type"] == "Ready"), ""
    )
    return (
        ready == "True" and status.get("readyReplicas") == 2 and not status.get("pendingRestarts")
    )


def _rest(node: Node, path: str) -> Any:
    """What the cluster's brokers answer."""
    address = node.get("service", "old", "-n", NAMESPACE)["spec"]["clusterIP"]
    with urllib.request.urlopen(f"http://{address}:8080{path}", timeout=60) as answer:
        return json.loads(answer.read())


def _serves_namespace(node: Node, generation: int, ttl_s: int) -> bool:
    """Whether the TopicNamespace is Ready for that generation, and the brokers have what it says
    beside what REST set."""
    status = node.get("topicnamespace", "orders", "-n", NAMESPACE).get("status", {})
    ready = {
        entry["type"]: (entry["status"], entry["observedGeneration"])
        for entry in status.get("conditions", [])
    }.get("Ready")
    if ready != ("True", generation) or status.get("appliedGeneration") != generation:
        return False
    try:
        ttl, properties = (
            _rest(node, f"{POLICIES}/messageTTL"),
            _rest(node, f"{POLICIES}/properties"),
        )
    except (OSError, http.client.HTTPException):
        return False  # the broker behind the service is just being replaced
    return bool(ttl == ttl_s and properties == {"team": "blue", "cost": "low"})


def _change_namespace(node: Node, generation: int, ttl_s: int, by: Version) -> None:
    """The operator of this version takes an edit over, and nothing that REST set is lost by it."""
    patch = json.dumps({"spec": {"policies": {"message_ttl_in_seconds": ttl_s}}})
    node.run("patch", "topicnamespace", "orders", "-n", NAMESPACE, "--type", "merge", "-p", patch)
    node.wait(
        f"{by.name} serves generation {generation} of the namespace",
        lambda: _serves_namespace(node, generation, ttl_s),
    )


def _events_of_namespace(node: Node) -> list[str]:
    """Events about the TopicNamespace that an upgrade must not cause."""
    events = node.get(
        "events", "", "-n", NAMESPACE, "--field-selector", "involvedObject.kind=TopicNamespace"
    )["items"]
    return [
        f"{event['reason']}: {event['message']}" for event in events if event["reason"] in STORY
    ]


def _roll_to(node: Node, version: Version, traffic: Traffic) -> None:
    """Install a version and wait until every broker runs it; for a while old and new ones serve
    the same clients."""
    before = traffic.total()
    traffic.reset_measurements()
    started = time.monotonic()
    _install(node, version)
    mixed = False

    def rolled() -> bool:
        nonlocal mixed
        images = _images(node)
        mixed |= len(images) == 2
        return images == {version.image} and _is_ready(node)

    node.wait(f"every broker runs {version.name}", rolled)
    assert mixed, "one pod after the other"
    node.wait("traffic goes on", lambda: traffic.total() > before + 500)
    assert traffic.failed == []
    print(
        f"\n{version.name} after {time.monotonic() - started:.0f} s, longest pause of one topic "
        f"{traffic.longest_gap_s * 1000:.0f} ms"
    )


@pytest.fixture(scope="module")
def old_cluster(node: Node, versions: tuple[Version, Version]) -> Iterator[None]:
    """A cluster that the version before made; every other one is gone."""
    old, new = versions
    node.run("delete", "magnetar", "--all", "-A", "--wait=true")
    node.wait(
        "pods gone", lambda: not node.get("pods", "", "-l", "magnetar.io/cluster=main")["items"]
    )
    _install(node, old)
    node.restrict(NAMESPACE)
    node.run("apply", "-f", "-", given=MANIFEST)
    node.wait("the old version's cluster is Ready", lambda: _is_ready(node))
    address = node.get("service", "old", "-n", NAMESPACE)["spec"]["clusterIP"]

    def set_by_rest() -> bool:
        """A property of the namespace that no resource speaks of: it is there once the resource
        has made the namespace."""
        request = urllib.request.Request(
            f"http://{address}:8080{POLICIES}/property/cost/low", method="PUT"
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return bool(answer.status < 300)
        except urllib.error.HTTPError as error:
            with error:
                return False  # 404 until the operator has made the namespace
        except (OSError, http.client.HTTPException):
            return False  # the service does not lead to a broker yet

    node.wait("the namespace is there", set_by_rest)
    node.wait("the old version serves the namespace", lambda: _serves_namespace(node, 1, 3600))
    yield
    _install(node, new)
    node.run("delete", "namespace", NAMESPACE, "--wait=true")


@pytest.mark.usefixtures("old_cluster")
def test_upgrade_rollback_and_upgrade_fail_no_send(
    node: Node, versions: tuple[Version, Version]
) -> None:
    """Brokers of both versions serve side by side; nothing acknowledged is lost; the way back works
    as well.

    A TopicNamespace goes along: each version recognises the record as its own, takes an edit over,
    and leaves alone what REST set.
    """
    old, new = versions
    topics = [
        f"persistent://{place}/upgrade-{number}"
        for place in ("public/default", "shop/orders")
        for number in range(3)
    ]
    bundles = _rest(node, f"{POLICIES}/bundles")["boundaries"]
    with Traffic(node.service_url("old", NAMESPACE), topics) as traffic:
        node.wait("traffic flows", lambda: traffic.total() > 100)
        ttl_s = 3600
        for generation, version in enumerate((new, old, new), start=2):
            _roll_to(node, version, traffic)
            node.wait(
                "the namespace is as before",
                partial(_serves_namespace, node, generation - 1, ttl_s),
            )
            ttl_s += 60
            _change_namespace(node, generation, ttl_s, version)
        traffic.verify()
    assert _rest(node, f"{POLICIES}/bundles")["boundaries"] == bundles
    assert _events_of_namespace(node) == []


def _reconciled(pod: dict[str, Any]) -> bool:
    """Whether this operator leads and has looked at the cluster."""
    url = f"http://{pod['status']['podIP']}:8080/metrics"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            lines = answer.read().decode().splitlines()
    except (OSError, http.client.HTTPException):
        return False  # it does not listen yet
    counted = [
        line
        for line in lines
        if line.startswith("controller_runtime_reconcile_total{") and "BrokerCluster" in line
    ]
    return sum(float(line.rpartition(" ")[2]) for line in counted) >= 1


@pytest.mark.usefixtures("old_cluster")
def test_an_upgrade_of_the_operator_alone_restarts_no_broker(
    node: Node, versions: tuple[Version, Version]
) -> None:
    """Another operator, the same brokers' template: a new operator pod leads and has reconciled,
    and every broker is the one that it was."""
    before = {name: pod["metadata"]["uid"] for name, pod in _brokers(node).items()}
    selector = "app.kubernetes.io/name=magnetar"
    known = {
        pod["metadata"]["uid"]
        for pod in node.get("pods", "", "-n", cluster.SYSTEM_NAMESPACE, "-l", selector)["items"]
    }
    _install(node, versions[1], "--set", "operator.logLevel=debug")

    def new_operator_works() -> bool:
        pods = node.get("pods", "", "-n", cluster.SYSTEM_NAMESPACE, "-l", selector)["items"]
        fresh = [
            pod
            for pod in pods
            if pod["metadata"]["uid"] not in known and pod["status"].get("podIP")
        ]
        return any(_reconciled(pod) for pod in fresh)

    node.wait("the new operator has reconciled", new_operator_works)
    node.wait("the cluster is Ready", lambda: _is_ready(node))
    assert {name: pod["metadata"]["uid"] for name, pod in _brokers(node).items()} == before
