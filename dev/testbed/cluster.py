"""A cluster of real brokers on a real etcd.

Owns: `Cluster`: three broker processes over one volume directory, finding owners, waiting for
health, changing cordons; failures show its log dump. Imports: dev's processes and proxies, the etcd
of the contract tests, metadata. Invariants: only processes started here are signalled, by their own
handle; every wait has a deadline and says what it waited for.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from dev.ports import free_port
from dev.server_process import HOST, ServerProcess
from dev.tcp_proxy import TcpProxy
from dev.testbed.etcd_server import EtcdServer
from magnetar.clock import SystemClock
from magnetar.errors import StoreUnavailable
from magnetar.metadata import keys
from magnetar.metadata.backends.etcd import EtcdStore
from magnetar.metadata.records import CordonRecord
from magnetar.names import BundleName, TopicName

LEASE_S = 3.0
"""The shortest lease that the design allows: detection is most of what these tests wait for."""
FRONT = "127.0.0.2"
HTTP_TIMEOUT_S = 60.0
PATIENCE_S = 120.0
"""How long a machine that is busy with other things may take for anything: a wait ends when what
it waits for is there, hardly ever by this."""
MOVED, UNAVAILABLE = 307, 503
"""Another broker has the bundle by now; it changes hands for longer than a broker lets a request
wait."""
POLL_S = 0.05
DUMP_LINES = 60
SETTINGS = {
    "MAGNETAR_LEASE_TTL_S": str(LEASE_S),
    # Small files, so that rolls, checkpoints and manifests take part in what these tests do.
    "MAGNETAR_MAX_MESSAGE_BYTES": str(1 << 20),
    "MAGNETAR_LOG_FILE_BYTES": str(4 << 20),
    "MAGNETAR_CHECKPOINT_FILES_MAX": "1",
}
AT_REST_S = 6.0
"""Longer than the leader waits between two plans."""
STILL = {"MAGNETAR_LOADBALANCERSHEDDINGENABLED": "false"}
"""For tests that say where a bundle is: nobody moves it but they."""


def wait_for(what: str, reached: Callable[[], bool], timeout_s: float = PATIENCE_S) -> float:
    """Poll until `reached`; the seconds it took. Raises AssertionError naming `what`."""
    started = time.monotonic()
    while not reached():
        assert time.monotonic() - started < timeout_s, f"{what}: not within {timeout_s:.1f} s"
        time.sleep(POLL_S)
    return time.monotonic() - started


def request(
    method: str, url: str, timeout_s: float = HTTP_TIMEOUT_S, *, body: object = None
) -> tuple[int, Any]:
    """Status and decoded JSON body (None if there is none); refusals are returned, not raised.
    `body` is sent as JSON. Raises OSError without an answer."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(
        url, data, {"Content-Type": "application/json"} if data else {}, method=method
    )
    try:
        with urllib.request.urlopen(asked, timeout=timeout_s) as answer:
            text, status = answer.read(), int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            text, status = error.read(), error.code
    except http.client.HTTPException as error:
        raise OSError(f"{url}: {error!r}") from error
    return status, json.loads(text) if text else None


