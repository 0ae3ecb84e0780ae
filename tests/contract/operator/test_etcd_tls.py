"""The etcd that the operator renders, as real processes: its flags, its change from plain to
TLS, brokers at work with their own role."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from aetcd import rpc

from dev.ports import free_port
from dev.server_process import ServerProcess
from dev.testbed.etcd_server import etcd_binary
from magnetar.client import Client
from magnetar.clock import SystemClock
from magnetar.errors import StoreError, StoreUnavailable
from magnetar.metadata import keys
from magnetar.metadata.backends.etcd import EtcdStore
from magnetar.metadata.backends.etcd_tls import TlsFiles
from magnetar.names import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE
from magnetar_operator import names
from magnetar_operator.brokers.desired import desired, identity_of
from magnetar_operator.builders.etcd_set import DATA_PATH, TLS_PATH
from magnetar_operator.builders.etcd_tls import MEMBER
from magnetar_operator.etcd.certificates import Pair, Subject, issue, make_authority
from magnetar_operator.etcd.users import EtcdUsers
from tests.support.samples import DEFAULTS, cluster

CLOCK = SystemClock()
START_TIMEOUT_S = 120.0
OPTIONS_OF_LIFE = ("--initial-cluster=", "--initial-cluster-token=", "--initial-cluster-state=")
pytestmark = [pytest.mark.etcd, pytest.mark.slow]


def rendered() -> tuple[list[str], dict[str, str]]:
    """Flags and environment of the container."""
    children = {identity_of(manifest): manifest for manifest in desired(cluster(), DEFAULTS, 1, {})}
    container = children["StatefulSet", "main-etcd"]["spec"]["template"]["spec"]["containers"][0]
    environment = {item["name"]: item["value"] for item in container["env"] if "value" in item}
    return container["command"][1:], environment


class Keyring:
    """An authority and directories with certificates, laid out as mounted secrets are."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._authority = make_authority("test", CLOCK.wall_ms())

    def __getitem__(self, user: str) -> Path:
        """The directory with the certificate of `user`."""
        directory = self._directory / user
        if not directory.exists():
            directory.mkdir(parents=True)
            hosts = ("localhost", "127.0.0.1") if user == MEMBER else ()
            self.write(directory, issue(self._authority, Subject(user, hosts), CLOCK.wall_ms()))
        return directory

    def write(self, directory: Path, pair: Pair) -> None:
        (directory / AUTHORITY_FILE).write_bytes(self._authority.certificate)
        (directory / CERTIFICATE_FILE).write_bytes(pair.certificate)
        (directory / KEY_FILE).write_bytes(pair.key)

    def context(self, user: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self[user] / AUTHORITY_FILE))
        context.load_cert_chain(self[user] / CERTIFICATE_FILE, self[user] / KEY_FILE)
        return context


class Pod:
    """One member, at addresses of the loopback."""

    def __init__(self, directory: Path, keyring: Keyring, ordinal: int = 0) -> None:
        self.name, self.client, self.peer, self.health = (
            f"main-etcd-{ordinal}",
            free_port(),
            free_port(),
            free_port(),
        )
        self._directory, self._keyring = directory / self.name, keyring
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.client}"

    @property
    def peer_url(self) -> str:
        return f"https://127.0.0.1:{self.peer}"

    def start(self, cluster_of: list[Pod] | None = None) -> None:
        """Start with what is rendered."""
        flags, environment = rendered()
        initial = ",".join(f"{pod.name}={pod.peer_url}" for pod in cluster_of or [self])
        flags = [flag for flag in flags if not flag.startswith(OPTIONS_OF_LIFE)]
        flags += [f"--initial-cluster={initial}", "--log-level=error"]
        flags = list(map(self._here, flags))
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / "log").open("ab") as output:
            self._process = subprocess.Popen(
                [etcd_binary(), *flags],
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
            )

    def _here(self, flag: str) -> str:
        ports = {
            names.ETCD_CLIENT_PORT: self.client,
            names.ETCD_PEER_PORT: self.peer,
            names.ETCD_HEALTH_PORT: self.health,
        }
        places = {
            "$(POD_NAME).main-etcd.shop.svc": "127.0.0.1",
            "$(POD_NAME)": self.name,
            "$(POD_IP)": "127.0.0.1",
            DATA_PATH: str(self._directory),
            TLS_PATH: str(self._keyring[MEMBER]),
        }
        for old, new in places.items():
            flag = flag.replace(old, new)
        # At once and only whole numbers: one of our ports may begin with the digits of theirs.
        flag = re.sub(
            rf":({'|'.join(map(str, ports))})(?!\d)", lambda found: f":{ports[int(found[1])]}", flag
        )
        name, separator, value = flag.partition("=")
        # The pod's own address and the loopback are one here.
        return (
            name + separator + ",".join(dict.fromkeys(value.split(",")))
            if name.endswith("-urls")
            else flag
        )

    def wait_ready(self) -> None:
        """Until the probe says so. Raises AssertionError with the end of its log."""
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.health}/readyz", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                over = self._process.poll() is not None or time.monotonic() > deadline
                assert not over, (self._directory / "log").read_text()[-1500:]
                time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(120)
            self._process = None


