"""Advertised listeners: every client gets addresses of the listener that it uses, and of no
other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dev.ports import free_port
from magnetar.broker.incarnation import Broker
from magnetar.errors import InvalidRequest, WireCode
from magnetar.hosting.advertised import (
    Advertised,
    ListenerOptions,
    Listeners,
    options_of,
    parse_bind_addresses,
    parse_listeners,
)
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import INTERNAL_LISTENER, IncarnationRecord, ListenerAddress
from magnetar.names import TopicName
from tests.support.brokers import (
    CLOCK,
    HOST,
    STILL,
    TOPIC,
    Peer,
    Type,
    open_peer,
    running_broker,
)
from tests.support.replaced_files import replace_file
from tests.support.rest import rest_over

PATH = "/lookup/v2/topic/persistent/public/default/t"
WAIT_S = 120.0
KEPT = "Failed to acquire ownership of an address on it, try again"
"""What has the C++ client try again instead of closing its connection."""


# --- spelling -------------------------------------------------------------------------------------


def test_listeners_are_read_as_pulsar_spells_them() -> None:
    """Commas and lines separate; a name may have a REST address beside its pulsar:// one; {host}
    is the address of this host."""
    found = parse_listeners(
        "internal:pulsar://10.0.0.5:6650, "
        "external:pulsar://{host}:30650\nexternal:http://r.example:80",
        "203.0.113.7",
    )
    assert found == {
        "internal": ListenerAddress("pulsar://10.0.0.5:6650"),
        "external": ListenerAddress("pulsar://203.0.113.7:30650", "http://r.example:80"),
    }
    assert parse_listeners("v6:pulsar://{host}:1", "fd00::1") == {
        "v6": ListenerAddress("pulsar://[fd00::1]:1")
    }
    assert parse_listeners(" \n") == {}
    assert parse_bind_addresses("external:pulsar://0.0.0.0:6660") == {"external": ("0.0.0.0", 6660)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pulsar://h:1", "name:pulsar://host:port"),
        ("a b:pulsar://h:1", "'a'"),
        ("a:kafka://h:1", "name:pulsar://host:port"),
        ("a:pulsar://h", "names no host and port"),
        ("a:pulsar://h:99999", "names no host and port"),
        ("a:pulsar://h:1/path", "names no host and port"),
        ("a:pulsar://h:1,a:pulsar://h:2", "twice"),
        ("a:pulsar://h:1,b:pulsar://h:1", "one name"),
        ("a:http://h:1", "no pulsar:// address"),
        ("a:pulsar://{host}:1", "--host-address"),
        (",".join(f"l{n}:pulsar://h:{n + 1}" for n in range(17)), "more than 16"),
    ],
)
def test_a_listener_that_cannot_be_meant_is_refused_with_what_to_write(
    text: str, said: str
) -> None:
    """Nothing is guessed: a wrong address would send clients nowhere."""
    with pytest.raises(InvalidRequest) as refused:
        parse_listeners(text)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "a:pulsar://0.0.0.0:1,a:pulsar://0.0.0.0:2",
        "a:pulsar://h:1,b:pulsar://h:1",
        "internal:pulsar://h:1",
        "a:x",
    ],
)
def test_a_port_belongs_to_one_listener(text: str) -> None:
    with pytest.raises(InvalidRequest, match="bind-addresses"):
        parse_bind_addresses(text)


def test_a_client_that_may_be_of_another_listener_is_handed_no_address() -> None:
    """While a listener shares the main port, who came in there and asked for nothing must look
    the topic up again."""
    successor = IncarnationRecord(
        "b", "pulsar://b:1", "", 0, "", listeners={"external": ListenerAddress("pulsar://x:2")}
    ).service_url_on
    external = {"external": ListenerAddress("pulsar://me:2")}
    own_port = Listeners(
        ListenerAddress("pulsar://a:1"), ListenerOptions(external, {"external": (HOST, 2)})
    )
    shared_port = Listeners(ListenerAddress("pulsar://a:1"), ListenerOptions(external))
    assert own_port.after_transfer(None, successor) == "pulsar://b:1"
    assert shared_port.after_transfer(None, successor) is None
    for listeners in (own_port, shared_port):
        assert listeners.after_transfer("external", successor) == "pulsar://x:2"
        assert listeners.after_transfer(INTERNAL_LISTENER, successor) == "pulsar://b:1"
        assert listeners.after_transfer("unknown", successor) is None


# --- on the wire ----------------------------------------------------------------------------------


def listeners_of(number: int, port: int) -> ListenerOptions:
    """An external listener with a port of its own, and one that shares the main port."""
    advertised = (
        f"external:pulsar://broker-{number}.example:6650,named:pulsar://named-{number}.example:6650"
    )
    return options_of(advertised, f"external:pulsar://{HOST}:{port}", "", "")


@asynccontextmanager
async def two_brokers(directory: Path) -> AsyncIterator[tuple[dict[str, Broker], dict[str, int]]]:
    """Brokers that know each other, by name, and the port of each one's external listener."""
    store, ports = MemoryStore(CLOCK), {f"broker-{number}": free_port() for number in range(2)}
    try:
        async with (
            running_broker(
                directory,
                store=store,
                listeners=listeners_of(0, ports["broker-0"]),
                balance=STILL,
            ) as first,
            running_broker(
                directory,
                store=store,
                name="broker-1",
                listeners=listeners_of(1, ports["broker-1"]),
                balance=STILL,
            ) as second,
        ):
            brokers = {"broker-0": first, "broker-1": second}
            async with asyncio.timeout(WAIT_S):
                while any(
                    len(broker.views.incarnations.items) < len(brokers)
                    for broker in brokers.values()
                ):
                    await asyncio.sleep(0.01)
            yield brokers, ports
    finally:
        await store.close()


