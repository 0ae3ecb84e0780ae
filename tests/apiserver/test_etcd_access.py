"""Certificates and credentials of clusters' etcds, against a real API server: made, repaired,
renewed, taken over, and never shown."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from magnetar.clock import SystemClock
from magnetar.metadata import keys
from magnetar.metadata.records import ClusterRecord
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator import names
from magnetar_operator.builders.etcd_tls import MEMBER, pair_of, subjects
from magnetar_operator.engine.work_queue import Key
from magnetar_operator.etcd.certificates import Subject, issue, leaf_problem, make_authority
from magnetar_operator.main import Operator
from tests.apiserver.stage import Scene, quiet, running_operator, settled, until
from tests.contract.metadata.guarded_etcd import HERE, Guarded

pytestmark = pytest.mark.slow
CLOCK = SystemClock()
PARTS = ("ca", "server", "operator", "broker", "coordinator", "job")
DAY_MS = 86_400_000
MERGE = "application/merge-patch+json"


def secret(scene: Scene, part: str) -> dict[str, Any] | None:
    return scene.get(scene.core("secrets", f"main-etcd-{part}"))


def all_secrets(scene: Scene) -> dict[str, dict[str, Any]]:
    return {part: found for part in PARTS if (found := secret(scene, part)) is not None}


def texts(scene: Scene) -> str:
    """Whatever people other than readers of secrets may see."""
    lists = [scene.core(plural) for plural in ("events", "configmaps", "pods")]
    lists += [scene.core("statefulsets", group="/apis/apps/v1"), scene.path("brokerclusters")]
    return json.dumps([scene.plane.must("GET", path) for path in lists])


def assert_nothing_leaks(scene: Scene, logged: str, *secrets: dict[str, Any]) -> None:
    seen = texts(scene) + logged
    for found in secrets:
        key = found["data"]["tls.key"]
        assert key not in seen
        middle = base64.b64decode(key).decode().splitlines()[1]
        assert middle not in seen


async def look(scene: Scene, operator: Operator, what: str, reached: Any) -> Any:
    """Have the operator look again until `reached`."""

    def again() -> Any:
        return reached()

    async def nudge() -> None:
        while True:
            operator.queue.add(Key("BrokerCluster", scene.namespace, "main"))
            await asyncio.sleep(0.2)

    nudging = asyncio.create_task(nudge())
    try:
        return await until(what, again)
    finally:
        nudging.cancel()


async def test_secrets_are_made_repaired_and_renewed_and_never_shown(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> list[dict[str, Any]]:
        async with running_operator(scene.namespace) as operator:
            scene.create("BrokerCluster", "main", {})
            await until("six secrets", lambda: len(all_secrets(scene)) == len(PARTS))
            first = all_secrets(scene)
            assert {found["type"] for found in first.values()} == {"kubernetes.io/tls"}
            authority = pair_of(first["ca"])
            wanted = subjects(BrokerCluster.model_validate(scene.cluster()))
            for part, subject in wanted.items():
                assert leaf_problem(pair_of(first[part]), authority, subject, CLOCK.wall_ms()) == ""
            await until(
                "status", lambda: scene.cluster().get("status", {}).get("etcdSecurity") == "TLS"
            )

            scene.delete(scene.core("secrets", "main-etcd-job"))
            again = await look(scene, operator, "the job's secret", lambda: secret(scene, "job"))
            assert again["data"]["tls.key"] != first["job"]["data"]["tls.key"]
            scene.plane.must(
                "PATCH",
                scene.core("secrets", "main-etcd-broker"),
                {"data": {"ca.crt": "eA=="}},
                MERGE,
            )
            await look(
                scene,
                operator,
                "repair",
                lambda: secret(scene, "broker")["data"] == first["broker"]["data"],
            )  # type: ignore[index]

            old = issue(authority, Subject(names.COORDINATOR_USER), CLOCK.wall_ms() - 300 * DAY_MS)
            data = {
                "tls.crt": base64.b64encode(old.certificate).decode(),
                "tls.key": base64.b64encode(old.key).decode(),
            }
            scene.plane.must(
                "PATCH", scene.core("secrets", "main-etcd-coordinator"), {"data": data}, MERGE
            )
            await look(
                scene,
                operator,
                "renewal",
                lambda: secret(scene, "coordinator")["data"]["tls.key"] != data["tls.key"],  # type: ignore[index]
            )
            await until("an Event", lambda: scene.events("CertificateRenewed"))
            assert "two thirds of its lifetime are over" in scene.events("CertificateRenewed")[0]
            await until("an Event", lambda: scene.events("DriftCorrected"))
            assert scene.events("DriftCorrected") == [
                "Secret main-etcd-broker: data.ca.crt had been changed"
            ]

            kept = all_secrets(scene)
            await settled(operator)
            assert all_secrets(scene) == kept
            return [*first.values(), *kept.values(), {"data": data}]

    secrets = await scenario()
    output = capsys.readouterr()
    assert_nothing_leaks(scene, output.out + output.err, *secrets)


async def test_a_cluster_made_again_keeps_its_authority_and_a_lost_one_is_not_replaced_unasked(
    scene: Scene,
) -> None:
    async with running_operator(scene.namespace) as operator:
        scene.create("BrokerCluster", "main", {})
        await until("six secrets", lambda: len(all_secrets(scene)) == len(PARTS))
        await quiet(operator)  # or the pass that made them makes the StatefulSet after its deletion
        first = all_secrets(scene)
        scene.delete(scene.path("brokerclusters", "main"))
        for part in PARTS[1:]:  # what the garbage collector would do
            scene.delete(scene.core("secrets", f"main-etcd-{part}"))
        scene.plane.request("DELETE", scene.core("statefulsets", "main-etcd", "/apis/apps/v1"))
        await until("the end", lambda: scene.get(scene.path("brokerclusters", "main")) is None)
        scene.create("BrokerCluster", "main", {})
        await until("six secrets", lambda: len(all_secrets(scene)) == len(PARTS))
        assert secret(scene, "ca") == first["ca"]

        scene.delete(scene.core("secrets", "main-etcd-ca"))
        path = scene.path("brokerclusters", "main")
        await look(
            scene,
            operator,
            "a condition",
            lambda: scene.condition(path, "Degraded").get("reason") == "EtcdAuthorityLost",
        )
        assert "Restore the secret from a backup" in scene.condition(path, "Degraded")["message"]
        assert secret(scene, "ca") is None
        data = {"data": first["ca"]["data"], "type": first["ca"]["type"]}
        metadata = {"name": "main-etcd-ca", "labels": first["ca"]["metadata"]["labels"]}
        scene.plane.must("POST", scene.core("secrets"), {"metadata": metadata, **data})
        await look(
            scene,
            operator,
            "health",
            lambda: scene.condition(path, "Degraded").get("reason") != "EtcdAuthorityLost",
        )


async def test_an_external_etcd_is_reached_with_the_users_secret_as_it_is_now(
    scene: Scene, tmp_path: Path
) -> None:
    """Missing, malformed, right, and replaced together with etcd's own authority: each is
    reported or taken without a restart."""
    guarded = Guarded(tmp_path)
    guarded.server.start()
    external = {
        "endpoints": [guarded.server.endpoint],
        "tls": {"secretRef": {"name": "etcd-client"}},
    }
    record = ClusterRecord(storage_id="5e" * 16, restore=0, format_version=1).encode()
    path = scene.path("brokerclusters", "main")

    def data(key: bytes | None = None) -> dict[str, Any]:
        material = guarded.material("any-user")
        files = {
            "ca.crt": material.authority,
            "tls.crt": material.certificate,
            "tls.key": key or material.key,
        }
        return {
            "data": {name: base64.b64encode(content).decode() for name, content in files.items()}
        }

    async def seeded() -> None:
        store = guarded.store("any-user")
        try:
            await store.put(keys.CLUSTER, record)
        finally:
            await store.close()

    async def scenario() -> None:
        await seeded()
        async with running_operator(scene.namespace) as operator:
            scene.create("BrokerCluster", "main", {"etcd": {"external": external}})
            await until(
                "a condition",
                lambda: scene.condition(path).get("reason") == "EtcdCredentialsMissing",
            )
            message = scene.condition(path)["message"]
            assert "secretRef: secret etcd-client does not exist" in message
            scene.plane.must(
                "POST",
                scene.core("secrets"),
                {"metadata": {"name": "etcd-client"}, **data(make_authority("x", 1).key)},
            )
            await look(
                scene,
                operator,
                "what is wrong",
                lambda: "does not belong" in scene.condition(path)["message"],
            )
            scene.plane.must("PATCH", scene.core("secrets", "etcd-client"), data(), MERGE)
            await look(
                scene,
                operator,
                "the store's word",
                lambda: scene.cluster()["status"].get("storageId") == "5e" * 16,
            )
            pod = await until("brokers", scene.stateful_set)
            mounted = [
                volume["secret"]["secretName"]
                for volume in pod["spec"]["template"]["spec"]["volumes"]
                if "secret" in volume
            ]
            assert mounted == ["etcd-client"]

            guarded.server.kill()
            guarded.authority = make_authority("its successor", CLOCK.wall_ms())
            guarded.write(issue(guarded.authority, Subject(MEMBER, HERE), CLOCK.wall_ms()))
            await asyncio.to_thread(guarded.server.start)
            scene.create(
                "TopicNamespace",
                "orders",
                {"clusterRef": {"name": "main"}, "tenant": "shop", "namespace": "orders"},
            )
            scene.plane.must("PATCH", scene.core("secrets", "etcd-client"), data(), MERGE)
            orders = scene.path("topicnamespaces", "orders")
            await look(
                scene,
                operator,
                "a namespace in the store",
                lambda: scene.condition(orders).get("status") == "True",
            )

    try:
        await scenario()
    finally:
        guarded.server.kill()