@pytest.fixture
def keyring(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path / "keys")


def store(pods: list[Pod], tls: Path | None, timeout_s: float = 60.0) -> EtcdStore:
    files = TlsFiles.in_directory(tls) if tls is not None else None
    return EtcdStore(
        [pod.endpoint for pod in pods], files, clock=CLOCK, request_timeout_s=timeout_s
    )


async def put(pods: list[Pod], tls: Path | None, key: str, timeout_s: float = 60.0) -> None:
    opened = store(pods, tls, timeout_s)
    try:
        await opened.put(key, b"v")
    finally:
        await opened.close()


async def admit(pods: list[Pod], keyring: Keyring) -> int:
    opened = store(pods, keyring[names.OPERATOR_USER])
    try:
        return await EtcdUsers(opened.channels, lambda: None).converge()
    finally:
        await opened.close()


async def addresses(opened: EtcdStore) -> list[str]:
    """Where members expect each other."""
    answer = await opened.channels.call(
        lambda member, patience_s: rpc.ClusterStub(member.channel).MemberList(
            rpc.MemberListRequest(), timeout=patience_s
        ),
        repeatable=True,
    )
    return [url for member in answer.members for url in member.peerURLs]


async def test_clients_without_a_certificate_are_refused(tmp_path: Path, keyring: Keyring) -> None:
    """Only the probe needs neither certificate nor user."""
    pod = Pod(tmp_path, keyring)

    async def scenario() -> None:
        pod.start()
        pod.wait_ready()
        assert await admit([pod], keyring) > 0
        await put([pod], keyring[names.BROKER_USER], keys.LEADER)
        with pytest.raises(StoreUnavailable):
            await put([pod], None, keys.LEADER, timeout_s=0.5)
        pod.wait_ready()

    try:
        await scenario()
    finally:
        pod.stop()


async def test_three_members_trust_each_other_and_no_client_passes_for_one(
    tmp_path: Path, keyring: Keyring
) -> None:
    pods = [Pod(tmp_path, keyring, ordinal) for ordinal in range(3)]

    async def scenario() -> None:
        for pod in pods:
            pod.start(pods)
        for pod in pods:
            await asyncio.to_thread(pod.wait_ready)
        await admit(pods, keyring)
        await put(pods, keyring[names.BROKER_USER], keys.LEADER)
        with pytest.raises(StoreError):
            await put(pods, keyring[names.BROKER_USER], keys.OPERATOR_TERM)
        url = f"{pods[0].peer_url}/members"
        assert await asyncio.to_thread(fetched, url, keyring.context(MEMBER))
        for user in names.ETCD_USERS:
            with pytest.raises(OSError, match=r".*"):
                await asyncio.to_thread(fetched, url, keyring.context(user))

    try:
        await scenario()
    finally:
        for pod in pods:
            pod.stop()


def fetched(url: str, context: ssl.SSLContext) -> bytes:
    with urllib.request.urlopen(url, timeout=60, context=context) as answer:
        content: bytes = answer.read()
        return content


async def test_a_broker_does_its_work_with_the_rights_of_its_role(
    tmp_path: Path, keyring: Keyring
) -> None:
    """Registers, leads, serves, writes checkpoints and drains; its certificate is renewed
    concurrently."""
    pod = Pod(tmp_path, keyring)
    mounted = keyring[names.BROKER_USER]
    broker = ServerProcess(
        tmp_path / "broker",
        name="broker-0",
        store=f"etcd://{pod.endpoint}",
        environment={
            "MAGNETAR_STORE_TLS": str(mounted),
            "MAGNETAR_LEASE_TTL_S": "3",
            "MAGNETAR_LOG_FILE_BYTES": str(4 << 20),
            "MAGNETAR_MAX_MESSAGE_BYTES": str(1 << 20),
        },
    )

    async def scenario() -> None:
        pod.start()
        pod.wait_ready()
        await admit([pod], keyring)
        await asyncio.to_thread(broker.start)
        async with asyncio.timeout(400), Client(broker.service_url) as client:
            producer = await client.create_producer("persistent://public/default/secured")
            consumer = await client.subscribe("persistent://public/default/secured", "s")
            for _ in range(20):
                await producer.send(b"x" * 500_000)
            await consumer.receive()
            keyring.write(
                mounted, issue(keyring._authority, Subject(names.BROKER_USER), CLOCK.wall_ms())
            )
            pod.stop()
            pod.start()
            await asyncio.to_thread(pod.wait_ready)
            await producer.send(b"after")
            other = await client.create_producer("persistent://public/default/another")
            await other.send(b"one more topic needs the store")
            await consumer.unsubscribe()
        await asyncio.to_thread(broker.stop)
        assert "permission denied" not in broker.log_path.read_text()

    try:
        await scenario()
    finally:
        if broker.running:
            broker.kill()
        pod.stop()
