"""What a release offers beside the operator: `helm test`; and what the local node does as a real one's storage class would."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from dev import cluster
from dev.kube.paths import Paths
from tests.kubernetes.conftest import Node

pytestmark = pytest.mark.kubernetes
VOLUME = "magnetar-local-etcd-3"
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "reclaimed"},
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "magnetar-local",
        "volumeName": VOLUME,
        "resources": {"requests": {"storage": "1Gi"}},
    },
}


def test_helm_test_publishes_and_reads_a_message(node: Node) -> None:
    image, etcd_image = node.installed_images()
    cluster.install(node.tools, image, etcd_image, cluster.CHART, "--set", "test.serviceUrl=pulsar://main.default:6650")
    command = [*node.tools.helm, "test", cluster.RELEASE, "-n", cluster.SYSTEM_NAMESPACE, "--logs", "--timeout", "2m"]
    tested = subprocess.run(command, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "the operator is ready" in tested.stdout
    assert "helm test" in tested.stdout
    cluster.install(node.tools, image, etcd_image)


@pytest.mark.skipif(bool(os.environ.get("CONTEXT")), reason="another cluster's volumes are its own")
def test_a_volume_is_emptied_when_its_claim_is_deleted(node: Node) -> None:
    """By the node itself, so that the next claim finds it as a provisioned one."""
    node.run("apply", "-f", "-", given=json.dumps(CLAIM))
    node.run("wait", "--for=jsonpath={.status.phase}=Bound", f"persistentvolume/{VOLUME}", "--timeout=60s")
    left = Paths.from_environment().volumes / "etcd-3" / "left"
    left.write_text("by the one before")
    before = node.get("persistentvolume", VOLUME)["metadata"]["uid"]
    node.run("delete", "persistentvolumeclaim", "reclaimed", "--timeout=60s")
    node.run("wait", "--for=delete", f"persistentvolume/{VOLUME}", "--timeout=5s", check=False)
    node.run("wait", "--for=create", f"persistentvolume/{VOLUME}", "--timeout=60s")
    node.run("wait", "--for=jsonpath={.status.phase}=Available", f"persistentvolume/{VOLUME}", "--timeout=60s")
    assert node.get("persistentvolume", VOLUME)["metadata"]["uid"] != before
    assert not left.exists()
