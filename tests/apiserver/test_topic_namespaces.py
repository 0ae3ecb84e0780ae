"""TopicNamespaces against a real API server and a real etcd: records converge field by field,
owners are respected, and nothing is lost."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dev.testbed.control_plane import EtcdProcess
from magnetar.clock import SystemClock
from magnetar.metadata import keys
from magnetar.metadata.backends.etcd import EtcdStore
from magnetar.metadata.owned_fields import value_of, with_fields
from magnetar.metadata.records import BundleRecord, BundleState, NamespaceRecord, TenantRecord
from magnetar.names import NamespaceName, initial_boundaries
from magnetar.policies import KEPT_POLICIES
from magnetar_operator.engine.controller import RECONCILERS
from magnetar_operator.engine.work_queue import Key
from magnetar_operator.engine.world import World
from magnetar_operator.kube import informers
from magnetar_operator.kube.errors import ApiUnavailable
from magnetar_operator.main import Operator
from magnetar_operator.namespaces import reconciler as topic_namespace
from magnetar_operator.stores.connections import ClusterStore
from tests.apiserver.namespace_stage import KEY, NAME, TIMEOUT_S, TTL, Stage, stage_of
from tests.apiserver.stage import (
    Scene,
    look_at_all,
    quiet,
    running_operator,
    settled,
    until,
    writes,
)
from tests.support.brokers import running_broker
from tests.support.namespaces import FULL
from tests.support.rest import Rest, rest_over

pytestmark = pytest.mark.slow


async def test_every_owned_field_converges_and_drift_is_corrected_field_by_field(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Creation; each owned field changed and taken away behind the operator; others' fields
    stay; a field that the spec drops goes."""

    async with (
        stage_of(scene, cluster_etcd) as stage,
        running_operator(scene.namespace) as operator,
    ):
        path = stage.make(
            "orders",
            policies=FULL,
            permissions={"alice": ["produce"]},
            properties={"team": "blue"},
        )
        document = await stage.ready(path)
        assert document["status"]["appliedGeneration"] == document["metadata"]["generation"] == 1
        record = await stage.record()
        assert record.boundaries == initial_boundaries(2)
        assert record.owner == f"{scene.namespace}/orders"
        assert record.owned == tuple(sorted(record.owned))
        assert {
            "permissions.alice",
            "properties.team",
            "policies.backlog_quota_map.message_age",
        } < set(record.owned)
        assert len(record.owned) == len(FULL) + 1 + 2

        theirs = {
            "properties.cost": "low",
            "permissions.bob": ["consume"],
            "policies.anti_affinity": "g",
        }
        for lost in (False, True):
            drift = with_fields(
                record.policies,
                {**dict.fromkeys(record.owned, None if lost else "drift"), **theirs},
            )
            await stage.brokers.store.put(KEY, replace(record, policies=drift).encode())
            stage.look_again(path)
            expected = with_fields(record.policies, theirs)
            await stage.becomes("ours again", partial(_has, stage, expected))
            old = "unset" if lost else '"drift"'
            for field in record.owned[:3]:
                await stage.event("DriftCorrected", f"{field}: {old} -> ")
        assert not [text for text in scene.events("DriftCorrected") if "bob" in text]

        await settled(operator)
        before = writes(operator)
        for _ in range(3):
            await look_at_all(operator)
            await quiet(operator)
        assert writes(operator) == before

        scene.merge(
            path,
            {
                "spec": {
                    "policies": {TTL: 5, "retention_policies": None},
                    "permissions": {"alice": None},
                }
            },
        )
        await stage.event("Updated", f"policies.{TTL}: 3600 -> 5")
        await stage.event("Updated", 'permissions.alice: ["produce"] -> unset')
        policies = (await stage.record()).policies
        assert "retention_policies" not in policies
        assert policies[TTL] == 5
        assert value_of(policies, "permissions.bob") == ["consume"]


async def _has(stage: Stage, policies: dict[str, Any]) -> bool:
    return (await stage.record()).policies == policies


