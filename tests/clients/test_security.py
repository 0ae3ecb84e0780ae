"""The official clients at servers that ask them who they are, by TLS."""

from __future__ import annotations

import asyncio
import base64
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest

from dev.certificates import Authority
from dev.secured_server import ADMIN, DOCUMENT, KEY, PASSWORD, asked, token
from dev.server_process import ServerProcess
from dev.testbed.cluster import Cluster, wait_for
from dev.testbed.etcd_server import EtcdServer
from dev.testbed.foreign import Driver, ForeignError
from magnetar.client import Client
from magnetar.security.keys import SecretKey
from tests.clients.conftest import QUIET
from tests.support.secured_clients import Secured

pytestmark = [pytest.mark.slow]

OTHER = SecretKey(b"o" * 32)


def shown(*arguments: str) -> str:
    """Standard output of the command line, which must succeed."""
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def failed(*arguments: str) -> str:
    """Standard error of the command line, which must fail."""
    done = run(*arguments)
    assert done.returncode == 1
    return done.stderr


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "magnetar", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """One server for all tests here."""
    found = Secured(tmp_path_factory.mktemp("secured"))
    with found.process:
        yield found


def test_the_python_client_gets_in_by_token_or_certificate(secured: Secured, topic: str) -> None:
    """Without the right it raises its AuthorizationError. With nothing, a wrong or an expired
    token it tries until its time is over, as it does with Apache Pulsar: it does not read an
    error that comes instead of CONNECTED."""
    certificate = secured.authority.client("admin")
    for good in (
        pulsar.AuthenticationToken(token("admin")),
        pulsar.AuthenticationTLS(str(certificate / "tls.crt"), str(certificate / "tls.key")),
    ):
        client = secured.client(good)
        client.create_producer(topic).send(b"a")
        client.close()
    for wrong in (
        None,
        *map(pulsar.AuthenticationToken, (token("admin", key=OTHER), token("admin", -1))),
    ):
        client = secured.client(wrong, 1)
        with pytest.raises(pulsar.Timeout):
            client.create_producer(topic)
        client.close()
    client = secured.client(pulsar.AuthenticationToken(token("nobody")))
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer(topic)
    client.close()


def test_the_python_client_gets_in_by_password(secured: Secured, topic: str) -> None:
    """Over REST the same header does; a wrong password does neither."""
    client = secured.client(pulsar.AuthenticationBasic(ADMIN, PASSWORD))
    client.create_producer(topic).send(b"a")
    client.close()
    client = secured.client(pulsar.AuthenticationBasic(ADMIN, "wrong"), 1)
    with pytest.raises(pulsar.Timeout):
        client.create_producer(topic)
    client.close()
    trust = ssl.create_default_context(cafile=str(secured.authority.file))
    for password, status in ((PASSWORD, 200), ("wrong", 401)):
        shown = base64.b64encode(f"{ADMIN}:{password}".encode()).decode()
        answer = httpx.get(
            f"{secured.process.https_url}/admin/v2/tenants",
            headers={"Authorization": f"Basic {shown}"},
            verify=trust,
            timeout=120,
        )
        assert answer.status_code == status


def test_our_client_gets_in_by_password(secured: Secured, topic: str) -> None:
    async def main() -> None:
        trust = ssl.create_default_context(cafile=str(secured.authority.file))
        url = secured.process.service_url_tls
        async with Client(url, basic=(ADMIN, PASSWORD), tls=trust) as client:
            producer = await client.create_producer(topic)
            await producer.send(b"a")

    asyncio.run(main())


def test_a_token_that_ends_is_asked_for_again(secured: Secured, topic: str) -> None:
    """Sends go on, each within its time, for longer than the first tokens hold."""
    tokens_shown: list[float] = []

    def fresh() -> str:
        tokens_shown.append(time.monotonic())
        return token("admin", 4)

    client = secured.client(pulsar.AuthenticationToken(fresh))
    producer = client.create_producer(topic)

    def asked_twice() -> bool:
        producer.send(b"a")
        return len(tokens_shown) >= 3

    wait_for("the client was asked for its token twice more", asked_twice)
    client.close()


