"""`magnetar report` takes everything but secrets: some are planted wherever one could hide, and
searched for in the archive."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.cli.failures import Refused
from magnetar.cli.kubernetes import Kubernetes, Manifest
from magnetar.cli.redaction import REMOVED, is_secret_name, redacted, redacted_text
from magnetar.cli.report import run_report
from magnetar.cli.screen import OutputFormat, Screen

WORD = "hunter2-hunter2"
ENCODED = base64.b64encode(WORD.encode()).decode()
TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhZG1pbiJ9.c2lnbmF0dXJl"
KEY = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIPlanted\n-----END EC PRIVATE KEY-----"
AWS = "AKIAIOSFODNN7EXAMPLE"
PLANTED = (WORD, ENCODED, TOKEN, "MHcCAQEEIPlanted", AWS)

CLUSTER = {
    "kind": "BrokerCluster",
    "metadata": {
        "name": "main",
        "managedFields": [{"manager": WORD}],
        "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": json.dumps({"password": WORD}),
            "owner": "team-a",
        },
    },
    "spec": {
        "etcd": {"external": {"endpoints": [f"http://root:{WORD}@etcd:2379"]}},
        "config": {"proxy_password": WORD},
    },
    "status": {"conditions": [{"type": "Ready", "message": "brokers are ready", "status": "True"}]},
}
POD = {
    "kind": "Pod",
    "metadata": {
        "name": "main-broker-0",
        "namespace": "shop",
        "labels": {"app.kubernetes.io/component": "broker"},
    },
    "spec": {
        "containers": [
            {
                "name": "broker",
                "args": ["broker", f"--token={TOKEN}", f"--password={WORD}"],
                "env": [
                    {"name": "S3_SECRET_ACCESS_KEY", "value": WORD},
                    {"name": "MAGNETAR_KEEP_ALIVE_S", "value": "20"},
                    {
                        "name": "TOKEN",
                        "valueFrom": {"secretKeyRef": {"name": "broker-token", "key": "token"}},
                    },
                ],
            }
        ],
        "volumes": [{"name": "tls", "secret": {"secretName": "main-etcd-broker"}}],
    },
    "status": {"containerStatuses": [{"name": "broker", "restartCount": 1}]},
}
SECRET = {
    "kind": "Secret",
    "metadata": {"name": "planted"},
    "data": {"password": ENCODED},
    "stringData": {"token": TOKEN},
}
LOG = "\n".join(
    [
        f"connecting with password={WORD} to the store",
        f"Authorization: Bearer {TOKEN}",
        f'{{"event": "login", "secret": "{WORD}", "user": "ann"}}',
        f"aws_access_key_id = {AWS}",
        KEY,
        "bundle public/default/0x00000000_0x40000000 is Owned",
    ]
)
STATUS = {"bundles": [{"bundle": "public/default/0x0_0x4", "state": "Releasing"}], "brokers": []}


METRICS = """# TYPE pulsar_rate_in gauge
pulsar_rate_in{cluster="standalone"} 1.0
pulsar_rate_in{cluster="standalone",namespace="a/b",topic="persistent://a/b/orders"} 2.0
"""


class Planted(Kubernetes):
    """A Kubernetes in which everything holds secrets, and one part is forbidden."""

    def request(
        self,
        method: str,
        path: str,
        query: dict[str, Any] | None = None,
        body: Manifest | None = None,
        content_type: str = "",
    ) -> str:
        assert (method, body, content_type) == ("GET", None, ""), "nothing is changed"
        plural = path.rpartition("/")[2]
        if path == "/version":
            return json.dumps({"gitVersion": "v1.34.0"})
        if plural == "log":
            assert query is not None
            assert query["tailLines"] == 100
            return LOG
        if plural == "metrics":
            return METRICS
        if "/proxy/" in path:
            return json.dumps(STATUS if plural == "status" else {"token": TOKEN, "path": path})
        if plural == "configmaps":
            raise Refused(403, f"configmaps is forbidden for token={TOKEN}")
        assert plural != "secrets", "secrets are never asked for"
        items: dict[str, list[Any]] = {
            "pods": [POD], "brokerclusters": [CLUSTER],
            "events": [{"message": f"failed with password: {WORD}"}],
        }  # fmt: skip
        return json.dumps({"items": items.get(plural, [SECRET])})


def test_planted_secrets_are_not_in_the_archive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All parts are there, what is not secret too; what could not be had is named."""
    target, screen = tmp_path / "r.tar.gz", Screen(OutputFormat.JSON, file=io.StringIO())
    assert run_report(Planted("shop"), screen, target, "magnetar-system", 100) == 0
    with tarfile.open(target) as archive:
        files = {
            entry.name.partition("/")[2]: archive.extractfile(entry).read().decode()
            for entry in archive
        }  # type: ignore[union-attr]
    everything = "\n".join(files.values())
    # a broker may have a hundred thousand series of topics
    assert 'pulsar_rate_in{cluster="standalone"} 1.0' in files["brokers/main-broker-0/metrics.txt"]
    assert "orders" not in everything
    for secret in PLANTED:
        assert secret not in everything
    assert {
        "README.txt", "versions.json", "resources/brokerclusters.json", "pods.json", "events.json", "logs/main-broker-0.broker.log",
        "logs/main-broker-0.broker.previous.log", "brokers/main-broker-0/status.json", "brokers/main-broker-0/metrics.txt",
        "brokers/main-broker-0/explain-public_default_0x0_0x4.json", "missing.txt",
    } <= set(files)  # fmt: skip
    assert "objects/configmaps.json: configmaps is forbidden" in files["missing.txt"]
    for kept in (
        "team-a",
        "brokers are ready",
        "is Owned",
        "MAGNETAR_KEEP_ALIVE_S",
        "broker-token",
        "main-etcd-broker",
        '"user": "ann"',
    ):
        assert kept in everything
    assert "versions and resources" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "S3_SECRET_ACCESS_KEY",
        "apiKey",
        "tokenValue",
        "aws_secret",
        "clientSecret",
        "AUTHORIZATION",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "secretName",
        "tokenExpirationSeconds",
        "passwordFile",
        "secretRef",
        "tokens_per_s_limit_kind",
        "keepAlive",
    ],
)
def test_names_of_other_things(name: str) -> None:
    assert not is_secret_name(name)