async def test_the_oldest_of_two_resources_acts_and_the_other_takes_over_when_it_goes(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Also where the younger one was there first; what the older one had set stays when it goes,
    and is nobody's then."""

    async with stage_of(scene, cluster_etcd) as stage, AsyncExitStack() as stack:
        older = stage.make("older", policies={TTL: 60, "deduplicationEnabled": True})
        await asyncio.sleep(1.1)  # creation times have whole seconds
        younger = stage.make("younger", bundles=3, policies={TTL: 7}, deletionPolicy="Delete")
        await stack.enter_async_context(running_operator(scene.namespace))
        await stage.ready(older)
        assert (await stage.record()).boundaries == initial_boundaries(2)
        assert f"{scene.namespace}/older is older and owns acme/orders" in await stage.reason(
            younger, "Conflict"
        )
        usurped = NamespaceRecord(
            initial_boundaries(2), {TTL: 7}, f"{scene.namespace}/younger", (f"policies.{TTL}",)
        )
        await stage.brokers.store.put(KEY, usurped.encode())
        stage.look_again(older)
        await stage.event(
            "DriftCorrected", f'owner: "{scene.namespace}/younger" -> "{scene.namespace}/older"'
        )

        scene.delete(older)
        await stage.becomes(
            "the younger one acts", lambda: _has(stage, {TTL: 7, "deduplicationEnabled": True})
        )
        await stage.ready(younger)
        record = await stage.record()
        assert (record.owner, record.owned) == (
            f"{scene.namespace}/younger",
            (f"policies.{TTL}",),
        )


async def test_a_resource_that_goes_owns_nothing_any_more(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Retain: values stay and are anybody's; also if the resource went while no operator ran."""

    async with stage_of(scene, cluster_etcd) as stage:

        async def is_released() -> bool:
            record, tenant = await stage.record(), await stage.tenant()
            values_stay = record.policies == {TTL: 60} and tenant.admin_roles == ("root",)
            return values_stay and (record.owner, record.owned, tenant.owner, tenant.owned) == (
                "",
                (),
                "",
                (),
            )

        spec = {"policies": {TTL: 60}, "tenantConfig": {"adminRoles": ["root"]}}
        async with running_operator(scene.namespace):
            path = stage.make("orders", **spec)
            await stage.ready(path)
            assert (await stage.tenant()).owner == f"{scene.namespace}/orders"
            scene.delete(path)
            await stage.becomes("released", is_released)
            await stage.ready(stage.make("orders", **spec))
        scene.delete(path)
        assert (await stage.record()).owner == f"{scene.namespace}/orders"
        async with running_operator(scene.namespace):
            await stage.becomes("released by the next operator", is_released)


async def test_a_namespace_says_that_its_cluster_is_gone_and_nothing_of_it_stays_owned_when_that_is_back(
    scene: Scene, cluster_etcd: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, long before the next resync: of a resource that went while its cluster was gone
    nobody else is asked to edit it."""
    monkeypatch.setattr(topic_namespace, "LOOK_AT_CLUSTER_S", 3600.0)  # nor does any time tell

    async with stage_of(scene, cluster_etcd) as stage, running_operator(scene.namespace):
        kept, gone = (
            stage.make("kept"),
            stage.make("gone", namespace="gone", policies={TTL: 60}),
        )
        await stage.ready(kept)
        await stage.ready(gone)
        scene.delete(scene.path("brokerclusters", "main"))
        for path in (kept, gone):
            assert "/main does not exist" in await stage.reason(path, "ClusterNotFound")
        scene.delete(gone)
        left = keys.namespace(NamespaceName("acme", "gone"))
        assert (await stage.record(left)).owner == f"{scene.namespace}/gone"

        stage.make_cluster(cluster_etcd)
        await stage.becomes("released", partial(stage.is_nobodys, left))
        await stage.ready(kept)
        assert (await stage.record(left)).policies == {TTL: 60}
        assert (await stage.record()).owner == f"{scene.namespace}/kept"


async def test_what_an_owner_in_no_watched_namespace_has_left_is_freed_by_a_resource_that_comes_and_goes(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """As docs/install.md says of a namespace that was deleted with what it held: every value
    stays, and is anybody's."""

    async with stage_of(scene, cluster_etcd) as stage, running_operator(scene.namespace):
        await stage.ready(stage.make("other", namespace="other"))
        left = NamespaceRecord(
            initial_boundaries(2), {TTL: 60}, "payments/orders", (f"policies.{TTL}",)
        )
        owned_tenant = TenantRecord(
            ("root",), ("standalone",), "payments/orders", ("tenantConfig.adminRoles",)
        )
        await stage.brokers.store.put(KEY, left.encode())
        await stage.brokers.store.put(keys.tenant("acme"), owned_tenant.encode())
        path = stage.make("orders", tenantConfig={"adminRoles": ["root"]})
        await stage.ready(path)
        assert (await stage.record()).owner == f"{scene.namespace}/orders"
        scene.delete(path)
        await stage.becomes("released", stage.is_nobodys)
        await stage.becomes("the tenant is released", lambda: _tenant_is(stage, ""))
        assert await stage.record() == NamespaceRecord(initial_boundaries(2), {TTL: 60})
        assert (await stage.tenant()).admin_roles == ("root",)


async def test_what_goes_before_the_watches_have_opened_is_noticed(
    scene: Scene, cluster_etcd: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the operator's list nor the one that a watch begins with shows it; nobody waits
    for the next resync."""
    opened = informers.watch

    may_open = asyncio.Event()

    async def opened_late(*arguments: Any) -> None:
        await may_open.wait()
        await opened(*arguments)

    monkeypatch.setattr(informers, "watch", opened_late)
    async with stage_of(scene, cluster_etcd) as stage:
        path = stage.make("orders", policies={TTL: 60})
        async with running_operator(scene.namespace, resync_s=3600.0) as operator:
            await stage.ready(path)
            await stage.ready(
                stage.make("kept", namespace="kept")
            )  # what the watch shows of it is younger than all of the other one
            scene.delete(path)
            may_open.set()
            await until("the watches are open", lambda: operator.health.watching)
            await stage.becomes("released", stage.is_nobodys)


async def test_what_a_resource_spoke_for_before_it_was_made_again_is_released(
    scene: Scene, cluster_etcd: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nobody ever saw it gone: no operator ran, or deletion and creation were one
    piece of news. Values stay."""
    real, may_pass = RECONCILERS["TopicNamespace"], asyncio.Event()

    async def gated(world: World, key: Key) -> float | None:
        await may_pass.wait()
        return await real(world, key)

    monkeypatch.setitem(RECONCILERS, "TopicNamespace", gated)
    may_pass.set()
    async with stage_of(scene, cluster_etcd) as stage:
        path = stage.make("orders", policies={TTL: 60}, tenantConfig={"adminRoles": ["root"]})
        async with running_operator(scene.namespace):
            await stage.ready(path)
        scene.delete(path)
        stage.make("orders", namespace="invoices", policies={TTL: 7})
        async with running_operator(scene.namespace) as operator:
            await stage.ready(path)
            await stage.becomes("released", stage.is_nobodys)
            assert (await stage.record()).policies == {TTL: 60}
            await stage.becomes("the tenant is released", lambda: _tenant_is(stage, ""))
            assert (await stage.tenant()).admin_roles == ("root",)
            owner = f"{scene.namespace}/orders"
            assert (await stage.record("namespaces/acme/invoices")).owner == owner

            async def make_again(**spec: Any) -> None:
                """No pass sees it gone."""
                may_pass.clear()
                before = scene.get(path)
                scene.delete(path)
                stage.make("orders", **spec)
                made = (scene.get(path) or {})["metadata"]["uid"]
                assert before is not None
                assert made != before["metadata"]["uid"]

                def is_known() -> bool:
                    shown = operator.cache.get("TopicNamespace", scene.namespace, "orders")
                    return shown is not None and shown.uid == made

                await until("the operator knows the new one", is_known, TIMEOUT_S)
                may_pass.set()

            await make_again(namespace="receipts", tenantConfig={"adminRoles": ["joe"]})
            await stage.ready(path)
            assert (await stage.record("namespaces/acme/receipts")).owner == owner
            await stage.becomes("released", lambda: stage.is_nobodys("namespaces/acme/invoices"))
            assert await _tenant_is(stage, owner)
            await settled(operator)

            await make_again(namespace="receipts", clusterRef={"name": "missing"})
            await stage.reason(path, "ClusterNotFound")
            await stage.becomes("released", lambda: stage.is_nobodys("namespaces/acme/receipts"))
            await stage.becomes("the tenant is released", lambda: _tenant_is(stage, ""))


async def _answers(rest: Rest, path: str, value: Any) -> bool:
    return bool(await rest.get(path) == value)


async def _tenant_is(stage: Stage, owner: str) -> bool:
    return (await stage.tenant()).owner == owner


async def test_a_namespace_that_vanished_is_made_again_around_its_messages(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """With the bundles as they have been split since, and nothing in them expires; reported in an
    Event."""

    async with stage_of(scene, cluster_etcd) as stage, running_operator(scene.namespace):
        path = stage.make("orders", policies={TTL: 60})
        await stage.ready(path)
        await stage.brokers.store.delete(KEY)
        stage.look_again(path)
        await stage.event("Recreated", "made again with 2 bundles")
        for span in ("0x00000000_0x40000000", "0x40000000_0x80000000"):
            record = BundleRecord(BundleState.OWNED, 1, "main-broker-0.1")
            await stage.brokers.store.put(f"{keys.bundles_in(NAME)}{span}", record.encode())
        await stage.brokers.store.delete(KEY)
        stage.look_again(path)
        await stage.event("Recreated", "around 2 bundles with messages")
        again = await stage.record()
        assert again.boundaries == (0, 0x40000000, 0x80000000, 0xFFFFFFFF)
        assert again.policies == {**KEPT_POLICIES, TTL: 60}
        await until("status", lambda: (scene.get(path) or {})["status"]["bundles"] == 3, TIMEOUT_S)


async def test_the_oldest_resource_decides_on_the_tenant(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Another one that says the same is fine, one that says otherwise is notified and still has
    its namespace; taking it out transfers."""

    async with stage_of(scene, cluster_etcd) as stage, running_operator(scene.namespace):
        older = stage.make("older", tenantConfig={"adminRoles": ["root"]})
        assert (await stage.ready(older))["status"]["ownsTenant"] is True
        assert await stage.tenant() == TenantRecord(
            ("root",), ("standalone",), f"{scene.namespace}/older", ("tenantConfig.adminRoles",)
        )
        await asyncio.sleep(1.1)  # creation times have whole seconds
        same = stage.make("same", namespace="same", tenantConfig={"adminRoles": ["root"]})
        assert (await stage.ready(same))["status"]["ownsTenant"] is False
        other = stage.make(
            "other", namespace="other", tenantConfig={"adminRoles": ["joe"]}, policies={TTL: 5}
        )
        message = await stage.reason(other, "TenantConflict")
        assert (
            f"{scene.namespace}/older is older and decides on tenant acme; set "
            "tenantConfig.adminRoles as it does" in message
        )
        assert (await stage.record("namespaces/acme/other")).policies == {TTL: 5}

        drifted = TenantRecord(
            ("them",),
            ("standalone", "west"),
            f"{scene.namespace}/older",
            ("tenantConfig.adminRoles",),
        )
        await stage.brokers.store.put(keys.tenant("acme"), drifted.encode())
        stage.look_again(older)
        await stage.event(
            "DriftCorrected", 'tenant acme, tenantConfig.adminRoles: ["them"] -> ["root"]'
        )
        assert (await stage.tenant()).allowed_clusters == ("standalone", "west")

        scene.delete(same)
        scene.merge(older, {"spec": {"tenantConfig": None}})
        assert (await stage.ready(other))["status"]["ownsTenant"] is True
        assert (await stage.tenant()).admin_roles == ("joe",)


async def test_an_answer_that_is_lost_at_any_step_costs_nothing(
    scene: Scene, cluster_etcd: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every write of a pass is done and then reported as failed, one after the other: records
    and status end up the same."""

    async with (
        stage_of(scene, cluster_etcd) as stage,
        running_operator(scene.namespace) as operator,
    ):
        await until(
            "the cluster",
            lambda: scene.condition(scene.path("brokerclusters", "main")),
            TIMEOUT_S,
        )
        await settled(operator)
        lost = _lose_answers(operator, monkeypatch)
        done, number = False, 0
        while not done:
            number += 1
            lost.arm(number)
            tenant = f"tenant{number}"
            path = stage.make(
                tenant,
                tenant=tenant,
                deletionPolicy="Delete",
                policies={TTL: 5},
                tenantConfig={"adminRoles": ["root"]},
            )
            document = await stage.ready(path)
            await quiet(operator)  # Events are written after the status
            done = not lost.happened
            assert document["status"]["appliedGeneration"] == 1
            assert document["metadata"]["finalizers"] == ["magnetar.io/topic-namespace"]
            assert (await stage.record(f"namespaces/{tenant}/orders")).policies == {TTL: 5}
            lost.arm(0)
            scene.delete(path)
            await until("the resource is gone", partial(stage.is_gone, path), TIMEOUT_S)
            assert await stage.brokers.store.get(f"namespaces/{tenant}/orders") is None
        assert number > 6, "finalizer, two records, two events and a status are written"


class LostAnswers:
    """Has one write of many fail after it was done."""

    def __init__(self) -> None:
        self.left, self.happened = 0, False

    def arm(self, number: int) -> None:
        """The `number`th write from now on; 0 for none."""
        self.left, self.happened = number, False

    def done(self) -> None:
        """A write was made. Raises ApiUnavailable instead of telling of it."""
        self.left -= 1
        if self.left == 0:
            self.happened = True
            raise ApiUnavailable("the answer was lost", 503)


def _lose_answers(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> LostAnswers:
    lost = LostAnswers()

    def wrap(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        async def losing(*arguments: Any, **options: Any) -> Any:
            result = await real(*arguments, **options)
            if (
                not arguments
                or not isinstance(arguments[0], dict)
                or "sentinel" not in str(arguments[0].get("metadata", ""))
            ):
                lost.done()
            return result

        monkeypatch.setattr(owner, name, losing)

    for name in ("apply", "set_finalizers", "post_event"):
        wrap(operator.api, name)
    wrap(ClusterStore, "write")
    return lost


async def test_a_real_broker_refuses_to_change_what_a_resource_owns(
    scene: Scene, cluster_etcd: EtcdProcess, tmp_path: Path
) -> None:
    """Operator and broker on one etcd: REST shows what the resource sets, and changes everything
    else; an edit of the resource arrives."""

    async with stage_of(scene, cluster_etcd) as stage:
        await stage.brokers.store.delete(keys.CLUSTER)
        await stage.brokers.store.delete(keys.RESTORE)
        store = EtcdStore([cluster_etcd.endpoint], clock=SystemClock())
        try:
            async with (
                running_broker(tmp_path, store=store) as broker,
                rest_over(tmp_path, broker) as rest,
                running_operator(scene.namespace),
            ):
                path = stage.make("orders", policies={TTL: 60}, permissions={"alice": ["consume"]})
                await stage.ready(path)
                base = f"/admin/v2/namespaces/{NAME}"
                await stage.becomes(
                    "the broker knows", lambda: _answers(rest, f"{base}/messageTTL", 60)
                )
                assert await rest.get(f"{base}/permissions") == {"alice": ["consume"]}
                for method, part, body in (
                    ("POST", "messageTTL", 5), ("DELETE", "messageTTL", None), ("DELETE", "permissions/alice", None),
                ):  # fmt: skip
                    refused = await rest(method, f"{base}/{part}", body, status=409)
                    assert f"TopicNamespace {scene.namespace}/orders owns" in refused["reason"]
                await rest("DELETE", base, status=409)
                await rest("POST", f"{base}/maxProducersPerTopic", 3)
                scene.merge(path, {"spec": {"policies": {TTL: 90}}})
                await stage.event("Updated", f"policies.{TTL}: 60 -> 90")
                await stage.becomes(
                    "the broker knows", lambda: _answers(rest, f"{base}/messageTTL", 90)
                )
                assert await rest.get(f"{base}/maxProducersPerTopic") == 3
                scene.delete(path)
                await stage.becomes("released", stage.is_nobodys)
                await rest("POST", f"{base}/messageTTL", 5)
        finally:
            await store.close()
