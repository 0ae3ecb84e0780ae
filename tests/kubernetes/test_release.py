"""What a release offers beside the operator: `helm test`; and what the local node does as a real
one's storage class would."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dev import cluster
from tests.kubernetes.conftest import Node

pytestmark = pytest.mark.kubernetes


def test_helm_test_publishes_and_reads_a_message(node: Node) -> None:
    image, etcd_image = node.installed_images()
    cluster.install(
        node.tools,
        image,
        etcd_image,
        cluster.CHART,
        "--set",
        "test.serviceUrl=pulsar://main.default:6650",
    )
    command = [
        *node.tools.helm,
        "test",
        cluster.RELEASE,
        "-n",
        cluster.SYSTEM_NAMESPACE,
        "--logs",
        "--timeout",
        "10m",
    ]
    tested = subprocess.run(command, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "the operator is ready" in tested.stdout
    assert "helm test" in tested.stdout
    cluster.install(node.tools, image, etcd_image)


@pytest.mark.skipif(bool(os.environ.get("CONTEXT")), reason="another cluster's volumes are its own")
def test_a_volume_is_emptied_when_its_claim_is_deleted(node: Node) -> None:
    """By the node itself, so that the next claim finds it as a provisioned one."""
    volume = _available_volume(node)
    name = volume["metadata"]["name"]
    node.run("apply", "-f", "-", given=json.dumps(_claim_of(volume)))
    node.run(
        "wait",
        "--for=jsonpath={.status.phase}=Bound",
        "persistentvolumeclaim/reclaimed",
        "--timeout=300s",
    )
    left = Path(volume["spec"]["local"]["path"]) / "left"
    left.write_text("by the one before")
    node.run("delete", "persistentvolumeclaim", "reclaimed", "--timeout=300s")
    # What takes its place has the same name, and is none that was there before.
    node.wait(
        "the volume is available again",
        lambda: any(
            found["metadata"]["name"] == name
            and found["metadata"]["uid"] != volume["metadata"]["uid"]
            for found in _available_volumes(node)
        ),
    )
    assert not left.exists()


def _available_volume(node: Node) -> dict[str, Any]:
    """A volume that no claim holds: which ones the claims of etcd took is the scheduler's
    choice, and those of earlier tests come back one by one."""
    available: list[dict[str, Any]] = []

    def is_there() -> bool:
        available[:] = _available_volumes(node)
        return bool(available)

    node.wait("a volume is available", is_there)
    return available[0]


def _available_volumes(node: Node) -> list[dict[str, Any]]:
    listed = node.get("persistentvolume")["items"]
    return [volume for volume in listed if volume["status"].get("phase") == "Available"]


def _claim_of(volume: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "reclaimed"},
        "spec": {
            "accessModes": volume["spec"]["accessModes"],
            "storageClassName": volume["spec"]["storageClassName"],
            "volumeName": volume["metadata"]["name"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