async def lookup(peer: Peer, listener: str = "") -> str:
    """The address that a LOOKUP answers with; a refusal as `code text`."""
    answer = (
        await peer.ask("lookup", topic=TOPIC, advertised_listener_name=listener)
    ).lookup_response
    return answer.brokerServiceUrl or f"{answer.error} {answer.message}"


@pytest.mark.slow
async def test_a_lookup_names_the_owner_as_the_clients_listener_knows_it(tmp_path: Path) -> None:
    """By name, else by the port that the client came in on, else the internal address; from the
    owner and from another broker alike."""

    async with two_brokers(tmp_path) as (brokers, ports):
        async with open_peer(brokers["broker-0"]) as peer:
            internal = await lookup(peer)
        (owner,) = [name for name, broker in brokers.items() if broker.service_url == internal]
        number = owner[-1]
        for name, broker in brokers.items():
            async with open_peer(broker) as peer:
                assert await lookup(peer, "external") == f"pulsar://broker-{number}.example:6650"
                assert await lookup(peer, "named") == f"pulsar://named-{number}.example:6650"
                assert await lookup(peer, INTERNAL_LISTENER) == internal
            async with open_peer(broker, port=ports[name]) as peer:
                assert await lookup(peer, " ") == f"pulsar://broker-{number}.example:6650"
                assert await lookup(peer, "named") == f"pulsar://named-{number}.example:6650"
            async with open_peer(broker) as peer:
                refused = await lookup(peer, "nobodys")
                assert (
                    refused == f"{int(WireCode.SERVICE_NOT_READY)} the broker do not have nobodys "
                    f"listener; {KEPT}"
                )
                assert await lookup(peer) == internal, (
                    "a refused name changes nothing for the connection"
                )


@pytest.mark.slow
async def test_a_rest_lookup_takes_the_listener_from_query_or_header(tmp_path: Path) -> None:
    """As Pulsar: listenerName, else X-Pulsar-ListenerName, else the internal one; an unknown one
    is refused."""

    advertised = "external:pulsar://x.example:6650,external:http://x.example:8080,plain:pulsar://p.example:6650"
    async with (
        running_broker(tmp_path, listeners=options_of(advertised, "", "", "")) as broker,
        rest_over(tmp_path, broker) as rest,
    ):
        header = {"X-Pulsar-ListenerName": "plain"}
        found = (await rest.ask("GET", PATH, headers=header)).json()
        assert (found["nativeUrl"], found["httpUrl"]) == (
            "pulsar://p.example:6650",
            broker.context.http_url,
        )
        found = (await rest.ask("GET", f"{PATH}?listenerName=external", headers=header)).json()
        assert found["brokerUrl"] == found["nativeUrl"] == "pulsar://x.example:6650"
        assert found["httpUrl"] == "http://x.example:8080"
        assert (await rest.get(PATH))["brokerUrl"] == broker.service_url
        refused = await rest.ask("GET", f"{PATH}?listenerName=nobodys")
        assert (refused.status_code, refused.json()) == (
            503,
            {"reason": "the broker do not have nobodys listener", "remedy": KEPT},
        )


