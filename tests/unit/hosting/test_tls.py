"""TLS: messages pass by it, certificates are replaced while it is spoken, and who only pretends
to shake hands costs nothing."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop
from fastapi import FastAPI, Request

from dev.certificates import Authority
from magnetar.broker.incarnation import Broker
from magnetar.client import Client
from magnetar.errors import InvalidRequest, NotAuthorized
from magnetar.hosting.access import AccessOptions
from magnetar.hosting.http import CERTIFICATE, HttpListener
from magnetar.hosting.security.authentication import Authenticator
from magnetar.hosting.tls import PeerCertificate, TlsCertificates, TlsPort
from magnetar.metadata import keys
from magnetar.metadata.records import CoordinatorClaimRecord, CoordinatorSetRecord
from magnetar.names import COORDINATOR_TOPIC
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from tests.support.brokers import CLOCK, HOST, TOPIC, Peer, Type, open_peer, running_broker
from tests.support.replaced_files import replace_file
from tests.support.secured import DOCUMENT, appoint, authenticator, show, token

LOOPS = [asyncio.run, uvloop.run]


@asynccontextmanager
async def tls_broker(
    directory: Path, certificates: Path, security: Authenticator | None = None
) -> AsyncIterator[tuple[Broker, TlsPort]]:
    admission = TlsPort(TlsCertificates(certificates))
    async with running_broker(directory, tls=admission, security=security) as broker:
        yield broker, admission


@pytest.mark.parametrize("run_on", LOOPS)
def test_messages_pass_by_tls_and_lookups_stay_on_it(tmp_path: Path, run_on: Any) -> None:
    """Small ones and ones that fill many TLS records, on the loop of tests and on that of
    servers."""
    authority = Authority(tmp_path / "ca")

    async def run() -> None:
        async with tls_broker(tmp_path / "volume", authority.server()) as (broker, _):
            assert broker.service_url_tls.startswith("pulsar+ssl://")
            async with Client(broker.service_url_tls, tls=authority.context()) as client:
                consumer = await client.subscribe(TOPIC, "s")
                producer = await client.create_producer(TOPIC)
                payloads = [bytes([number]) * 10 ** (number % 6) * 9 for number in range(1, 40)]
                await asyncio.gather(*(producer.send(payload) for payload in payloads))
                for payload in payloads:
                    message = await consumer.receive()
                    assert message.value == payload
                    await consumer.acknowledge(message)
            async with Client(broker.service_url) as plain:
                await (await plain.create_producer(TOPIC)).send(b"plain")

    run_on(run())


@pytest.mark.parametrize("run_on", LOOPS)
def test_a_closed_client_has_no_connection_left(tmp_path: Path, run_on: Any) -> None:
    """TLS ends by an exchange: an event loop that ends right after `close` leaves nothing open."""
    authority = Authority(tmp_path / "ca")

    async def run() -> None:
        async with tls_broker(tmp_path / "volume", authority.server()) as (broker, _):
            client = Client(broker.service_url_tls, tls=authority.context())
            await client.create_producer(TOPIC)
            transports = [
                task.result()._transport for task in client._session.pool._opening.values()
            ]
            assert all(
                transport is not None and transport.get_extra_info("socket")
                for transport in transports
            )
            await client.close()
            assert [
                transport.get_extra_info("socket") for transport in transports if transport
            ] == [None]

    run_on(run())


async def test_a_client_that_trusts_another_authority_is_not_fooled(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ca"), Authority(tmp_path / "other")

    async with tls_broker(tmp_path / "volume", ours.server()) as (broker, _):
        client = Client(broker.service_url_tls, tls=theirs.context(), operation_timeout_s=3.0)
        async with client:
            with pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED"):
                await client.create_producer(TOPIC)


async def _shown(port: int, context: ssl.SSLContext) -> int:
    """Serial number of the certificate that a port shows."""
    _, writer = await asyncio.open_connection(HOST, port, ssl=context)
    try:
        return int(writer.get_extra_info("peercert")["serialNumber"], 16)
    finally:
        writer.transport.abort()


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


async def test_who_has_no_address_with_tls_yet_is_waited_for(tmp_path: Path) -> None:
    """While a cluster gets TLS, a coordinator may still be without it: its clients have to
    try again, and get no empty address."""
    authority = Authority(tmp_path / "ca")

    async with (
        tls_broker(tmp_path / "volume", authority.server()) as (broker, _),
        asyncio.timeout(120),
    ):
        claim = CoordinatorClaimRecord(
            "tx-0.0", 1, "tx-0", "pulsar://tx-0:6650", "http://x:8080", 0, "1"
        )
        await broker.context.store.put(
            keys.COORDINATOR_SET, CoordinatorSetRecord(1, 1, "shop/tx").encode()
        )
        await broker.context.store.put(keys.coordinator_claim(0), claim.encode())
        coordinator = str(COORDINATOR_TOPIC.with_partition(0))
        async with open_peer(broker) as plain:
            assert await plain.lookup(coordinator) == "pulsar://tx-0:6650"
        peer = Peer(
            *await asyncio.open_connection(
                HOST, _port(broker.service_url_tls), ssl=authority.context()
            )
        )
        peer.write(requests.connect("test", 21))
        await peer.answer(Type.CONNECTED)
        answer = (await peer.ask("lookup", topic=coordinator)).lookup_response
        assert (answer.response, answer.error) == (answer.Failed, api.ServiceNotReady)
        secure = replace(claim, service_url_tls="pulsar+ssl://tx-0:6651")
        await broker.context.store.put(keys.coordinator_claim(0), secure.encode())
        answer = (await peer.ask("lookup", topic=coordinator)).lookup_response
        assert answer.brokerServiceUrlTls == "pulsar+ssl://tx-0:6651"
        await peer.close()


async def test_a_replaced_certificate_is_shown_to_who_comes_next(tmp_path: Path) -> None:
    """Who is connected stays; a pair that does not match changes nothing and counts once."""
    authority = Authority(tmp_path / "ca")
    directory = authority.server()

    async with (
        tls_broker(tmp_path / "volume", directory) as (broker, admission),
        asyncio.timeout(120),
    ):
        following = asyncio.create_task(admission.certificates.follow())
        context, port = authority.context(), _port(broker.service_url_tls)
        async with Client(broker.service_url_tls, tls=context) as client:
            producer = await client.create_producer(TOPIC)
            before = await _shown(port, context)
            key = (directory / "tls.key").read_bytes()
            replace_file(
                directory / "tls.key", authority.client("x").joinpath("tls.key").read_bytes()
            )
            while not admission.certificates.reloads_failed:
                await asyncio.sleep(0.01)
            assert await _shown(port, context) == before
            replace_file(directory / "tls.key", key)
            authority.server()
            while await _shown(port, context) == before:
                await asyncio.sleep(0.01)
            await producer.send(b"on the connection from before")
            assert admission.certificates.expires_s > CLOCK.wall_ms() / 1000
        following.cancel()


def test_files_that_are_no_pair_stop_the_start_by_their_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    directory = authority.server(clients=True)
    for name, content in (
        ("tls.crt", b"no"),
        ("tls.key", authority.client("x").joinpath("tls.key").read_bytes()),
        ("ca.crt", b"no"),
    ):
        before = (directory / name).read_bytes()
        (directory / name).write_bytes(content)
        with pytest.raises(InvalidRequest, match=r"tls: .*(tls|ca)\.crt") as refused:
            TlsCertificates(directory)
        assert "PRIVATE" not in str(refused.value)
        (directory / name).write_bytes(before)
    (directory / "ca.crt").write_bytes(b"\n")
    assert TlsCertificates(directory).context.verify_mode is ssl.CERT_NONE, (
        "some issuers leave an empty one"
    )
    (directory / "ca.crt").write_bytes(b"\n")
    assert TlsCertificates(directory).context.verify_mode is ssl.CERT_NONE
    (directory / "tls.key").unlink()
    with pytest.raises(InvalidRequest, match=r"tls\.key"):
        TlsCertificates(directory)


async def test_unfinished_handshakes_end_in_time_and_the_oldest_makes_room(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")

    async def run() -> None:
        admission = TlsPort(TlsCertificates(authority.server()), handshakes_max=2, handshake_s=5.0)
        listener = await admission.listen(HOST, 0, asyncio.Protocol)
        idle = [await asyncio.open_connection(HOST, listener.port) for _ in range(2)]
        while len(admission._unfinished) < 2:
            await asyncio.sleep(0)
        assert await _shown(listener.port, authority.context())  # the oldest has made room
        assert admission.dropped == 1
        for late, waiting in idle:
            assert await late.read() == b""  # the other one when its time is over
            waiting.close()
            await waiting.wait_closed()
        assert admission.failed == 2
        assert await _shown(listener.port, authority.context())
        listener.close()

    async with asyncio.timeout(120):
        await run()


async def test_a_clients_certificate_is_its_role(tmp_path: Path) -> None:
    """Also by HTTPS; one of another authority is refused in the handshake."""
    authority = Authority(tmp_path / "ca")
    document = DOCUMENT.replace("authentication: {", "authentication: {tls: true, ")

    found = authenticator(tmp_path / "security", document)
    async with tls_broker(tmp_path / "volume", authority.server(clients=True), found) as (
        broker,
        admission,
    ):
        await appoint(broker, "chief")
        async with Client(broker.service_url_tls, tls=authority.context("chief")) as client:
            await (await client.create_producer(TOPIC)).send(b"a")
        async with Client(broker.service_url_tls, tls=authority.context("other")) as client:
            with pytest.raises(Exception, match="not authorized"):
                await client.create_producer(TOPIC)
        application = FastAPI()

        @application.get("/name")
        async def name(request: Request) -> str:
            return f"{request.scope[CERTIFICATE].common_name} {request.url.scheme}"

        http = HttpListener(application, HOST, 0)
        await http.open(plain=False)
        port = await http.open_tls(admission, 0)
        async with httpx.AsyncClient(verify=authority.context("chief")) as client:
            assert (await client.get(f"https://{HOST}:{port}/name")).json() == "chief https"
        async with httpx.AsyncClient(verify=authority.context()) as client:
            assert (await client.get(f"https://{HOST}:{port}/name")).json() == " https"
        await http.close()


async def test_plain_ports_may_be_for_the_cluster_alone(tmp_path: Path) -> None:
    found = Authenticator(
        authenticator(tmp_path / "security").source, CLOCK, plain_is_internal=True
    )
    async with running_broker(tmp_path / "volume", security=found) as broker:
        async with open_peer(broker, handshake=False) as peer:
            assert (await show(peer, token("admin"))).type == Type.ERROR
        async with open_peer(broker, handshake=False) as peer:
            assert (
                await show(peer, found.internal_token(), "magnetar-internal")
            ).type == Type.CONNECTED
    with pytest.raises(NotAuthorized, match=r"pulsar\+ssl"):
        found.check_port(
            found.principal("token", token("admin").encode(), PeerCertificate()), tls=False
        )
    found.check_port(found.principal("token", token("admin").encode(), PeerCertificate()), tls=True)


@pytest.mark.parametrize(
    "wrong",
    [
        AccessOptions(plain="shut"),
        AccessOptions(plain="closed"),
        AccessOptions(tls="d", plain="internal"),
    ],
)
def test_options_that_leave_no_way_in_are_refused(wrong: AccessOptions) -> None:
    with pytest.raises(InvalidRequest, match="plain"):
        wrong.check()
