"""Connections by address, and finding the broker of a topic.

Owns: one connection per (logical, physical) address, and look-ups over them with redirects.
Imports: connection, network, wire. Source: Pulsar's protocol: commands LOOKUP and
PARTITIONED_METADATA; `proxy_through_service_url` sends everything through the service address.
Invariants: at most one connection per address is open or opening; a look-up follows at most
`REDIRECTS_MAX` redirects.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
from typing import NamedTuple
from urllib.parse import urlsplit

from magnetar.client.connection import KEEP_ALIVE_S, Connection, Credentials
from magnetar.client.failures import ConnectionLost
from magnetar.errors import InvalidRequest, ServiceNotReady
from magnetar.network import Network, connect_over
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests

REDIRECTS_MAX = 20
DEFAULT_PORT, DEFAULT_TLS_PORT = 6650, 6651
TLS_SCHEME = "pulsar+ssl"


class Endpoint(NamedTuple):
    """A host and port."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Address(NamedTuple):
    """The broker meant (logical) and where to connect to (physical); they differ behind a proxy."""

    logical: Endpoint
    physical: Endpoint


def parse_endpoint(url: str) -> Endpoint:
    """Parse `pulsar://host:port` or `pulsar+ssl://host:port`. Raises InvalidRequest."""
    parts = urlsplit(url)
    tls = parts.scheme == TLS_SCHEME
    try:
        port = parts.port or (DEFAULT_TLS_PORT if tls else DEFAULT_PORT)
    except ValueError as failure:
        raise InvalidRequest(
            f"service url {url!r} has no valid port; write pulsar://host:6650"
        ) from failure
    if (
        parts.scheme not in ("pulsar", TLS_SCHEME)
        or not parts.hostname
        or parts.path not in ("", "/")
    ):
        raise InvalidRequest(
            f"service url {url!r} is not valid; write pulsar://host:6650 or "
            f"{TLS_SCHEME}://host:6651"
        )
    return Endpoint(parts.hostname, port, tls)


def parse_service_url(url: str) -> tuple[Endpoint, ...]:
    """Parse `pulsar://host:port,host:port`. Raises InvalidRequest."""
    scheme, _, hosts = url.partition("://")
    return tuple(parse_endpoint(f"{scheme}://{host}") for host in hosts.split(","))


class Pool:
    """Connections of one client."""

    def __init__(
        self,
        network: Network,
        service_url: str,
        credentials: Credentials,
        connect_timeout_s: float,
        keep_alive_s: float = KEEP_ALIVE_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls`: what to trust and what to present at `pulsar+ssl://` addresses; None = what the
        system trusts."""
        self._tls = tls
        self._network = network
        self._credentials = credentials
        self._connect_timeout_s = connect_timeout_s
        self._keep_alive_s = keep_alive_s
        self._services = itertools.cycle(parse_service_url(service_url))
        self._service = next(self._services)
        self._opening: dict[Address, asyncio.Task[Connection]] = {}
        self._request_ids = itertools.count(1)

    def begin_at(self, service_url: str, tls: ssl.SSLContext | None) -> None:
        """Look up through another broker, and connect with another context, from here on. Raises
        InvalidRequest."""
        self._tls = tls
        self._services = itertools.cycle(parse_service_url(service_url))
        self._service = next(self._services)

    def next_request_id(self) -> int:
        """Unique within this client."""
        return next(self._request_ids)

    async def get(self, address: Address) -> Connection:
        """The open connection to an address, opened if there is none. Raises ConnectionLost or
        what the broker's ERROR says."""
        task = self._opening.get(address)
        if task is None or (
            task.done()
            and (task.cancelled() or task.exception() is not None or task.result().closed)
        ):
            task = asyncio.create_task(self._open(address))
            # the last waiter may have left
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._opening[address] = task
        return await asyncio.shield(task)

    async def _open(self, address: Address) -> Connection:
        proxy_to = None if address.logical == address.physical else str(address.logical)
        connection: Connection | None = None
        physical = address.physical
        tls = (self._tls or ssl.create_default_context()) if physical.tls else None
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                connection = await connect_over(
                    self._network,
                    physical.host,
                    physical.port,
                    lambda: Connection(
                        self._credentials, proxy_to, self._keep_alive_s, tls=physical.tls
                    ),
                    tls,
                )
                await connection.ready
        except (OSError, TimeoutError, ConnectionLost) as failure:
            if address.logical == self._service:
                self._service = next(self._services)
            raise ConnectionLost(
                f"broker {address.logical} via {address.physical} cannot be reached: {failure!r}"
            ) from failure
        finally:
            if connection is not None and not (
                connection.ready.done() and not connection.ready.cancelled()
            ):
                connection.abort()
        return connection

    def _address(self, endpoint: Endpoint, through_proxy: bool) -> Address:
        return Address(endpoint, self._service if through_proxy else endpoint)

    def assigned(self, url: str, through_proxy: bool) -> Address:
        """The address of a broker that CLOSE_PRODUCER or CLOSE_CONSUMER named. Raises
        InvalidRequest."""
        return self._address(parse_endpoint(url), through_proxy)

    async def locate(self, topic: str) -> Address:
        """The address of the broker that serves a topic. Raises the error it is refused with,
        ServiceNotReady on endless redirects."""
        address, authoritative = self._address(self._service, False), False
        for _ in range(REDIRECTS_MAX + 1):
            connection = await self.get(address)
            request_id = self.next_request_id()
            answer = await connection.request(
                request_id, requests.lookup(request_id, topic, authoritative=authoritative)
            )
            found = answer.lookup_response
            url = found.brokerServiceUrlTls if address.physical.tls else found.brokerServiceUrl
            address = self._address(parse_endpoint(url), found.proxy_through_service_url)
            if found.response == api.CommandLookupTopicResponse.Connect:
                return address
            authoritative = found.authoritative
        raise ServiceNotReady(
            f"lookup of {topic} was redirected more than {REDIRECTS_MAX} times; the brokers "
            "disagree on its owner"
        )

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        """Number of partitions; 0 for a topic that is not partitioned. Raises the error it is
        refused with."""
        connection = await self.get(self._address(self._service, False))
        request_id = self.next_request_id()
        answer = await connection.request(
            request_id, requests.partitioned_metadata(request_id, topic, create=create)
        )
        return answer.partitioned_metadata_response.partitions

    async def topics(self, namespace: str) -> list[str]:
        """Persistent topics of a namespace, partitions one by one. Raises the error it is refused
        with."""
        connection = await self.get(self._address(self._service, False))
        request_id = self.next_request_id()
        answer = await connection.request(
            request_id, requests.topics_of_namespace(request_id, namespace)
        )
        return list(answer.get_topics_of_namespace_response.topics)

    async def close(self) -> None:
        tasks = list(self._opening.values())
        self._opening.clear()
        opened: list[Connection] = []
        for task in tasks:
            if not task.done():
                task.cancel()
            elif not task.cancelled() and task.exception() is None:
                opened.append(task.result())
                task.result().close()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(connection.wait_closed() for connection in opened))