def test_a_permission_that_is_revoked_ends_producing(secured: Secured, topic: str) -> None:
    """The producer is gone from the topic, and a client that comes back for it is refused."""
    secured.permit("writer", "produce")
    client = secured.client(pulsar.AuthenticationToken(token("writer")))
    client.create_producer(topic).send(b"a")
    with pytest.raises(pulsar.AuthorizationError):
        client.subscribe(topic, "s")
    stats = f"/admin/v2/persistent/public/default/{topic}/stats"
    assert len(secured.rest("GET", stats)["publishers"]) == 1
    secured.permit("writer")
    wait_for("the producer is gone", lambda: not secured.rest("GET", stats)["publishers"])
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer(topic)
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
        # Go, too, tries on when it is not let in
        reported = driver.language == "java" or said == "Authorization"
        refused = client(shown, operation_timeout_ms=60_000 if reported else 1000)
        with pytest.raises(ForeignError) as error:
            refused.producer(topic)
        if reported:
            assert said in f"{error.value.kind} {error.value.message}"
        refused.close()


def test_java_and_go_get_in_by_password(secured: Secured, driver: Driver, topic: str) -> None:
    trust = str(secured.authority.file)
    url = secured.process.service_url_tls
    good = driver.client(url, trust_file=trust, user=ADMIN, password=PASSWORD)
    consumer = good.consumer(topic, "s")
    good.producer(topic).send(b"a")
    assert consumer.receive(1)[0].value == b"a"
    good.close()
    refused = driver.client(
        url, trust_file=trust, user=ADMIN, password="wrong", operation_timeout_ms=1000
    )
    with pytest.raises(ForeignError):
        refused.producer(topic)
    refused.close()


def test_the_command_line_shows_its_token_by_tls(
    secured: Secured, topic: str, tmp_path: Path
) -> None:
    """It makes the token itself, as the guide says."""
    file, key = tmp_path / "token", tmp_path / "key"
    shown("token", "create-secret-key", "--output", str(key))
    assert len(key.read_bytes()) == 32
    assert key.stat().st_mode & 0o077 == 0
    file.write_text(
        shown(
            "token",
            "create",
            "--secret-key",
            str(secured.directory / "key"),
            "--subject",
            "admin",
            "--expires",
            "1h",
        )
    )
    access = ["--token-file", str(file), "--tls-ca", str(secured.authority.file)]
    by_rest = [*access, "--url", secured.process.https_url]
    shown("topics", "create", topic, *by_rest)
    shown(
        "produce", topic, "-m", "hello", *access, "--service-url", secured.process.service_url_tls
    )
    assert "hello" in shown("topics", "peek", topic, *by_rest)
    assert "serving" in shown("status", *by_rest)
    assert "--token-file" in failed("status", *by_rest[2:])


def test_the_command_line_shows_a_user_and_a_password_by_tls(
    secured: Secured, topic: str, tmp_path: Path
) -> None:
    """Over REST and as a client; a wrong password is refused on both, and not repeated."""
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text(f"{PASSWORD}\n")
    wrong.write_text("tell nobody\n")
    trust = ["--tls-ca", str(secured.authority.file), "--user", ADMIN]
    by_rest = [*trust, "--url", secured.process.https_url, "--password-file"]
    as_client = [
        *trust,
        "--service-url",
        secured.process.service_url_tls,
        "--password-file",
    ]
    shown("topics", "create", topic, *by_rest, str(right))
    shown("produce", topic, "-m", "hello", *as_client, str(right))
    taken = ["consume", topic, "-s", "s", "--initial", "earliest", "--count", "1"]
    assert "hello" in shown(*taken, *as_client, str(right))
    assert "hello" in shown("topics", "peek", topic, *by_rest, str(right))
    for command in (["status", *by_rest], ["produce", topic, "-m", "a", *as_client]):
        said = failed(*command, str(wrong))
        assert "wrong password" in said
        assert "tell nobody" not in said


