"""The operator has the rights that it uses, and no others.

Runs after all other tests of the tier (see `conftest.py`): the API server's audit log then holds
everything that operators asked for.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dev.testbed.control_plane import (
    EVERYWHERE,
    OPERATOR_NAMESPACE,
    OPERATOR_USER,
    SCOPED_NAMESPACE,
    SCOPED_TOKEN,
    SCOPED_USER,
    ControlPlane,
    EtcdProcess,
    rendered_rights,
)
from magnetar.metadata import keys
from magnetar.metadata.records import NamespaceRecord
from magnetar.names import NamespaceName, initial_boundaries
from magnetar.resources.base import GROUP
from magnetar.resources.definitions import NAMINGS
from tests.apiserver.namespace_stage import KEY, TTL, Stage
from tests.apiserver.rights import (
    WHOLE_TIER,
    Right,
    are_in_force,
    flattened,
    granted,
    requests,
    rules_of,
)
from tests.apiserver.stage import Brokers, Kubelet, Scene, brokers_of, running_operator, until

pytestmark = pytest.mark.slow

ACCOUNT = OPERATOR_USER.rpartition(":")[2]
SCOPED_ACCOUNT = SCOPED_USER.rpartition(":")[2]
ONLY_ROLES = "rbac.readNodes=false,rbac.readStorageClasses=false"
"""Values of an operator that has no right beyond the namespaces that it watches."""

_OF_ADMISSION = "asked by admission about owner references that block deletion, not by a request"
_OF_MISFITS = (
    "a stored object that does not fit the model (definitions of another version) is read again to "
    "write its condition"
)
OWNERS = ("brokerclusters", "transactioncoordinators", "datajobs")
"""Kinds with children."""
EXPLAINED = {
    **{Right(GROUP, f"{plural}/finalizers", "update"): _OF_ADMISSION for plural in OWNERS},
    **{Right(GROUP, naming.plural, "get"): _OF_MISFITS for naming in NAMINGS.values()},
}
"""Rights that the audit log need not show, and why they are there. Those of admission are proved
by other tests: they fail without them."""


def make_namespace(control_plane: ControlPlane, name: str) -> None:
    """Make a namespace, unless it exists."""
    assert control_plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})[0] in (
        201,
        409,
    )


def test_nothing_the_operator_asked_for_was_forbidden(control_plane: ControlPlane) -> None:
    """In the whole tier, whatever was tested. (A namespace that is being deleted refuses what
    rights allow: that is no lack of them.)"""
    mine = granted(rendered_rights("magnetar", OPERATOR_NAMESPACE, "--set", EVERYWHERE), ACCOUNT)
    asked = requests(control_plane.audit_log, OPERATOR_USER)
    missing = {
        f"{found.right} ({found.path})"
        for found in asked
        if found.status == 403 and found.right not in mine
    }
    assert sorted(missing) == []


def test_every_right_is_used(control_plane: ControlPlane, request: pytest.FixtureRequest) -> None:
    """Each granted verb on each kind was asked for by an operator under test, or is on the short
    list that says why not."""
    if not request.config.stash.get(WHOLE_TIER, False):
        pytest.skip("needs the whole tier: python -m pytest tests/apiserver")
    asked = requests(control_plane.audit_log, OPERATOR_USER)
    used = {right for found in asked if found.status != 403 for right in found.rights}
    mine = granted(rendered_rights("magnetar", OPERATOR_NAMESPACE, "--set", EVERYWHERE), ACCOUNT)
    assert sorted(map(str, mine - used - set(EXPLAINED))) == []
    assert sorted(map(str, set(EXPLAINED) - mine)) == [], "explained here, but not granted any more"


async def test_an_operator_of_some_namespaces_has_the_same_rights_there_and_none_elsewhere(
    control_plane: ControlPlane,
    namespace: str,
    cluster_etcd: EtcdProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """watchNamespaces: a real operator works with Roles alone; the next namespace is closed to
    it."""
    everywhere = granted(
        rendered_rights("magnetar", OPERATOR_NAMESPACE, "--set", EVERYWHERE), ACCOUNT
    )
    rendered = rendered_rights(
        "scoped", SCOPED_NAMESPACE, "--set", f"watchNamespaces={{{namespace}}},{ONLY_ROLES}"
    )
    of_no_namespace = {Right("", "nodes", "get"), Right("storage.k8s.io", "storageclasses", "get")}
    assert granted(rendered, SCOPED_ACCOUNT) == everywhere - of_no_namespace
    assert "ClusterRoleBinding" not in rendered
    make_namespace(control_plane, SCOPED_NAMESPACE)
    applied = control_plane.kubectl("apply", "-f", "-", text_input=rendered)
    assert applied.returncode == 0, applied.stderr
    await until("the roles are in force", lambda: are_in_force(control_plane, rendered))
    monkeypatch.setenv("KUBECONFIG", str(control_plane.scoped_kubeconfig))
    scene = Scene(control_plane, namespace)

    async def scenario() -> None:
        lease = {"lease_namespace": SCOPED_NAMESPACE, "lease_name": SCOPED_ACCOUNT}
        async with (
            brokers_of(cluster_etcd.endpoint) as brokers,
            running_operator(namespace, **lease),
            Kubelet(scene).at_work(),
        ):
            scene.create(
                "BrokerCluster",
                "main",
                {"etcd": {"external": {"endpoints": [cluster_etcd.endpoint]}}},
            )
            await brokers.register("main-broker-0")
            await until(
                "the cluster is Ready",
                lambda: (
                    scene.condition(scene.path("brokerclusters", "main")).get("status") == "True"
                ),
            )
            spec = {
                "clusterRef": {"name": "main"},
                "tenant": "acme",
                "namespace": "demo",
                "deletionPolicy": "Delete",
            }
            scene.create("TopicNamespace", "demo", spec)
            path = scene.path("topicnamespaces", "demo")
            await until(
                "the namespace is Ready", lambda: scene.condition(path).get("status") == "True"
            )
            await brokers.enter("persistent://acme/demo/x")
            scene.create(
                "DataJob",
                "once",
                {
                    "clusterRef": {"name": "main"},
                    "compaction": {"topic": "persistent://acme/demo/x"},
                },
            )
            await until(
                "a driver",
                lambda: (
                    (scene.get(scene.path("datajobs", "once")) or {})
                    .get("status", {})
                    .get("driverPod")
                ),
            )

    await scenario()
    asked = requests(control_plane.audit_log, SCOPED_USER)
    assert asked
    assert [f"{found.right} ({found.path})" for found in asked if found.status == 403] == []
    assert {found.namespace for found in asked} <= {namespace, SCOPED_NAMESPACE}
    for path in (
        "/api/v1/namespaces/default/pods",
        "/api/v1/pods",
        "/api/v1/nodes",
        "/apis/magnetar.io/v1alpha1/brokerclusters",
    ):
        assert control_plane.request("GET", path, token=SCOPED_TOKEN)[0] == 403


async def test_namespaces_whose_roles_are_gone_stop_nothing_in_the_others(
    control_plane: ControlPlane,
    namespace: str,
    cluster_etcd: EtcdProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Deleting a watched namespace takes the operator's role in it along, and the next operator is
    forbidden to read it: it works in the others.

    One that it may read in part is left alone, since what it cannot see would seem to be missing,
    and worked on as soon as the role is back. Until then nobody takes what a TopicNamespace in it
    owns, or may own, and no TopicNamespace elsewhere is let go as if a cluster in it were gone.
    """
    gone, half = f"{namespace}-gone", f"{namespace}-half"
    for name in (SCOPED_NAMESPACE, gone, half):
        make_namespace(control_plane, name)
    watched = ",".join((namespace, gone, half))
    rendered = rendered_rights(
        "scoped", SCOPED_NAMESPACE, "--set", f"watchNamespaces={{{watched}}},{ONLY_ROLES}"
    )
    applied = control_plane.kubectl("apply", "-f", "-", text_input=rendered)
    assert applied.returncode == 0, applied.stderr
    await until("the roles are in force", lambda: are_in_force(control_plane, rendered))
    monkeypatch.setenv("KUBECONFIG", str(control_plane.scoped_kubeconfig))
    scenes = {name: Scene(control_plane, name) for name in (namespace, gone, half)}
    spec = {"etcd": {"external": {"endpoints": [cluster_etcd.endpoint]}}}
    lease: dict[str, Any] = {
        "lease_namespace": SCOPED_NAMESPACE,
        "lease_name": SCOPED_ACCOUNT,
        "beside": (gone, half),
    }
    roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{half}/roles/{SCOPED_ACCOUNT}"
    shared, invoices = (
        {"name": "shared", "namespace": namespace},
        keys.namespace(NamespaceName("acme", "invoices")),
    )

    pods_read = {Right("", "pods", verb) for verb in ("get", "list", "watch")}

    def left(name: str) -> set[Right]:
        """What the operator may do there."""
        return set(flattened(rules_of(control_plane, SCOPED_USER, name)))

    async def scenario(brokers: Brokers) -> None:
        here, there = Stage(scenes[namespace], brokers), Stage(scenes[half], brokers)
        async with running_operator(namespace, **lease) as operator:
            scenes[gone].create("BrokerCluster", "main", {**spec, "allowedNamespaces": [namespace]})
            await until("all are worked in", scenes[gone].stateful_set)
            assert operator.informers.problem() == ""
            scenes[namespace].create(
                "BrokerCluster", "shared", {**spec, "allowedNamespaces": [half]}
            )
            await there.ready(there.make("older", clusterRef=shared, policies={TTL: 86400}))
            await asyncio.sleep(1.1)  # creation times have whole seconds
            younger = here.make("younger", clusterRef=shared, policies={TTL: 60})
            assert f"{half}/older is older" in await here.reason(younger, "Conflict")
            elsewhere = {"name": "main", "namespace": gone}
            dropped = here.make(
                "dropped", clusterRef=elsewhere, namespace="receipts", deletionPolicy="Delete"
            )
            await here.ready(dropped)
        control_plane.must(
            "DELETE",
            f"/apis/rbac.authorization.k8s.io/v1/namespaces/{gone}/rolebindings/{SCOPED_ACCOUNT}",
        )
        control_plane.must("DELETE", f"/api/v1/namespaces/{gone}")
        rules = control_plane.must("GET", roles)["rules"]
        few = [
            {
                "apiGroups": [GROUP],
                "resources": ["brokerclusters"],
                "verbs": ["get", "list", "watch"],
            }
        ]
        scenes[half].merge(roles, {"rules": few})
        await until(
            "the API server goes by that",
            lambda: not pods_read & {right for name in (gone, half) for right in left(name)},
        )
        scenes[half].create("BrokerCluster", "main", spec)
        await brokers.store.put(
            invoices, NamespaceRecord(initial_boundaries(2), {TTL: 86400}).encode()
        )
        late = here.make("late", clusterRef=shared, namespace="invoices", policies={TTL: 60})
        scenes[namespace].delete(dropped)
        before = len(requests(control_plane.audit_log, SCOPED_USER))
        async with running_operator(namespace, **lease) as operator:
            await until("ready", lambda: operator.health.unready() == "")
            scenes[namespace].create("BrokerCluster", "main", spec)
            await until("the others are worked in", scenes[namespace].stateful_set)
            assert [name for name in scenes if operator.informers.refused(name)] == [gone, half]
            for path in (younger, late):
                await until(
                    "it was looked at",
                    lambda path=path: _is_ready(here, path) or _is_hidden(here, path),
                )
                assert _is_hidden(here, path)
            assert await _owner_and_policies(here, KEY) == (f"{half}/older", {TTL: 86400})
            assert await _owner_and_policies(here, invoices) == ("", {TTL: 86400})
            await here.ready(
                here.make("new", clusterRef=shared, namespace="new", policies={TTL: 60})
            )
            await until(
                "the deletion waits, or is over",
                lambda: (
                    here.is_gone(dropped)
                    or here.scene.condition(dropped).get("reason") == "MetadataStoreUnavailable"
                ),
            )
            assert not here.is_gone(dropped)
            asked = requests(control_plane.audit_log, SCOPED_USER)[before:]
            assert {found.right.verb for found in asked if found.namespace == half} <= {
                "list",
                "watch",
            }
            scenes[half].merge(roles, {"rules": rules})
            await until("the role is back", scenes[half].stateful_set)
            assert [name for name in scenes if operator.informers.refused(name)] == [gone]
            await until(
                "the rival is seen",
                lambda: "is older and owns" in here.scene.condition(younger)["message"],
            )
            assert await _owner_and_policies(here, KEY) == (f"{half}/older", {TTL: 86400})

    async def script() -> None:
        async with brokers_of(cluster_etcd.endpoint) as brokers:
            await scenario(brokers)

    await script()


def _is_ready(stage: Stage, path: str) -> bool:
    return bool(stage.scene.condition(path).get("status") == "True")


def _is_hidden(stage: Stage, path: str) -> bool:
    """Whether it says that a rival may be where nobody can look."""
    return "cannot be read now" in stage.scene.condition(path).get("message", "")


async def _owner_and_policies(stage: Stage, key: str) -> tuple[str, dict[str, Any]]:
    record = await stage.record(key)
    return record.owner, dict(record.policies)
