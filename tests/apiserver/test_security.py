"""Client security against a real API server: keys that are missing are named, what changes
reaches pods without a restart, and no key is shown."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml

from dev.testbed.control_plane import ControlPlane, EtcdProcess
from magnetar.clock import SystemClock
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.security.document import parse_document
from magnetar.security.keys import secret_keys
from magnetar_operator.brokers import client_security
from magnetar_operator.brokers.internal_rotation import InternalKeys, advanced
from magnetar_operator.builders.security import internal_keys, internal_secret
from magnetar_operator.engine.world import parsed
from magnetar_operator.etcd.certificates import Subject, issue, make_authority
from magnetar_operator.etcd.rotation import Phase
from magnetar_operator.main import Operator
from tests.apiserver.stage import (
    Brokers,
    Kubelet,
    Scene,
    brokers_of,
    running_operator,
    settled,
    until,
)

pytestmark = pytest.mark.slow

AUTH: dict[str, Any] = {
    "tokens": {"secretKey": {"name": "tokens", "key": "secret.key"}},
    "superUserRoles": ["admin"],
}
TIMEOUT_S = 120.0
DAY_MS = 86_400_000


@pytest.fixture
def scene(control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.operator_kubeconfig))
    return Scene(control_plane, namespace)


@asynccontextmanager
async def serving(
    scene: Scene, cluster_etcd: EtcdProcess, **spec: Any
) -> AsyncIterator[tuple[Brokers, Operator]]:
    """An operator and a kubelet at work on a cluster of this spec, whose broker has registered."""
    async with (
        brokers_of(cluster_etcd.endpoint) as brokers,
        running_operator(scene.namespace) as operator,
        Kubelet(scene).at_work(),
    ):
        scene.create(
            "BrokerCluster",
            "main",
            {"etcd": {"external": {"endpoints": [cluster_etcd.endpoint]}}, **spec},
        )
        await brokers.register("main-broker-0")
        yield brokers, operator


def make_secret(scene: Scene, name: str, kind: str = "Opaque", **files: bytes) -> None:
    data = {
        file.replace("_", "."): base64.b64encode(content).decode()
        for file, content in files.items()
    }
    scene.plane.must(
        "POST", scene.core("secrets"), {"metadata": {"name": name}, "type": kind, "data": data}
    )


def document(scene: Scene) -> str:
    found = scene.get(scene.core("configmaps", "main-security")) or {}
    return str(found.get("data", {}).get("security.yaml", ""))


def uids(scene: Scene) -> list[str]:
    return sorted(pod["metadata"]["uid"] for pod in scene.pods())


def nudge(scene: Scene) -> None:
    """Secrets are not watched: have the operator look now."""
    looks = int(scene.cluster()["metadata"].get("annotations", {}).get("looks", "0"))
    scene.merge(
        scene.path("brokerclusters", "main"),
        {"metadata": {"annotations": {"looks": str(looks + 1)}}},
    )


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


async def test_keys_and_roles_are_followed_and_a_key_that_is_missing_restarts_nobody(
    scene: Scene, cluster_etcd: EtcdProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cluster's own key is made and kept; other roles change the ConfigMap alone; a roll
    waits for the tokens' key and then goes on."""
    secret = b"0123456789abcdef-hush-hush-hush-0123456789abcdef"

    async with serving(scene, cluster_etcd, auth=AUTH) as (brokers, operator):
        path = scene.path("brokerclusters", "main")
        await until(
            "the missing key is named",
            lambda: degraded(scene).get("reason") == "TokenKeyMissing",
            TIMEOUT_S,
        )
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
            lambda: (
                yaml.safe_load(document(scene))["authorization"]["superUserRoles"]
                == ["admin", "root"]
            ),
            TIMEOUT_S,
        )
        await settled(operator)
        assert (uids(scene), (scene.stateful_set() or {})["spec"]["template"]) == (
            before,
            template,
        )

        scene.delete(scene.core("secrets", "tokens"))
        scene.merge(path, {"spec": {"config": {"moves_parallel_max": 9}}})
        await until(
            "the missing key is named again",
            lambda: degraded(scene)["reason"] == "TokenKeyMissing",
            TIMEOUT_S,
        )
        await settled(operator)
        assert (uids(scene), (scene.stateful_set() or {})["spec"]["template"]) == (
            before,
            template,
        )
        scene.merge(path, {"spec": {"replicas": 2}})
        await until("another broker is made", lambda: len(uids(scene)) == 2, TIMEOUT_S)
        await settled(operator)
        assert (scene.stateful_set() or {})["spec"]["template"] == template, (
            "who comes or comes back now starts as the others did"
        )
        await brokers.register("main-broker-1")
        both = uids(scene)
        make_secret(scene, "tokens", secret_key=secret)
        nudge(scene)
        await until(
            "it goes on",
            lambda: len(uids(scene)) == 2 and not set(both) & set(uids(scene)),
            TIMEOUT_S,
        )
        assert (scene.stateful_set() or {})["spec"]["template"] != template

        scene.merge(scene.core("secrets", "main-internal"), {"data": {"internal.key": "eA=="}})
        nudge(scene)
        await until("another one is made", lambda: len(internal_key(scene)) > 40, TIMEOUT_S)
        assert internal_key(scene) != own
        await until("it is reported", lambda: scene.events("DriftCorrected"), TIMEOUT_S)
        another = internal_key(scene)
        wanted = (scene.get(scene.core("secrets", "main-internal")) or {})["metadata"][
            "annotations"
        ]["magnetar.io/key-id"]
        scene.merge(
            path, {"metadata": {"annotations": {"magnetar.io/rotate-internal-key": wanted}}}
        )
        await until("a rotation begins", lambda: scene.events("KeyRotation"), TIMEOUT_S)
        signing, upcoming = secret_keys("internal.key", base64.b64decode(internal_key(scene)))
        assert signing.secret == base64.b64decode(another)
        assert upcoming != signing
        await settled(operator)
        seen = visible(scene)
        for key in (
            secret.decode(),
            base64.b64encode(secret).decode(),
            own,
            internal_key(scene),
        ):
            assert key not in seen
    output = capsys.readouterr()
    assert "hush" not in output.out + output.err