def _together(brokers: list[ServerProcess], authority: Authority) -> bool:
    """Whether each broker sees all of them serve."""
    try:
        seen = [asked(broker, authority, "/magnetar/v1/status")["brokers"] for broker in brokers]
    except OSError:
        return False
    return all(
        len([row for row in rows if row["state"] == "serving"]) == len(brokers) for rows in seen
    )


def _owners(brokers: list[ServerProcess], authority: Authority) -> set[str]:
    """Who serves bundles; nobody while one is on its way."""
    bundles = asked(brokers[0], authority, "/magnetar/v1/status")["bundles"]
    settled = all(row["state"] == "Owned" for row in bundles)
    return {row["owner"] for row in bundles} if settled else set()


@pytest.mark.etcd
def test_a_cluster_without_plain_ports_works_among_itself(tmp_path: Path) -> None:
    """Brokers ask each other by TLS, showing internal tokens; their health check does; a topic's
    partitions are summed up over both."""
    authority = Authority(tmp_path / "ca")
    for name, content in (("key", KEY.secret), ("internal", OTHER.secret)):
        (tmp_path / name).write_bytes(content)
    document = (
        DOCUMENT.format(tmp_path)
        + f"internal: {{keyFile: {tmp_path}/internal, caFile: {authority.file}}}\n"
    )
    (tmp_path / "security.yaml").write_text(document)
    environment = {
        "MAGNETAR_SECURITY": str(tmp_path / "security.yaml"),
        "MAGNETAR_TLS": str(authority.server()),
        "MAGNETAR_PLAIN": "closed",
    }
    etcd = EtcdServer(tmp_path / "etcd")
    store = f"etcd://{etcd.address[0]}:{etcd.address[1]}"
    brokers = [
        ServerProcess(tmp_path, name=f"broker-{number}", store=store, environment=environment)
        for number in range(2)
    ]
    try:
        etcd.start()
        for broker in brokers:
            broker.start(wait=False)
        wait_for("the brokers see each other", lambda: _together(brokers, authority))
        path = "/admin/v2/persistent/public/default/parts"
        asked(brokers[0], authority, f"{path}/partitions", "PUT", 8)
        client = pulsar.Client(
            ",".join(broker.service_url_tls for broker in brokers).replace(",pulsar+ssl://", ","),
            authentication=pulsar.AuthenticationToken(token("admin")),
            tls_trust_certs_file_path=str(authority.file),
            operation_timeout_seconds=60,
            logger=QUIET,
        )
        producer = client.create_producer("parts", batching_enabled=False)
        # Before anything is counted: counters begin again at the next owner of a bundle.
        wait_for("both brokers serve some of it", lambda: len(_owners(brokers, authority)) == 2)
        for number in range(16):
            producer.send(str(number).encode())
        for broker in brokers:
            stats = asked(broker, authority, f"{path}/partitioned-stats")
            assert stats["msgInCounter"] == 16
            assert asked(broker, authority, "/admin/v2/brokers/health") == "ok"
        wait_for("they still do", lambda: len(_owners(brokers, authority)) == 2)
        client.close()
    finally:
        for broker in brokers:
            if broker.running:
                broker.kill()
        etcd.kill()


@pytest.mark.etcd
def test_clients_follow_topics_from_broker_to_broker_by_tls(tmp_path: Path, driver: Driver) -> None:
    """The successor's TLS address comes with the transfer; plain ports are not used: a client
    of TLS never goes to one."""
    authority = Authority(tmp_path / "ca")
    cluster = Cluster(
        tmp_path / "cluster", brokers=2, environment={"MAGNETAR_TLS": str(authority.server())}
    )
    try:
        cluster.start()
        url, topic = cluster.brokers[cluster.entry].service_url_tls, "moved"
        python = pulsar.Client(
            url,
            tls_trust_certs_file_path=str(authority.file),
            operation_timeout_seconds=60,
            logger=QUIET,
        )
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
