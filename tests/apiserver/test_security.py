"""Client security against a real API server: keys that are missing are named, what changes reaches pods without a restart, and no key is shown."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
import yaml

from magnetar.security.document import parse_document
from tests.apiserver.control_plane import ControlPlane, EtcdProcess
from tests.apiserver.stage import Kubelet, Scene, brokers_of, running_operator, settled, until

pytestmark = pytest.mark.slow

AUTH: dict[str, Any] = {"tokens": {"secretKey": {"name": "tokens", "key": "secret.key"}}, "superUserRoles": ["admin"]}
TIMEOUT_S = 60.0


@pytest.fixture
def scene(control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.operator_kubeconfig))
    return Scene(control_plane, namespace)


def make_secret(scene: Scene, name: str, kind: str = "Opaque", **files: bytes) -> None:
    data = {file.replace("_", "."): base64.b64encode(content).decode() for file, content in files.items()}
    scene.plane.must("POST", scene.core("secrets"), {"metadata": {"name": name}, "type": kind, "data": data})


def document(scene: Scene) -> str:
    found = scene.get(scene.core("configmaps", "main-security")) or {}
    return str(found.get("data", {}).get("security.yaml", ""))


def uids(scene: Scene) -> list[str]:
    return sorted(pod["metadata"]["uid"] for pod in scene.pods())


def nudge(scene: Scene) -> None:
    """Secrets are not watched: have the operator look now."""
    looks = int(scene.cluster()["metadata"].get("annotations", {}).get("looks", "0"))
    scene.merge(scene.path("brokerclusters", "main"), {"metadata": {"annotations": {"looks": str(looks + 1)}}})


def degraded(scene: Scene) -> dict[str, Any]:
    return scene.condition(scene.path("brokerclusters", "main"), "Degraded")


def internal_key(scene: Scene) -> str:
    found = scene.get(scene.core("secrets", "main-internal")) or {}
    return str(found.get("data", {}).get("internal.key", ""))


def visible(scene: Scene) -> str:
    """Whatever people other than readers of secrets may see."""
    lists = [scene.core(plural) for plural in ("events", "configmaps", "pods")]
    lists += [scene.core("statefulsets", group="/apis/apps/v1"), scene.path("brokerclusters")]
    return json.dumps([scene.plane.must("GET", path) for path in lists])


def test_keys_and_roles_are_followed_and_a_key_that_is_missing_restarts_nobody(
    scene: Scene, cluster_etcd: EtcdProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cluster's own key is made and kept; other roles change the ConfigMap alone; a roll waits for the tokens' key and then goes on."""
    secret = b"0123456789abcdef-hush-hush-hush-0123456789abcdef"

    async def scenario() -> None:
        async with (
            brokers_of(cluster_etcd.endpoint) as brokers,
            running_operator(scene.namespace) as operator,
            Kubelet(scene).at_work(),
        ):
            external = {"etcd": {"external": {"endpoints": [cluster_etcd.endpoint]}}}
            scene.create("BrokerCluster", "main", {**external, "auth": AUTH})
            await brokers.register("main-broker-0")
            path = scene.path("brokerclusters", "main")
            await until("the missing key is named", lambda: degraded(scene).get("reason") == "TokenKeyMissing", TIMEOUT_S)
            assert "secret tokens does not exist" in degraded(scene)["message"]
            make_secret(scene, "tokens", secret_key=secret)
            await until("it is Ready", lambda: scene.condition(path).get("status") == "True", TIMEOUT_S)
            own = internal_key(scene)
            assert len(base64.b64decode(own)) == 32
            assert parse_document(document(scene)).super_user_roles == frozenset({"admin"})

            before, template = uids(scene), (scene.stateful_set() or {})["spec"]["template"]
            scene.merge(path, {"spec": {"auth": {"superUserRoles": ["admin", "root"]}}})
            await until(
                "the new role is in the document",
                lambda: yaml.safe_load(document(scene))["authorization"]["superUserRoles"] == ["admin", "root"],
                TIMEOUT_S,
            )
            await settled(operator)
            assert (uids(scene), (scene.stateful_set() or {})["spec"]["template"]) == (before, template)

            scene.delete(scene.core("secrets", "tokens"))
            scene.merge(path, {"spec": {"config": {"keep_alive_s": 9}}})
            await until("the roll waits", lambda: scene.cluster()["status"].get("pendingRestarts"), TIMEOUT_S)
            await settled(operator)
            assert uids(scene) == before
            assert degraded(scene)["reason"] == "TokenKeyMissing"
            make_secret(scene, "tokens", secret_key=secret)
            nudge(scene)
            await until("it goes on", lambda: uids(scene) not in ([], before), TIMEOUT_S)

            scene.merge(scene.core("secrets", "main-internal"), {"data": {"internal.key": "eA=="}})
            nudge(scene)
            await until("another one is made", lambda: len(internal_key(scene)) > 40, TIMEOUT_S)
            assert internal_key(scene) != own
            await until("it is told", lambda: scene.events("DriftCorrected"), TIMEOUT_S)
            await settled(operator)
            seen = visible(scene)
            for key in (secret.decode(), base64.b64encode(secret).decode(), own, internal_key(scene)):
                assert key not in seen

    asyncio.run(scenario())
    output = capsys.readouterr()
    assert "hush" not in output.out + output.err
