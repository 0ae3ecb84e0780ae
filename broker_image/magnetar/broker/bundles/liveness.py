"""Whether another broker still answers.

Owns: `Liveness`: a handshake with a broker before clients are sent to it. Imports: clock, network,
wire. A broker that was killed stays registered until its lease ends. A client that is sent to it
before that is refused, and returns after a back-off that has grown to seconds by then. A client
whose look-up waits here goes straight to the new owner. Invariants: it delays answers and decides
nothing: while an owner is registered and silent, look-ups wait at most `silence_s_max`; one
handshake per broker is under way at a time, and one that succeeded holds for a moment.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from magnetar import __version__
from magnetar.broker.context import BrokerContext
from magnetar.hosting.shared_task import cancel_all, outcome
from magnetar.metadata.records import IncarnationRecord
from magnetar.network import connect_over
from magnetar.wire import requests
from magnetar.wire.commands import PROTOCOL_VERSION

ANSWERED_HOLDS_S = 0.2
HANDSHAKE_S = 0.5
GRACE_S = 1.0
"""A lease that has ended is learned of within this time."""
RECEIVE_BYTES = 4096


class _Handshake(asyncio.BufferedProtocol):
    """Says CONNECT and waits for any answer."""

    def __init__(self) -> None:
        self._buffer = bytearray(RECEIVE_BYTES)
        self.answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(requests.connect(f"Magnetar {__version__}", PROTOCOL_VERSION))

    def get_buffer(self, _sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, _nbytes: int) -> None:
        self._done(True)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._done(False)

    def _done(self, answered: bool) -> None:
        if not self.answered.done():
            self.answered.set_result(answered)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


@dataclass(slots=True)
class _Peer:
    """What is known of one incarnation: when it last answered, and since when it has not."""

    answered_at: float = float("-inf")
    silent_since: float | None = None
    asked_at: float = float("-inf")
    asking: asyncio.Task[None] | None = None


class Liveness:
    """Handshakes with other brokers."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._peers: dict[str, _Peer] = {}
        self.silence_s_max = context.settings.lease_ttl_s + GRACE_S

    async def may_be_named(self, incarnation: str, record: IncarnationRecord) -> bool:
        """Whether clients may be sent to this broker: it has answered lately, or been silent for
        longer than its lease would have held."""
        peer = self._peers.get(incarnation)
        if peer is None:
            peer = self._peers[incarnation] = _Peer()
        now = self._context.clock.monotonic()
        if now - peer.answered_at < ANSWERED_HOLDS_S:
            return True
        # Silent, and yet its lease lives: clients may reach it though we cannot.
        given_up = peer.silent_since is not None and now - peer.silent_since > self.silence_s_max
        if peer.asking is None and (not given_up or now - peer.asked_at > self.silence_s_max):
            peer.asking, peer.asked_at = (
                asyncio.create_task(self._ask(peer, record), name=f"handshake {incarnation}"),
                now,
            )
        if given_up:
            return True
        if peer.asking is not None:
            await outcome(peer.asking)
        return peer.silent_since is None

    async def _ask(self, peer: _Peer, record: IncarnationRecord) -> None:
        clock = self._context.clock
        try:
            answered = await self._shake_hands(record.service_url)
        finally:
            peer.asking = None
        if answered:
            peer.answered_at, peer.silent_since = clock.monotonic(), None
        elif peer.silent_since is None:
            peer.silent_since = clock.monotonic()

    async def _shake_hands(self, service_url: str) -> bool:
        parts = urlsplit(service_url)
        handshake: _Handshake | None = None
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                tls = (
                    self._context.tls.to_peers()
                    if parts.scheme == "pulsar+ssl" and self._context.tls is not None
                    else None
                )
                handshake = await connect_over(
                    self._context.network, parts.hostname or "", parts.port or 0, _Handshake, tls
                )
                return await handshake.answered
        except (OSError, TimeoutError):
            return False
        finally:
            if handshake is not None:
                handshake.close()

    def forget(self, live: frozenset[str]) -> None:
        """Only these incarnations are registered any more."""
        for incarnation in [known for known in self._peers if known not in live]:
            del self._peers[incarnation]

    async def stop(self) -> None:
        """Cancel what is under way."""
        await cancel_all(peer.asking for peer in self._peers.values() if peer.asking is not None)
