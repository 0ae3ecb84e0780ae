"""Tokens and TLS on a real kubelet: the way that docs/operations.md and examples/security.yaml
describe, under traffic from the official client.

Runs after the quickstart's day and before the version before this one takes the Kubernetes cluster
over.
"""

from __future__ import annotations

import json
import shutil
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
import yaml

from dev.certificates import Authority
from magnetar.cli.rest import HINTS
from magnetar.security.keys import SecretKey
from magnetar.security.tokens import make
from tests.kubernetes.conftest import READ_MS, Node, Traffic

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(1800)]

PLAIN_PORT, NODE_PORT = 31650, 31660
HOSTS = (
    "localhost",
    "main.default.svc",
    "*.main-brokers.default.svc",
    "*.main-coordinators.default.svc",
)
PLAIN_LISTENER = {
    "name": "plain",
    "type": "NodePort",
    "nodePort": PLAIN_PORT,
    "advertisedHost": "127.0.0.1",
}
LISTENER = {
    "name": "outside",
    "type": "NodePort",
    "nodePort": NODE_PORT,
    "tls": True,
    "advertisedHost": "localhost",
}
OPEN_TO_ALL = {
    "anonymousRole": "anybody", "authorization": False, "superUserRoles": ["admin"],
    "tokens": {"secretKey": {"name": "main-tokens", "key": "secret.key"}},
}  # fmt: skip
KEY = SecretKey(b"the secret key of tests on a node")
TOPIC = "persistent://shop/orders/checked"


class Secured:
    """What a user has in hand who secures the cluster `main`."""

    def __init__(self, node: Node, directory: Path) -> None:
        self.node, self.authority = node, Authority(directory / "ca", below=True)
        (directory / "secret.key").write_bytes(KEY.secret)
        node.run(
            "create", "secret", "generic", "main-tokens", f"--from-file={directory / 'secret.key'}"
        )

    def put_certificate(self, *, key_of: Path | None = None) -> Path:
        """Put a new certificate, with its chain, into the secret; with the key of another one if
        it is given. Its directory."""
        made = self.authority.server(f"server-{time.monotonic_ns()}", HOSTS, clients=True)
        if key_of is not None:
            shutil.copy(key_of / "tls.key", made)
        files = [f"--from-file={made / name}" for name in ("tls.crt", "tls.key", "ca.crt")]
        manifest = self.node.run(
            "create",
            "secret",
            "generic",
            "main-tls",
            "--type=kubernetes.io/tls",
            *files,
            "--dry-run=client",
            "-o",
            "json",
        )
        self.node.run("apply", "-f", "-", given=manifest)
        self.node.run(
            "annotate", "brokercluster", "main", f"tests/look={time.monotonic_ns()}", "--overwrite"
        )
        return made

    def shown(self, role: str) -> dict[str, Any]:
        """What a client of this role gives the official client."""
        return {
            "authentication": pulsar.AuthenticationToken(token(role)),
            "tls_trust_certs_file_path": str(self.authority.file),
            "tls_validate_hostname": True,
        }

    def client(self, role: str) -> pulsar.Client:
        return pulsar.Client(
            f"pulsar+ssl://localhost:{NODE_PORT}",
            operation_timeout_seconds=120,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            **self.shown(role),
        )

    def served(self, port: int) -> str:
        """The certificate that is shown there, as PEM; "" while nobody listens."""
        try:
            return ssl.get_server_certificate(("localhost", port), timeout=30)
        except OSError:
            return ""  # a node port leads to a broker that was just replaced


def token(role: str) -> str:
    return make(KEY, "HS256", {"sub": role, "exp": time.time() + 3600})


