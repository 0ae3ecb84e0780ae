"""The official clients at servers that ask them who they are, by TLS."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from dev.certificates import Authority
from dev.server_process import ServerProcess
from magnetar.security.keys import SecretKey
from magnetar.security.tokens import make
from tests.clients.cluster import Cluster
from tests.clients.conftest import QUIET
from tests.clients.foreign import Driver, ForeignError

pytestmark = [pytest.mark.slow]

KEY, OTHER = SecretKey(b"k" * 32), SecretKey(b"o" * 32)
DOCUMENT = """
authentication: {{token: {{secretKeyFile: {0}/key}}, tls: true}}
authorization: {{superUserRoles: [admin]}}
"""
FAILS_MS = 3_000
"""How long clients try that are to be refused."""
REVOKED_S = 30.0


def token(role: str, seconds: float = 3600, key: SecretKey = KEY) -> str:
    """A token for a role, good for so long."""
    return make(key, "HS256", {"sub": role, "exp": time.time() + seconds})


def shown(*arguments: str) -> str:
    """Standard output of the command line, which must succeed."""
    done = subprocess.run([sys.executable, "-m", "magnetar", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Secured:
    """A standalone server with TLS and tokens."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.authority = directory, Authority(directory / "ca")
        (directory / "key").write_bytes(KEY.secret)
        (directory / "security.yaml").write_text(DOCUMENT.format(directory))
        self.process = ServerProcess(
            directory / "server",
            environment={
                "MAGNETAR_SECURITY": str(directory / "security.yaml"),
                "MAGNETAR_TLS": str(self.authority.server(clients=True)),
                "MAGNETAR_PLAIN": "internal",
            },
        )

    def client(self, authentication: Any, timeout_s: int = 20) -> pulsar.Client:
        """The official Python client."""
        return pulsar.Client(
            self.process.service_url_tls,
            authentication=authentication,
            tls_trust_certs_file_path=str(self.authority.file),
            operation_timeout_seconds=timeout_s,
            logger=QUIET,
        )

    def rest(self, method: str, path: str, body: Any = None) -> None:
        """Ask as a super user."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token('admin')}", "Content-Type": "application/json"}
        asked = urllib.request.Request(f"{self.process.https_url}{path}", data, headers, method=method)
        urllib.request.urlopen(asked, timeout=10, context=ssl.create_default_context(cafile=str(self.authority.file))).close()

    def permit(self, role: str, *actions: str) -> None:
        """Grant actions to a role on public/default; none revokes."""
        path = f"/admin/v2/namespaces/public/default/permissions/{role}"
        self.rest("POST" if actions else "DELETE", path, list(actions) or None)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """One server for all tests here."""
    found = Secured(tmp_path_factory.mktemp("secured"))
    found.process.start()
    yield found
    found.process.stop()


def test_the_python_client_gets_in_by_token_or_certificate(secured: Secured, topic: str) -> None:
    """Without the right it raises its AuthorizationError. With nothing, a wrong or an expired token it tries until its time is over, as it does
    with Apache Pulsar: it does not read an error that comes instead of CONNECTED."""
    certificate = secured.authority.client("admin")
    for good in (
        pulsar.AuthenticationToken(token("admin")),
        pulsar.AuthenticationTLS(str(certificate / "tls.crt"), str(certificate / "tls.key")),
    ):
        client = secured.client(good)
        client.create_producer(topic).send(b"a")
        client.close()
    for wrong in (None, *map(pulsar.AuthenticationToken, (token("admin", key=OTHER), token("admin", -1)))):
        client = secured.client(wrong, 1)
        with pytest.raises(pulsar.Timeout):
            client.create_producer(topic)
        client.close()
    client = secured.client(pulsar.AuthenticationToken(token("nobody")))
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer(topic)
    client.close()


def test_a_token_that_ends_is_asked_for_anew(secured: Secured, topic: str) -> None:
    """Sends go on, each within its time, on the connection of the start for longer than the first token holds."""
    shown: list[float] = []

    def fresh() -> str:
        shown.append(time.monotonic())
        return token("admin", 4)

    client = secured.client(pulsar.AuthenticationToken(fresh))
    producer = client.create_producer(topic, send_timeout_millis=20_000)
    until = time.monotonic() + 6
    while time.monotonic() < until:
        producer.send(b"a")
        time.sleep(0.05)
    client.close()
    assert len(shown) >= 3, "at the start and then every other second"


def test_a_permission_that_is_revoked_ends_producing(secured: Secured, topic: str) -> None:
    """The client is refused when it comes back, and its sends fail."""
    secured.permit("writer", "produce")
    client = secured.client(pulsar.AuthenticationToken(token("writer")))
    producer = client.create_producer(topic, send_timeout_millis=FAILS_MS)
    producer.send(b"a")
    with pytest.raises(pulsar.AuthorizationError):
        client.subscribe(topic, "s")
    secured.permit("writer")

    def send_on() -> None:
        deadline = time.monotonic() + REVOKED_S
        while time.monotonic() < deadline:
            producer.send(b"b")

    with pytest.raises(pulsar.PulsarException):
        send_on()
    client.close()


def test_java_and_go_get_in_by_token_and_are_refused_in_their_words(
    secured: Secured, driver: Driver, topic: str, tmp_path: Path
) -> None:
    def client(shown: str, **options: Any) -> Any:
        file = tmp_path / f"token-{len(list(tmp_path.iterdir()))}"
        file.write_text(shown)
        more = {"trust_file": str(secured.authority.file), "token_file": str(file), **options}
        return driver.client(secured.process.service_url_tls, **more)

    good = client(token("admin"))
    consumer = good.consumer(topic, "s")
    good.producer(topic).send(b"a")
    assert consumer.receive(1)[0].value == b"a"
    good.close()
    for shown, said in (
        (token("admin", key=OTHER), "AuthenticationException"),
        (token("admin", -1), "AuthenticationException"),
        (token("nobody"), "Authorization"),
    ):
        refused = client(shown, operation_timeout_ms=1000)
        with pytest.raises(ForeignError) as error:
            refused.producer(topic)
        if driver.language == "java" or said == "Authorization":  # Go, too, tries on when it is not let in
            assert said in f"{error.value.kind} {error.value.message}"
        refused.close()


def test_the_command_line_shows_its_token_by_tls(secured: Secured, topic: str, tmp_path: Path) -> None:
    """It makes the token itself, as the guide says."""
    file, key = tmp_path / "token", tmp_path / "key"
    shown("token", "create-secret-key", "--output", str(key))
    assert len(key.read_bytes()) == 32
    assert key.stat().st_mode & 0o077 == 0
    file.write_text(
        shown("token", "create", "--secret-key", str(secured.directory / "key"), "--subject", "admin", "--expires", "1h")
    )
    access = ["--token-file", str(file), "--tls-ca", str(secured.authority.file)]
    by_rest = [*access, "--url", secured.process.https_url]
    shown("topics", "create", topic, *by_rest)
    shown("produce", topic, "-m", "hello", *access, "--service-url", secured.process.service_url_tls)
    assert "hello" in shown("topics", "peek", topic, *by_rest)
    assert "serving" in shown("status", *by_rest)
    refused = subprocess.run(
        [sys.executable, "-m", "magnetar", "status", *by_rest[2:]], capture_output=True, text=True, timeout=60, check=False
    )
    assert refused.returncode == 1
    assert "--token-file" in refused.stderr


@pytest.mark.etcd
def test_clients_follow_topics_from_broker_to_broker_by_tls(tmp_path: Path, driver: Driver) -> None:
    """The successor's TLS address comes with the hand-over; plain ports are not used: a client of TLS never goes to one."""
    authority = Authority(tmp_path / "ca")
    cluster = Cluster(tmp_path / "cluster", brokers=2, environment={"MAGNETAR_TLS": str(authority.server())})
    try:
        cluster.start()
        url, topic = cluster.brokers[cluster.entry].service_url_tls, "moved"
        python = pulsar.Client(url, tls_trust_certs_file_path=str(authority.file), operation_timeout_seconds=20, logger=QUIET)
        foreign = driver.client(url, trust_file=str(authority.file))
        producer, consumer = python.create_producer(topic), foreign.consumer(topic, "s")
        for number in range(3):
            producer.send(str(number).encode())
            assert consumer.receive(1, ack=True)[0].value == str(number).encode()
            cluster.unload(topic)
        python.close()
        foreign.close()
    finally:
        cluster.stop()
