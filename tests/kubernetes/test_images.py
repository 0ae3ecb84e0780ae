"""The images as they were built for the local node: how large they are, and who runs which."""

from __future__ import annotations

import os

import pytest

from dev.image import archive, content
from dev.image.workshop import Workshop
from dev.kube.paths import Paths
from tests.kubernetes.conftest import Node

pytestmark = pytest.mark.kubernetes
MEGABYTES_MAX = {"broker": 250, "operator": 200}


@pytest.mark.skipif(
    bool(os.environ.get("CONTEXT")), reason="the images of another cluster were built elsewhere"
)
@pytest.mark.parametrize("target", list(MEGABYTES_MAX))
def test_images_stay_small(node: Node, target: str) -> None:
    """Unpacked, with all their layers: neither Java nor Spark nor a package that nobody imports."""
    name, _ = node.installed_images()
    size = archive.unpacked_bytes(
        Workshop.below(Paths.from_environment()).layout, content.image_of(name, target)
    )
    assert size / 10**6 <= MEGABYTES_MAX[target]


def test_each_pod_runs_the_image_of_its_kind(node: Node) -> None:
    name, _ = node.installed_images()
    broker = node.get("pod", "main-broker-0")["spec"]["containers"][0]["image"]
    operator = node.get("deployment", "magnetar-operator", "-n", "magnetar-system")["spec"][
        "template"
    ]["spec"]["containers"][0]["image"]
    assert (broker, operator) == (name, content.image_of(name, "operator"))