@pytest.fixture(scope="module")
def secured(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Key and certificate are in their secrets; the cluster does not use them yet."""
    if not node.tools.local:
        pytest.skip("clients come by a node port of the local node")
    found = Secured(node, tmp_path_factory.mktemp("secured"))
    found.put_certificate()
    yield found
    node.run("delete", "topicnamespace", "orders", "--ignore-not-found")
    node.run("delete", "brokercluster", "main", "--ignore-not-found", "--wait=true")
    node.run("delete", "secret", "main-tokens", "main-tls")


def _patch(node: Node, **spec: Any) -> None:
    node.run("patch", "brokercluster", "main", "--type=merge", "-p", json.dumps({"spec": spec}))


def _example() -> str:
    """examples/security.yaml, with the listener that clients of this test come by, and two
    brokers."""
    cluster, namespace = yaml.safe_load_all(Path("examples/security.yaml").read_text())
    cluster["spec"] |= {"listeners": [LISTENER], "replicas": 2}
    return yaml.safe_dump_all([cluster, namespace])


def _settled(node: Node) -> float:
    """Wait until every broker is as the spec says; seconds."""

    def is_settled() -> bool:
        found = node.get("brokercluster", "main")
        status = found.get("status", {})
        return (
            status.get("observedGeneration") == found["metadata"]["generation"]
            and node.condition("brokercluster", "main", "Ready") == "True"
            and not status.get("pendingRestarts")
        )

    return node.wait("brokers are as the spec says", is_settled)


def _reason(node: Node, condition: str) -> str:
    found = node.get("brokercluster", "main").get("status", {}).get("conditions", [])
    return next((str(entry["reason"]) for entry in found if entry["type"] == condition), "")


@pytest.mark.usefixtures("secured")
def test_an_open_cluster_gets_tokens_and_tls_without_a_failed_send(node: Node) -> None:
    """Everybody is still let in concurrently, so clients that know nothing of it go on."""
    _patch(node, replicas=2, listeners=[PLAIN_LISTENER])
    _settled(node)
    topics = [
        f"persistent://public/default/open-{time.monotonic_ns()}-{number}" for number in range(3)
    ]
    with Traffic(f"pulsar://127.0.0.1:{PLAIN_PORT}", topics) as traffic:
        node.wait("traffic flows", lambda: traffic.total() > 100)
        _patch(
            node,
            tls={"secretName": "main-tls"},
            auth=OPEN_TO_ALL,
            listeners=[PLAIN_LISTENER, LISTENER],
        )
        took_s = _settled(node)
        before = traffic.total()
        node.wait("traffic goes on", lambda: traffic.total() > before + 200)
        print(
            f"\ntokens and TLS after {took_s:.0f} s, longest pause of one topic "
            f"{traffic.longest_gap_s * 1000:.0f} ms"
        )
        assert traffic.failed == []
        traffic.verify()


def test_the_example_closes_it_and_certificates_come_and_go_under_traffic(
    node: Node, secured: Secured
) -> None:
    """Open -> Internal -> Closed, a renewed certificate and one that is none: clients with token
    and chain send all the while; others are refused."""
    topics = [
        f"persistent://public/default/secured-{time.monotonic_ns()}-{number}" for number in range(3)
    ]
    with Traffic(
        f"pulsar+ssl://localhost:{NODE_PORT}", topics, **secured.shown("admin")
    ) as traffic:
        node.wait("traffic flows", lambda: traffic.total() > 100)
        node.run("apply", "-f", "-", given=_example())
        took = {"Internal": _settled(node)}
        _patch(node, tls={"plain": "Closed"})
        took["Closed"] = _settled(node)

        before = traffic.total()
        node.wait("a certificate is shown", lambda: secured.served(NODE_PORT + 1) != "")
        was = secured.served(NODE_PORT + 1)
        sound = secured.put_certificate()
        took["followed"] = node.wait(
            "the renewed certificate is shown",
            lambda: secured.served(NODE_PORT + 1) not in ("", was),
        )
        secured.put_certificate(key_of=sound)
        took["reported"] = node.wait(
            "a key of another is reported",
            lambda: _reason(node, "Certificate") == "TlsSecretUnusable",
        )
        secured.put_certificate()
        node.wait(
            "it is healed", lambda: node.condition("brokercluster", "main", "Ready") == "True"
        )
        node.wait("traffic goes on", lambda: traffic.total() > before + 200)
        print(f"\nseconds {took}; longest pause of one topic {traffic.longest_gap_s * 1000:.0f} ms")
        assert traffic.failed == []
        traffic.verify()


def test_roles_do_what_they_may(node: Node, secured: Secured) -> None:
    """Permissions of the example's TopicNamespace hold, and the command line in a pod shows a
    token."""
    node.wait(
        "TopicNamespace Ready",
        lambda: node.condition("topicnamespace", "orders", "Ready") == "True",
    )
    writer, reader = secured.client("orders-service"), secured.client("billing-service")
    sent = writer.create_producer(TOPIC, send_timeout_millis=READ_MS).send(b"order")
    assert (
        reader.create_reader(TOPIC, pulsar.MessageId.earliest)
        .read_next(READ_MS)
        .message_id()
        .entry_id()
        == sent.entry_id()
    )
    with pytest.raises(pulsar.AuthorizationError):
        reader.create_producer(TOPIC)
    with pytest.raises(pulsar.AuthorizationError):
        writer.subscribe(TOPIC, "s")
    writer.close()
    reader.close()

    cli = (
        "cat > /tmp/token; magnetar status --url https://main.default.svc:8443 --tls-ca "
        "/etc/magnetar/tls/ca.crt"
    )

    def said(options: str, shown: str) -> str:
        return node.run(
            "exec",
            "-i",
            "main-broker-0",
            "--",
            "sh",
            "-c",
            f'{cli} {options} 2>&1; echo "exit $?"',
            given=shown,
        )

    with_token = "--token-file /tmp/token"
    admitted = said(with_token, token("admin"))
    assert "healthy" in admitted
    assert admitted.endswith("exit 0\n")
    stranger = make(
        SecretKey(b"a key that the cluster does not know"),
        "HS256",
        {"sub": "admin", "exp": time.time() + 3600},
    )
    refusals = {
        HINTS[401]: [said("", ""), said(with_token, stranger)],
        HINTS[403]: [said(with_token, token("orders-service"))],
    }
    for hint, refused in refusals.items():
        for text in refused:
            assert hint in text, (
                "refused by the server for this reason, not by a command that failed otherwise"
            )
            assert not text.endswith("exit 0\n")
            assert "healthy" not in text