async def test_a_concurrent_rotation_by_another_operator_is_not_overwritten(
    scene: Scene, cluster_etcd: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A former leader whose pass has stood still between reading and writing: the API server
    refuses its step, and the next pass reads again."""
    path, secret = scene.path("brokerclusters", "main"), scene.core("secrets", "main-internal")
    theirs, tries = b"the upcoming key of the other one", 0

    def late(
        found: InternalKeys, requested: str, now_ms: int, draw: Callable[[], bytes]
    ) -> tuple[InternalKeys, str]:
        nonlocal tries
        if requested == found.id:
            tries += 1
            if tries == 1:
                begun = InternalKeys((found.keys[0], theirs), Phase.TRUSTING, now_ms)
                cluster = parsed(scene.cluster(), BrokerCluster)
                scene.merge(secret, {"data": internal_secret(cluster, begun)["data"]})
        return advanced(found, requested, now_ms, draw)

    make_secret(scene, "tokens", secret_key=b"0123456789abcdef0123456789abcdef")
    monkeypatch.setattr(client_security, "advanced", late)
    async with serving(scene, cluster_etcd, auth=AUTH) as (_, operator):
        await until("it is Ready", lambda: scene.condition(path).get("status") == "True", TIMEOUT_S)
        wanted = (scene.get(secret) or {})["metadata"]["annotations"]["magnetar.io/key-id"]
        scene.merge(
            path, {"metadata": {"annotations": {"magnetar.io/rotate-internal-key": wanted}}}
        )
        await until("the operator has read again", lambda: tries > 1, TIMEOUT_S)
        await settled(operator)
        keys = internal_keys(scene.get(secret) or {})
        assert keys is not None
        assert (keys.phase, keys.keys[1]) == (Phase.TRUSTING, theirs)
        assert not scene.events("KeyRotation"), "it has begun none itself"


async def test_a_certificate_is_taken_watched_and_followed_without_a_restart(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """Missing, mismatched, ending soon, ended, renewed: each is a condition, and no pod is
    touched; TLS itself rolls them, and opens the services."""
    clock = SystemClock()
    authority = make_authority("tests", clock.wall_ms())
    names = (f"main.{scene.namespace}.svc", f"*.main-brokers.{scene.namespace}.svc")

    def files(begun_days_ago: int = 0) -> dict[str, bytes]:
        issued = issue(authority, Subject("main", names), clock.wall_ms() - begun_days_ago * DAY_MS)
        return {"tls_crt": issued.certificate, "tls_key": issued.key}

    def put(**content: bytes) -> None:
        data = {
            file.replace("_", "."): base64.b64encode(value).decode()
            for file, value in content.items()
        }
        scene.merge(scene.core("secrets", "main-tls"), {"data": data})
        nudge(scene)

    def reported(reason: str) -> bool:
        return (
            scene.condition(scene.path("brokerclusters", "main"), "Certificate").get("reason")
            == reason
        )

    async def scenario() -> None:
        async with serving(scene, cluster_etcd):
            path = scene.path("brokerclusters", "main")
            await until(
                "it is Ready", lambda: scene.condition(path).get("status") == "True", TIMEOUT_S
            )
            plain = uids(scene)
            scene.merge(path, {"spec": {"tls": {"secretName": "main-tls"}}})
            await until(
                "the missing secret is named", lambda: reported("TlsSecretMissing"), TIMEOUT_S
            )
            assert "secret main-tls does not exist" in degraded(scene)["message"]
            assert uids(scene) == plain, "brokers that serve are left alone"
            assert "--tls" not in json.dumps((scene.stateful_set() or {})["spec"]["template"]), (
                "and come back as they are"
            )

            make_secret(
                scene, "main-tls", "kubernetes.io/tls", **files() | {"tls_key": files()["tls_key"]}
            )
            nudge(scene)
            await until("the mismatch is named", lambda: reported("TlsSecretUnusable"), TIMEOUT_S)
            assert uids(scene) == plain
            put(**files(), ca_crt=authority.certificate)
            await until(
                "brokers have TLS",
                lambda: uids(scene) not in ([], plain) and reported("AsDesired"),
                TIMEOUT_S,
            )
            await until(
                "it is Ready", lambda: scene.condition(path).get("status") == "True", TIMEOUT_S
            )
            service = scene.get(scene.core("services", "main")) or {}
            assert [port["port"] for port in service["spec"]["ports"]] == [6650, 8080, 6651, 8443]
            assert (
                scene.cluster()["status"]["endpoints"]["serviceUrlTls"]
                == f"pulsar+ssl://main.{scene.namespace}.svc:6651"
            )
            assert parse_document(document(scene)).internal_ca_file == "/etc/magnetar/tls/ca.crt"

            scene.create("TransactionCoordinator", "tx", {"clusterRef": {"name": "main"}})
            coordinators = scene.path("transactioncoordinators", "tx")
            await until(
                "names of coordinators are missed",
                lambda: (
                    scene.condition(coordinators, "Certificate").get("reason")
                    == "CertificateLacksNames"
                ),
                TIMEOUT_S,
            )

            before = uids(scene)
            put(**files(begun_days_ago=355))
            await until("it ends soon", lambda: reported("CertificateExpiresSoon"), TIMEOUT_S)
            assert scene.condition(path)["status"] == "True", "everything still works"
            put(**files(begun_days_ago=366))
            await until("it has ended", lambda: reported("CertificateExpired"), TIMEOUT_S)
            assert degraded(scene)["reason"] == "CertificateExpired"
            put(**files())
            await until(
                "it is healed",
                lambda: reported("AsDesired") and degraded(scene)["status"] == "False",
                TIMEOUT_S,
            )
            assert uids(scene) == before
            for reason in ("CertificateExpiresSoon", "CertificateExpired"):
                await until(f"an Event {reason}", lambda reason=reason: scene.events(reason))  # type: ignore[misc]

    await scenario()