@pytest.mark.slow
async def test_a_move_sends_each_client_to_an_address_of_its_own_listener(tmp_path: Path) -> None:
    """One topic, four producers: by the internal address, by the external port, by name, and one
    that has not said which it uses."""

    async with (
        two_brokers(tmp_path) as (brokers, ports),
        open_peer(brokers["broker-0"]) as peer,
    ):
        internal = await lookup(peer)
        (owner,) = [name for name, broker in brokers.items() if broker.service_url == internal]
        (other,) = [name for name in brokers if name != owner]
        source, target = brokers[owner], brokers[other]
        async with (
            open_peer(source) as inside,
            open_peer(source, port=ports[owner]) as outside,
            open_peer(source) as named,
            open_peer(source) as silent,
        ):
            await lookup(inside)
            await lookup(named, "named")
            expected = {
                inside: target.service_url,
                outside: f"pulsar://broker-{other[-1]}.example:6650",
                named: f"pulsar://named-{other[-1]}.example:6650",
                silent: "",
            }
            for producer in expected:
                await producer.produce()
            await outside.subscribe()
            bundle = await source.ownership.bundle_of(TopicName.parse(TOPIC))
            await source.ownership.move(str(bundle), target.incarnation, "test")
            consumer = (await outside.answer(Type.CLOSE_CONSUMER)).close_consumer
            assert consumer.assignedBrokerServiceUrl == expected[outside]
            await outside.answer(Type.PING)
            for producer, url in expected.items():
                closed = (await producer.answer(Type.CLOSE_PRODUCER)).close_producer
                assert closed.assignedBrokerServiceUrl == url


@pytest.mark.slow
async def test_addresses_in_a_file_are_followed_without_a_restart(tmp_path: Path) -> None:
    """A listener without an address yet is refused; later, others, and nonsense in the file,
    take effect or do not; connections stay."""

    async def main() -> None:
        port, file, store = free_port(), tmp_path / "listeners", MemoryStore(CLOCK)
        options = options_of("", f"external:pulsar://{HOST}:{port}", str(file), "")
        reread, looks = options.reread, 0
        assert reread is not None

        def counted() -> Advertised:
            nonlocal looks
            looks += 1
            return reread()

        async with (
            running_broker(
                tmp_path / "volume",
                store=store,
                listeners=replace(options, reread=counted),
                listeners_check_s=0.05,
            ) as broker,
            open_peer(broker, port=port) as peer,
        ):
            assert (
                await lookup(peer)
                == f"{int(WireCode.SERVICE_NOT_READY)} the broker do not have external listener; "
                f"{KEPT}"
            )
            for url in ("pulsar://198.51.100.1:6650", "pulsar://198.51.100.2:6650"):
                replace_file(file, f"external:{url}\n")
                await found(peer, url)
                record = IncarnationRecord.decode((await item(store, broker)).value)
                assert record.listeners == {"external": ListenerAddress(url)}
                for nonsense in (b"external: to be announced", b"external:pulsar://\xff:6650"):
                    replace_file(file, nonsense)
                    seen = looks
                    async with asyncio.timeout(WAIT_S):
                        while looks < seen + 2:
                            await asyncio.sleep(0.02)
                    assert await lookup(peer) == url, "what cannot be read changes nothing"
        await store.close()

    async def item(store: MemoryStore, broker: Broker) -> Any:
        return await store.get(keys.incarnation(broker.incarnation))

    async def found(peer: Peer, url: str) -> None:
        async with asyncio.timeout(WAIT_S):
            while await lookup(peer) != url:
                await asyncio.sleep(0.02)

    await main()


@pytest.mark.slow
async def test_an_internal_listener_replaces_the_advertised_address(tmp_path: Path) -> None:
    """The name internal is for all: other brokers and clients without a name get its
    address."""

    async with running_broker(
        tmp_path, listeners=options_of("internal:pulsar://inside.example:7000", "", "", "")
    ) as broker:
        assert broker.service_url == "pulsar://inside.example:7000"
        assert broker.context.listeners.service_url_on(INTERNAL_LISTENER) == broker.service_url


def test_a_listener_may_have_addresses_by_tls() -> None:
    """Clients that came by TLS are handed to the successor's TLS address; where several share
    the TLS port they look up."""
    found = parse_listeners("external:pulsar+ssl://h:1,external:https://h:2,internal:pulsar://a:1")
    assert found["external"] == ListenerAddress("", "", "pulsar+ssl://h:1", "https://h:2")
    assert parse_bind_addresses("external:pulsar+ssl://0.0.0.0:7") == {
        "external/tls": ("0.0.0.0", 7)
    }
    record = IncarnationRecord(
        "b", "pulsar://a:1", "", 0, "", listeners=dict(found), service_url_tls="pulsar+ssl://a:2"
    )
    alone = Listeners(ListenerAddress("pulsar://a:1"), ListenerOptions())
    assert alone.after_transfer("internal/tls", record.service_url_on) == "pulsar+ssl://a:2"
    assert alone.after_transfer("external/tls", record.service_url_on) == "pulsar+ssl://h:1"
    assert alone.after_transfer("external", record.service_url_on) is None
    shared = Listeners(
        ListenerAddress("pulsar://a:1"), ListenerOptions({"external": found["external"]})
    )
    assert shared.after_transfer("internal/tls", record.service_url_on) is None
