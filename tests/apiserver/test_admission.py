"""The chart's admission policies on a real API server: mistakes that take two objects are
reported to the person who makes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dev.testbed.control_plane import rendered
from tests.apiserver.stage import Scene, until

pytestmark = pytest.mark.slow

ORDERS = {"clusterRef": {"name": "main"}, "tenant": "acme", "namespace": "orders"}
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"


@asynccontextmanager
async def policies_in(scene: Scene) -> AsyncIterator[None]:
    """Those of a release that watches this namespace, once the API server goes by them."""
    text = rendered(
        "of",
        "releases",
        "--show-only",
        "templates/admission.yaml",
        "--set",
        f"watchNamespaces={{{scene.namespace}}}",
    )
    applied = scene.plane.kubectl("apply", "--validate=strict", "-f", "-", text_input=text)
    assert applied.returncode == 0, applied.stderr
    try:
        scene.create("TopicNamespace", "first", ORDERS)
        await until(
            "the policies are followed", lambda: attempt(scene, "TopicNamespace", ORDERS)[0] == 422
        )
        yield
    finally:
        scene.plane.kubectl("delete", "-f", "-", text_input=text)


def attempt(scene: Scene, kind: str, spec: dict[str, Any]) -> tuple[int, str]:
    """Try to make an object called second; status and message."""
    manifest = {
        "apiVersion": "magnetar.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": "second"},
        "spec": spec,
    }
    status, answer = scene.plane.request(
        "POST", f"{scene.path(f'{kind.lower()}s')}?dryRun=All", manifest
    )
    return status, answer.get("message", "")


async def test_what_two_objects_contradict_each_other_in_is_refused(scene: Scene) -> None:
    """A second owner of a Pulsar namespace, however it refers to the cluster, and a second set
    of coordinators; not what only looks alike."""

    async with policies_in(scene):
        for reference in ({"name": "main"}, {"name": "main", "namespace": scene.namespace}):
            status, said = attempt(scene, "TopicNamespace", {**ORDERS, "clusterRef": reference})
            assert status == 422
            assert (
                "TopicNamespace first owns acme/orders of this cluster already; change that one"
                in said
            )
        for other in (
            {"tenant": "other"},
            {"namespace": "invoices"},
            {"clusterRef": {"name": "other"}},
            {"clusterRef": {"name": "main", "namespace": "elsewhere"}},
        ):
            assert attempt(scene, "TopicNamespace", {**ORDERS, **other}) == (201, "")
        first = scene.path("topicnamespaces", "first")
        scene.merge(first, {"spec": {"policies": {"message_ttl_in_seconds": 60}}})

        scene.create("TransactionCoordinator", "tx", {"clusterRef": {"name": "main"}})
        status, said = await until_seen(
            scene, "TransactionCoordinator", {"clusterRef": {"name": "main"}}
        )
        assert (
            "TransactionCoordinator tx serves BrokerCluster main already; change its replicas"
            in said
        )
        assert attempt(scene, "TransactionCoordinator", {"clusterRef": {"name": "other"}})[0] == 201


async def until_seen(scene: Scene, kind: str, spec: dict[str, Any]) -> tuple[int, str]:
    """The refusal, once the API server's own copy has what was just made."""
    await until("it is refused", lambda: attempt(scene, kind, spec)[0] == 422)
    return attempt(scene, kind, spec)


async def test_a_size_that_the_class_cannot_give_is_refused(scene: Scene) -> None:
    """By the class that the claim has, as the operator's status says; back to what the claim has
    is always allowed."""
    fixed = f"unexpandable-{scene.namespace}"
    kind = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass"}
    path = scene.path("brokerclusters", "main")

    def resize(size: str) -> tuple[int, str]:
        body = {"spec": {"storage": {"volumeClaim": {"size": size}}}}
        status, answer = scene.plane.request(
            "PATCH", f"{path}?dryRun=All", body, "application/merge-patch+json"
        )
        return status, answer.get("message", "")

    async with policies_in(scene):
        scene.plane.must(
            "POST",
            CLASSES,
            {**kind, "metadata": {"name": fixed}, "provisioner": "example.com/disks"},
        )
        scene.create("BrokerCluster", "main", {})
        assert resize("20Gi")[0] == 200, "no claim is known yet"
        scene.merge(path, {"spec": {"storage": {"volumeClaim": {"size": "15Gi"}}}})
        claim = {
            "claim": "main-storage",
            "storageClassName": fixed,
            "size": "10Gi",
            "capacity": "10Gi",
        }
        scene.merge(f"{path}/status", {"status": {"storage": claim}})
        await until("it is refused", lambda: resize("20Gi")[0] == 422)
        assert f"StorageClass {fixed} cannot expand volumes; keep 10Gi" in resize("20Gi")[1]
        assert resize("10Gi")[0] == 200
        scene.merge(path, {"spec": {"replicas": 2}})
        scene.merge(f"{CLASSES}/{fixed}", {"allowVolumeExpansion": True})
        await until("it is accepted", lambda: resize("20Gi")[0] == 200)


async def test_a_deletion_of_a_namespace_that_has_to_wait_warns(scene: Scene) -> None:
    """kubectl prints the warning before it waits; nothing is said where nothing is deleted."""

    def deleted(name: str) -> str:
        done = scene.plane.kubectl(
            "delete", "-n", scene.namespace, "topicnamespace", name, "--wait=false"
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    async def scenario() -> None:
        async with policies_in(scene):
            for name, more in (
                ("goes", {"deletionPolicy": "Delete"}),
                ("kept", {}),
                ("skips", {"deletionPolicy": "Delete"}),
            ):
                scene.create("TopicNamespace", name, {**ORDERS, "namespace": name, **more})
            skip = {"metadata": {"annotations": {"magnetar.io/skip-finalizer": "true"}}}
            scene.merge(scene.path("topicnamespaces", "skips"), skip)
            assert (
                "namespace acme/goes goes if it is empty. While it has topics, this waits, 120 s "
                "at most" in deleted("goes")
            )
            assert deleted("kept") == deleted("skips") == ""

    await scenario()
