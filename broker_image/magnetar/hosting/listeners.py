"""The ports of a broker or coordinator, and the addresses that it advertises.

Owns: opening the main ports and those that belong to one listener each, following the file that
addresses come from. Imports: its room. Invariants: what was opened is reported also when the next
port cannot be; an address that cannot be read or published leaves the last one standing, and is
tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from magnetar.errors import InvalidRequest, StoreError
from magnetar.hosting.advertised import Listeners
from magnetar.hosting.identity import ProcessIdentity, ProcessPorts
from magnetar.metadata.records import INTERNAL_LISTENER, OVER_TLS, ListenerAddress, over_tls
from magnetar.network import Listener

log = structlog.get_logger(__name__)

Accept = Callable[[str | None], asyncio.BufferedProtocol]
"""Gets the listener that a port belongs to; None = the main one."""


async def open_listeners(
    ports: ProcessPorts, identity: ProcessIdentity, accept: Accept, opened: list[Listener]
) -> tuple[str, str]:
    """Open the main port, and those that belong to one listener each, into `opened`.

    The addresses of the internal listener, plain and by TLS ("" = there is none). Raises OSError,
    InvalidRequest.
    """
    internal, plain, secure = (
        identity.listeners.advertised.get(INTERNAL_LISTENER, ListenerAddress("")),
        "",
        "",
    )
    if identity.opens_plain:
        port = await _open(
            ports,
            INTERNAL_LISTENER,
            identity.bind_host,
            identity.port,
            partial(accept, None),
            opened,
        )
        plain = internal.service_url or f"pulsar://{identity.advertised_host}:{port}"
    if ports.tls is not None:
        name = over_tls(INTERNAL_LISTENER)
        port = await _open(
            ports, name, identity.bind_host, identity.tls_port, partial(accept, name), opened
        )
        secure = internal.service_url_tls or f"pulsar+ssl://{identity.advertised_host}:{port}"
    for name, (host, port) in identity.listeners.bound.items():
        await _open(ports, name, host, port, partial(accept, name), opened)
    return plain, secure


async def _open(
    ports: ProcessPorts,
    name: str,
    host: str,
    port: int,
    accept: Callable[[], asyncio.BufferedProtocol],
    opened: list[Listener],
) -> int:
    """Open one port; the one bound. Raises OSError, InvalidRequest."""
    if not name.endswith(OVER_TLS):
        opened.append(await ports.network.listen(host, port, accept))
    elif ports.tls is not None:
        opened.append(await ports.tls.listen(host, port, accept))
    else:
        raise InvalidRequest(
            f"bind-addresses: {name.removesuffix(OVER_TLS)} has a port for pulsar+ssl, which needs "
            "--tls; add it"
        )
    return opened[-1].port


async def follow_addresses(
    identity: ProcessIdentity,
    listeners: Listeners,
    every_s: float,
    publish: Callable[[], Awaitable[bool]],
) -> None:
    """Addresses outside change while the broker serves (a load balancer gets its own late): clients
    learn the new ones and stay connected.

    `publish` writes `listeners.advertised` where others read it; False = not now. Until
    cancelled. Raises what `publish` raises but StoreError.
    """
    reread = identity.listeners.reread
    assert reread is not None, "only called with a source"
    published, trouble = True, ""
    while True:
        await asyncio.sleep(every_s)
        try:
            if listeners.use(await asyncio.to_thread(reread)):
                published = False
            if not published and await publish():
                published = True
                addresses = {
                    name: at.service_url or at.service_url_tls
                    for name, at in listeners.advertised.items()
                }
                log.info("listeners.advertised", addresses=addresses)
            trouble = ""
        except (InvalidRequest, StoreError, OSError) as error:
            if str(error) != trouble:  # once: it stays until it is repaired
                log.warning("listeners.unchanged", error=str(error))
            trouble = str(error)