@given(st.text(max_size=60))
def test_text_without_secrets_is_left_or_removed_once(text: str) -> None:
    once = redacted_text(text)
    assert redacted_text(once) == once


def test_documents_keep_their_shape() -> None:
    assert redacted(SECRET) == {
        "kind": "Secret", "metadata": {"name": "planted"}, "data": {"password": REMOVED, "token": REMOVED},
    }  # fmt: skip
    assert redacted({"automountServiceAccountToken": False, "list": [1, None, "x"]}) == {
        "automountServiceAccountToken": False, "list": [1, None, "x"],
    }  # fmt: skip


def test_a_broker_without_plain_ports_is_asked_by_https(tmp_path: Path) -> None:
    asked: list[str] = []

    class Closed(Planted):
        def request(self, method: str, path: str, *rest: Any) -> str:  # type: ignore[override]
            if "/proxy/" in path:
                asked.append(path)
            answer = super().request(method, path, *rest)
            closed = '"app.kubernetes.io/component": "broker", "magnetar.io/plain": "closed"'
            return answer.replace('"app.kubernetes.io/component": "broker"', closed)

    target, screen = tmp_path / "r.tar.gz", Screen(OutputFormat.JSON, file=io.StringIO())
    assert run_report(Closed("shop"), screen, target, "magnetar-system", 100) == 0
    of_broker = [path for path in asked if "/pods/" in path]
    assert of_broker
    assert {path.partition("/proxy/")[0] for path in of_broker} == {
        "/api/v1/namespaces/shop/pods/https:main-broker-0:8443"
    }
