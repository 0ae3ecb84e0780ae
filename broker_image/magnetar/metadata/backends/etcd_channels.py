"""Connections to the members of an etcd cluster.

Owns: `Channels`: one gRPC channel per endpoint, the choice among them, and the translation of
gRPC's errors. Imports: asyncio, grpc, aetcd's stubs, structlog, clock, errors, etcd_tls. aetcd's
own client is not used: it knows one endpoint, no TLS, and its watcher neither resumes nor joins
fragments. Invariants: a request is handed to gRPC only on a channel that is connected, so a failure
before that is known not to have been sent and is retried elsewhere; a failure after that is retried
only if the request is `repeatable`. No credential is ever logged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import grpc  # type: ignore[import-untyped]  # ships no type information
import grpc.aio  # type: ignore[import-untyped]
import structlog
from aetcd import rpc

from magnetar.clock import Clock
from magnetar.errors import Compacted, LeaseLost, StoreError, StoreUnavailable
from magnetar.metadata.backends.etcd_tls import TlsMaterial

MESSAGE_BYTES_MAX = 256 << 20
FIRST_CHOICE_S = 0.25
"""How long the preferred member may take to connect before the others are tried as well."""
AVOID_S = 5.0
"""How long a member that gave no answer is asked only if no other can be reached."""
SLOW_ANSWER_S = 0.3
"""A request that its caller cancels after this long counts as not answered."""
REPEAT_S_MIN, REPEAT_S_MAX = 0.02, 0.1
REQUIRE_LEADER = (("hasleader", "true"),)
"""A member cut off from the quorum then refuses, and ends watches, instead of staying silent."""
_OPTIONS = (
    # etcd closes connections that ping more often than every 5 s
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # a second store (the lease thread's) gets a connection of its own
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
_REFUSED = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)

_AUTH_CHANGED = frozenset(
    {"etcdserver: revision of auth store is old", "etcdserver: user name is empty"}
)
"""Users, roles or authentication itself changed while the request was under way: it was refused
without effect, whatever it was."""

log = structlog.get_logger(__name__)


class AuthChanged(StoreUnavailable):
    """Refused, certainly without effect, because of a change of users or roles at the same
    moment."""


class Member:
    """One endpoint and its stubs."""

    def __init__(self, address: str, tls: TlsMaterial | None) -> None:
        self.address = address
        self.stamp = tls.stamp() if tls else None
        if tls:
            self.channel = grpc.aio.secure_channel(address, tls.credentials(), _OPTIONS)
        else:
            self.channel = grpc.aio.insecure_channel(address, _OPTIONS)
        self.keys = rpc.KVStub(self.channel)
        self.leases = rpc.LeaseStub(self.channel)
        self.watches = rpc.WatchStub(self.channel)


def parse_endpoint(endpoint: str, tls: TlsMaterial | None) -> str:
    """`host:port` of an endpoint that may carry http:// or https://.

    Raises StoreError if scheme and TLS files contradict each other.
    """
    scheme, separator, address = endpoint.rpartition("://")
    if not address.rpartition(":")[2].isdigit() or (separator and scheme not in ("http", "https")):
        raise StoreError(
            f"etcd endpoint {endpoint!r} is not valid; write host:port, http://host:port or "
            "https://host:port"
        )
    if scheme == "https" and tls is None:
        raise StoreError(
            f"etcd endpoint {endpoint!r} needs TLS files: authority, certificate and key "
            "(--store-tls)"
        )
    if scheme == "http" and tls is not None:
        raise StoreError(
            f"etcd endpoint {endpoint!r} is plain but TLS is requested; write https://"
        )
    return address


class Channels:
    """All members. Belongs to the event loop on which it is first used."""

    def __init__(
        self,
        endpoints: Sequence[str],
        tls: TlsMaterial | None,
        clock: Clock,
        request_timeout_s: float,
    ) -> None:
        if not endpoints:
            raise StoreError("etcd endpoints are empty; name at least one host:port")
        self._addresses = [parse_endpoint(endpoint, tls) for endpoint in endpoints]
        self._tls = tls
        self._clock = clock
        self._request_timeout_s = request_timeout_s
        self._members: dict[str, Member] = {}
        self._avoided_until: dict[str, float] = {}
        # Where each client starts is drawn, so that members share the load.
        self._preferred = clock.random_bits(16) % len(self._addresses)
        self.closed = False

    async def call(self, invoke: Callable[[Member, float], Any], *, repeatable: bool) -> Any:
        """The answer to the request that `invoke(member, seconds left)` sends.

        Raises StoreUnavailable (no answer: a request that is not `repeatable` may have had its
        effect), LeaseLost, Compacted, StoreError.
        """
        deadline = self._clock.monotonic() + self._request_timeout_s
        while True:
            member = await self.connected(deadline)
            left = max(deadline - self._clock.monotonic(), 0.001)
            # A member that does not answer must leave time to ask another.
            patience = left / 2 if repeatable and len(self._addresses) > 1 else left
            sent = self._clock.monotonic()
            try:
                return await self.guarded(member, invoke(member, patience))
            except asyncio.CancelledError:
                # A caller with a shorter deadline (a lease keeper) gave up: its next try must
                # reach another member.
                if self._clock.monotonic() - sent >= SLOW_ANSWER_S:
                    self.avoid(member)
                raise
            except StoreUnavailable as error:
                repeats = repeatable or isinstance(error, AuthChanged)
                if not repeats or self.closed or self._clock.monotonic() >= deadline:
                    raise
            await asyncio.sleep(self._clock.uniform(REPEAT_S_MIN, REPEAT_S_MAX))

    async def guarded(self, member: Member, answer: Any) -> Any:
        """Await `answer` from `member`, with errors as store errors; a member that gives none is
        not preferred any more."""
        try:
            return await answer
        except grpc.aio.AioRpcError as error:
            self.translate(member, error)
        except asyncio.InvalidStateError as error:
            # What gRPC raises for a write to a stream that has just ended.
            raise StoreUnavailable(f"etcd {member.address}: {error}") from error
        except asyncio.CancelledError:
            # gRPC reports the end of its channel (closed with us, or replaced by one with new
            # certificates) like this too: only a cancelled task may see it, any other would end by
            # it silently.
            if (task := asyncio.current_task()) and task.cancelling():
                raise
            self.raise_if_closed()
            raise StoreUnavailable(
                f"etcd {member.address}: the connection was closed under the request; try again"
            ) from None

    def raise_if_closed(self) -> None:
        """Raises StoreUnavailable once nothing can be asked any more."""
        if self.closed:
            raise StoreUnavailable("the store is closed; open it again")

    def translate(self, member: Member, error: Any) -> NoReturn:
        """Raise the store error for one of gRPC."""
        code, details = error.code(), error.details() or ""
        if details in _AUTH_CHANGED:
            raise AuthChanged(
                f"etcd {member.address}: {details}; its users changed just now, or it wants a "
                "certificate (--store-tls)"
            ) from error
        if code is grpc.StatusCode.NOT_FOUND and "lease" in details:
            raise LeaseLost(f"{details}; grant a new one") from error
        if "compacted" in details:
            raise Compacted(f"{details}; list again and watch from there") from error
        if code in _REFUSED:
            raise StoreError(f"etcd {member.address} refused: {details} ({code.name})") from error
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and details.startswith(
            ("etcdserver", "mvcc")
        ):
            # It answers, but is overloaded or out of space: what is asked of it now has to wait,
            # whichever member is asked.
            raise StoreUnavailable(
                f"etcd {member.address} takes nothing now: {details}; see to its quota and load"
            ) from error
        self.avoid(member)
        raise StoreUnavailable(f"etcd {member.address}: {details} ({code.name})") from error

    def avoid(self, member: Member) -> None:
        """Prefer another member from now on: this one gave no answer."""
        self._avoided_until[member.address] = self._clock.monotonic() + AVOID_S
        if self._addresses[self._preferred] == member.address:
            self._preferred = (self._preferred + 1) % len(self._addresses)

    # --- connections ------------------------------------------------------------------------------

    async def connected(self, deadline: float) -> Member:
        """A member with an open connection, the preferred one if possible. Raises
        StoreUnavailable; nothing was sent then."""
        if self.closed:
            raise StoreUnavailable("the store is closed; open it again")
        order = self._order()
        for address in order:
            member = self._member(address)
            if self._is_avoided(address) and not self._is_avoided(order[0]):
                # a silent member's connection looks as open as ever: first see whether another one
                # opens
                break
            if (
                member.channel.get_state(try_to_connect=address == order[0])
                is grpc.ChannelConnectivity.READY
            ):
                return member
        left = deadline - self._clock.monotonic()
        waiting = {asyncio.ensure_future(self._await_ready(order[0])): order[0]}
        try:
            done, _ = await asyncio.wait(waiting, timeout=min(FIRST_CHOICE_S, max(left, 0)))
            if not done:
                waiting |= {
                    asyncio.ensure_future(self._await_ready(address)): address
                    for address in order[1:]
                }
                left = max(deadline - self._clock.monotonic(), 0)
                done, _ = await asyncio.wait(
                    waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
            for task in done:
                if not task.cancelled() and task.exception() is None:
                    return self._member(waiting[task])
        finally:
            for task in waiting:
                task.cancel()
        self.raise_if_closed()
        names = ", ".join(self._addresses)
        waited = f"not connected within {self._request_timeout_s} s"
        raise StoreUnavailable(f"etcd {names}: {waited}; check that it runs and is reachable")

    def _order(self) -> list[str]:
        """All addresses: the preferred one first, those that gave no answer lately last."""
        return sorted(
            self._addresses[self._preferred :] + self._addresses[: self._preferred],
            key=self._is_avoided,
        )

    def _is_avoided(self, address: str) -> bool:
        return self._clock.monotonic() < self._avoided_until.get(address, 0.0)

    async def _await_ready(self, address: str) -> None:
        await self._member(address).channel.channel_ready()

    def _member(self, address: str) -> Member:
        """The member with its channel; a channel that is down is made again when its certificates
        have been replaced."""
        member = self._members.get(address)
        try:
            if member is None:
                member = self._members[address] = Member(address, self._tls)
            elif (
                self._tls is not None
                and member.channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE
                and member.stamp != self._tls.stamp()
            ):
                log.info(
                    "etcd certificates changed, connecting with the new ones", endpoint=address
                )
                retired = member.channel
                member = self._members[address] = Member(address, self._tls)
                # kept, so that it is not collected before it ends
                self._retiring = asyncio.ensure_future(retired.close())
        except OSError as error:
            raise StoreUnavailable(
                f"TLS files for etcd cannot be read: {error}; mount authority, certificate and key"
            ) from error
        return member

    async def close(self) -> None:
        """End all calls under way (they raise StoreUnavailable) and all connections."""
        self.closed = True
        for member in self._members.values():
            await member.channel.close()