class Cluster:
    """etcd and brokers `broker-0`, `broker-1`, ...; `start` first, `stop` last."""

    def __init__(
        self,
        directory: Path,
        brokers: int = 3,
        *,
        members: int = 1,
        gated: bool = False,
        fronted: bool = False,
        external: bool = False,
        volume: str = "",
        environment: dict[str, str] | None = None,
        program: Sequence[str] = ("magnetar",),
    ) -> None:
        """`members` of etcd; with `gated` each broker reaches the first of them through a proxy of
        its own, `gates[name]`.

        With `fronted` clients reach each broker through `fronts[name]`, at another address of the
        loopback; with `external` only those that name the listener `external` do. `volume` "" is a
        directory. `program` as in `ServerProcess`.
        """
        self.directory = directory
        self._program = program
        self._balances = not STILL.items() <= (environment or {}).items()
        self.members = [EtcdServer(directory / f"etcd-{number}") for number in range(members)]
        if members > 1:
            EtcdServer.form_cluster(self.members)
        names = [f"broker-{number}" for number in range(brokers)]
        self.gates = {
            name: TcpProxy(HOST, free_port(), self.members[0].address) for name in names if gated
        }
        host = FRONT if fronted else HOST
        self.brokers = {
            name: ServerProcess(
                directory,
                name=name,
                store=self._store_of(name),
                volume=volume,
                environment={**SETTINGS, **(environment or {})},
                advertise=host,
                listener=FRONT if external else "",
                program=program,
            )
            for name in names
        }
        self.fronts = {
            name: tuple(
                TcpProxy(FRONT, port, (HOST, port))
                for port in (broker.broker_port, broker.http_port)
            )
            for name, broker in self.brokers.items()
            if fronted or external
        }

    def _store_of(self, name: str) -> str:
        gate = self.gates.get(name)
        addresses = (
            [(gate.host, gate.port)] if gate else [member.address for member in self.members]
        )
        return "etcd://" + ",".join(f"{host}:{port}" for host, port in addresses)

    @property
    def etcd(self) -> EtcdServer:
        """The first member."""
        return self.members[0]

    def coordinator(
        self, number: int, environment: Mapping[str, str], advertise: str = HOST
    ) -> ServerProcess:
        """A transaction coordinator of that number beside the brokers, not started; `advertise`
        as in `ServerProcess`."""
        host, port = self.etcd.address
        return ServerProcess(
            self.directory,
            name=f"tx-coordinator-{number}",
            store=f"etcd://{host}:{port}",
            environment={**environment},
            advertise=advertise,
            role="coordinator",
            program=self._program,
        )

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything at once and wait until all is at rest."""
        for member in self.members:
            member.start(wait=False)
        for member in self.members:
            member.wait_ready()
        for proxy in self._proxies():
            proxy.start()
        for broker in self.brokers.values():
            broker.start(wait=False)
        for broker in self.brokers.values():
            broker.wait_ready()
        self.wait_at_rest()

    def repair(self) -> None:
        """Heal all gates, start what does not run, lift all cordons, and wait until all is at
        rest."""
        for proxy in self._proxies():
            proxy.heal()
        for broker in self.brokers.values():
            if not broker.running:
                broker.start()
        for name in self.brokers:
            self.uncordon(name)
        self.wait_at_rest()

    def stop(self) -> None:
        """End all processes, brokers in parallel and without a drain: nobody is left to take
        over."""
        for broker in self.brokers.values():
            if broker.running:
                broker.kill()
        for proxy in self._proxies():
            proxy.stop()
        for member in self.members:
            member.kill()

    def _proxies(self) -> list[TcpProxy]:
        return [*self.gates.values(), *(proxy for front in self.fronts.values() for proxy in front)]

    @property
    def entry(self) -> str:
        """The broker that clients are given, which no test hurts: a client given several tries
        a dead one again and again."""
        return next(reversed(self.brokers))

    @property
    def service_url(self) -> str:
        return self.brokers[self.entry].service_url

    # --- questions --------------------------------------------------------------------------------

    def status(self, name: str) -> dict[str, Any] | None:
        """What a broker sees of the cluster; None while it does not answer."""
        try:
            status, body = request("GET", f"{self.brokers[name].http_url}/magnetar/v1/status")
        except OSError:
            return None
        return dict(body) if status == 200 else None

    def owner(self, topic: str) -> str:
        """Name of the broker that serves a topic, as `entry` reports."""
        url = f"{self.brokers[self.entry].http_url}/lookup/v2/topic/persistent/public/default/{quote(topic)}"
        found: list[tuple[int, Any]] = []

        def answered() -> bool:
            found.append(request("GET", url))
            return found[-1][0] != UNAVAILABLE

        wait_for(f"{self.entry} knows who serves {topic}", answered)
        status, body = found[-1]
        assert status == 200, (status, body)
        return next(
            name for name, broker in self.brokers.items() if broker.service_url == body["nativeUrl"]
        )

    def record(self, topic: str) -> dict[str, Any]:
        """What `entry` knows of the topic's bundle: state, owner, epoch."""
        status = self.status(self.entry)
        assert status is not None, f"{self.entry} does not answer"
        return next(
            row
            for row in status["bundles"]
            if row["state"] != "Deleted"  # split; the record stays for a while
            and BundleName.parse(row["bundle"]).contains(TopicName.parse(topic))
        )

    def owned_by(self, name: str) -> list[str]:
        """Bundles that `entry` sees in the hands of any incarnation of `name`."""
        status = self.status(self.entry)
        assert status is not None, f"{self.entry} does not answer"
        return [
            row["bundle"] for row in status["bundles"] if row["owner"].rpartition(".")[0] == name
        ]

    def counts(self) -> dict[str, int]:
        """How many bundles `entry` sees each broker serve at one moment; nothing is said while
        one is on its way."""
        bundles = self._settled()
        if bundles is None:
            return {}
        owners = [row["owner"].rpartition(".")[0] for row in bundles]
        return {name: owners.count(name) for name in self.brokers}

    def _settled(self) -> list[dict[str, Any]] | None:
        """All bundles as `entry` sees them; None while one is on its way."""
        status = self.status(self.entry)
        assert status is not None, f"{self.entry} does not answer"
        bundles: list[dict[str, Any]] = [
            row for row in status["bundles"] if row["state"] != "Deleted"
        ]
        return bundles if all(row["state"] == "Owned" for row in bundles) else None

    def healthy(self) -> bool:
        """Whether all running brokers see each other serving and every bundle owned by one of
        them."""
        running = {name for name, broker in self.brokers.items() if broker.running}
        for name in running:
            status = self.status(name)
            if (
                status is None
                or {row["broker"] for row in status["brokers"] if row["state"] == "serving"}
                != running
            ):
                return False
            live = {row["incarnation"] for row in status["brokers"]}
            # split; the record stays for a while
            bundles = [row for row in status["bundles"] if row["state"] != "Deleted"]
            if any(row["state"] != "Owned" or row["owner"] not in live for row in bundles):
                return False
        return True

    def wait_healthy(self, timeout_s: float = PATIENCE_S) -> float:
        return wait_for("all brokers see each other and own all bundles", self.healthy, timeout_s)

    def wait_at_rest(self) -> None:
        """Health, and no bundle has changed hands since the last plan of the leader: without a store a
        bundle that is on its way would stay there."""
        seen: set[tuple[str, int]] = set()
        since = time.monotonic()

        def at_rest() -> bool:
            nonlocal seen, since
            bundles = self._settled()
            now = time.monotonic()
            terms = {(row["bundle"], row["epoch"]) for row in bundles or ()}
            if bundles is None or terms != seen:
                seen, since = terms, now
                return False
            rested = now - since >= AT_REST_S or not self._balances
            return rested and self.healthy()  # which asks every broker: not at every look

        wait_for("bundles are where they stay", at_rest)

    def claims(self, name: str) -> list[str]:
        """Incarnations of a broker that have a claim in storage."""
        return [
            found.name
            for found in (self.directory / "volume" / "claims").iterdir()
            if found.name.rpartition(".")[0] == name
        ]

    def incarnation(self, name: str) -> str:
        """The only incarnation of a broker, as soon as its former ones have been fenced."""
        found: list[str] = []

        def is_one() -> bool:
            found[:] = self.claims(name)
            return len(found) == 1

        wait_for(f"one claim of {name}", is_one)
        return found[0]

    # --- acts -------------------------------------------------------------------------------------

    def unload(self, topic: str, destination: str = "") -> str:
        """Move a topic's bundle away from its owner by REST; the owner once the other brokers know
        of its new term.

        By then the leader, who balances bundles, may have moved it again: back, even.
        """
        term = self.record(topic)["epoch"]
        query = f"?destinationBroker={destination}" if destination else ""

        def left() -> bool:
            owner = self.owner(topic)
            if owner == destination:
                return True  # the leader was first
            path = f"/admin/v2/persistent/public/default/{quote(topic)}/unload{query}"
            status, body = request("PUT", f"{self.brokers[owner].http_url}{path}")
            assert status in (204, MOVED, UNAVAILABLE), (status, body)
            return status == 204

        def seen() -> bool:
            record = self.record(topic)
            return record["state"] == "Owned" and (
                record["epoch"] > term or self.owner(topic) == destination
            )

        wait_for(f"{topic} has left its owner", left)
        wait_for(f"{self.entry} knows of the new term of {topic}", seen)
        return self.owner(topic)

    def cordon(self, name: str, drain: bool) -> None:
        """Write a cordon, as the operator does before it scales down."""
        record = CordonRecord(drain=drain, reason="test")
        self._with_store(lambda store: store.put(keys.cordon(name), record.encode()))

    def uncordon(self, name: str) -> None:
        self._with_store(lambda store: store.delete(keys.cordon(name)))

    def _with_store(self, act: Callable[[EtcdStore], Any]) -> None:
        """Do what may be done twice, until etcd has said that it is done."""

        async def run() -> None:
            store = EtcdStore([member.endpoint for member in self.members], clock=SystemClock())
            deadline = time.monotonic() + PATIENCE_S
            try:
                while True:
                    try:
                        await act(store)
                        return
                    except StoreUnavailable:  # another leader, or a busy machine
                        if time.monotonic() > deadline:
                            raise
                        await asyncio.sleep(POLL_S)
            finally:
                await store.close()

        asyncio.run(run())

    def log_dump(self) -> str:
        """The end of every broker's log."""
        parts = []
        for name, broker in self.brokers.items():
            lines = (
                broker.log_path.read_text(errors="replace").splitlines()
                if broker.log_path.exists()
                else []
            )
            parts.append(
                f"--- {name} ({broker.broker_port}), last of {len(lines)} lines\n"
                + "\n".join(lines[-DUMP_LINES:])
            )
        return "\n".join(parts)
