"""Asking an etcd about its members, and changing them.

Owns: `EtcdAdmin`, one connection per member and the requests of etcd's Cluster and Maintenance
services. Imports: asyncio, grpc, aetcd's stubs, magnetar.metadata, errors, etcd.members.
Invariants: every request has a deadline and is sent at most once; who answers is decided by the
ordinal asked, never by chance; a list of members counts only when a quorum has just confirmed it; a
member that does not answer is missing from the picture, never an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import grpc  # type: ignore[import-untyped]  # ships no type information
import grpc.aio  # type: ignore[import-untyped]
from aetcd import rpc

from magnetar.errors import StoreError, StoreUnavailable
from magnetar.metadata.backends.etcd_tls import TlsMaterial
from magnetar_operator.etcd.figures import Figures, Sighting
from magnetar_operator.etcd.membership import Member, Voice

LOOK_TIMEOUT_S = 2.0
CHANGE_TIMEOUT_S = 7.0
"""etcd itself gives a change of members up after 7 s."""
DEFRAGMENT_TIMEOUT_S = 40.0
SNAPSHOT_TIMEOUT_S = 50.0
MESSAGE_BYTES_MAX = 16 << 20
_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
_REFUSED = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
T = TypeVar("T")


class _Connection:
    """The stubs of one member."""

    def __init__(self, endpoint: str, tls: TlsMaterial | None) -> None:
        address = _host(endpoint)
        self.stamp = tls.stamp() if tls is not None else None
        if tls is not None:
            self.channel = grpc.aio.secure_channel(address, tls.credentials(), _OPTIONS)
        else:
            self.channel = grpc.aio.insecure_channel(address, _OPTIONS)
        self.endpoint = endpoint
        self.keys = rpc.KVStub(self.channel)
        self.members = rpc.ClusterStub(self.channel)
        self.upkeep = rpc.MaintenanceStub(self.channel)


class EtcdAdmin:
    """The members of one etcd. Belongs to the event loop on which it is first used.

    `clients` and `peers` give, by ordinal, where a member is asked (host:port) and where the others
    reach it (URL).
    """

    def __init__(
        self, clients: Mapping[int, str], peers: Mapping[int, str], tls: TlsMaterial | None = None
    ) -> None:
        self._clients, self._peers, self._tls = dict(clients), dict(peers), tls
        self._closing: set[asyncio.Task[None]] = set()
        self._connections: dict[int, _Connection] = {}

    # --- looking ----------------------------------------------------------------------------------

    async def look(self) -> Sighting:
        """Ask every member. Never raises for what etcd or the network can cause."""
        found = await asyncio.gather(
            *(self._maybe(self._figures(ordinal)) for ordinal in sorted(self._clients))
        )
        figures = {
            ordinal: seen
            for ordinal, seen in zip(sorted(self._clients), found, strict=True)
            if seen is not None
        }
        # The leader answers for the quorum; a member cut off from it would answer late or not at
        # all.
        order = sorted(
            figures,
            key=lambda ordinal: figures[ordinal].voice.leader != figures[ordinal].voice.member,
        )
        for ordinal in order:
            members = await self._maybe(self._members(ordinal))
            if members is not None:
                return Sighting(members, figures, await self._maybe(self._alarms(ordinal)) or ())
        return Sighting(None, figures)

    async def _figures(self, ordinal: int) -> Figures:
        answer = await self._ask(
            ordinal, lambda at: at.upkeep.Status(rpc.StatusRequest(), timeout=LOOK_TIMEOUT_S)
        )
        header = answer.header
        voice = Voice(int(header.member_id), int(answer.leader), int(answer.raftAppliedIndex))
        sizes = int(answer.dbSize), int(answer.dbSizeInUse)
        return Figures(
            voice,
            int(header.cluster_id),
            answer.version,
            int(header.revision),
            *sizes,
            bool(answer.isLearner),
        )

    async def _members(self, ordinal: int) -> tuple[Member, ...]:
        request = rpc.MemberListRequest(linearizable=True)
        answer = await self._ask(
            ordinal, lambda at: at.members.MemberList(request, timeout=LOOK_TIMEOUT_S)
        )
        return tuple(self._member(item) for item in answer.members)

    def _member(self, item: Any) -> Member:
        """An entry of the list; its host and port say which pod's."""
        hosts = {_host(url): number for number, url in self._peers.items()}
        ordinal = next((hosts[_host(url)] for url in item.peerURLs if _host(url) in hosts), None)
        moved = ordinal is not None and list(item.peerURLs) != [self._peers[ordinal]]
        return Member(
            int(item.ID),
            ordinal,
            started=bool(item.name),
            learner=bool(item.isLearner),
            moved=moved,
        )

    async def _alarms(self, ordinal: int) -> tuple[tuple[int, str], ...]:
        request = rpc.AlarmRequest(action=rpc.AlarmRequest.GET)
        answer = await self._ask(
            ordinal, lambda at: at.upkeep.Alarm(request, timeout=LOOK_TIMEOUT_S)
        )
        return tuple(
            (int(alarm.memberID), rpc.AlarmType.Name(alarm.alarm)) for alarm in answer.alarms
        )

    async def figures(self, ordinal: int) -> Figures:
        """What one member reports. Raises StoreError."""
        return await self._figures(ordinal)

    # --- members ----------------------------------------------------------------------------------

    async def add_learner(self, at: int, ordinal: int) -> int:
        """Expect the pod of `ordinal` as a learner, asking `at`; its new member id. Raises
        StoreError."""
        request = rpc.MemberAddRequest(peerURLs=[self._peers[ordinal]], isLearner=True)
        answer = await self._ask(
            at, lambda member: member.members.MemberAdd(request, timeout=CHANGE_TIMEOUT_S)
        )
        return int(answer.member.ID)

    async def correct_address(self, at: int, member: int, ordinal: int) -> None:
        """Have the others reach `member` where the pod of `ordinal` listens now. Raises
        StoreError."""
        request = rpc.MemberUpdateRequest(ID=member, peerURLs=[self._peers[ordinal]])
        await self._ask(
            at, lambda seen: seen.members.MemberUpdate(request, timeout=CHANGE_TIMEOUT_S)
        )

    async def promote(self, at: int, member: int) -> None:
        """Make a learner a voter. Raises StoreError, also while etcd finds that it lags behind."""
        request = rpc.MemberPromoteRequest(ID=member)
        await self._ask(
            at, lambda seen: seen.members.MemberPromote(request, timeout=CHANGE_TIMEOUT_S)
        )

    async def remove(self, at: int, member: int) -> None:
        """Take a member out of the list. Raises StoreError."""
        request = rpc.MemberRemoveRequest(ID=member)
        await self._ask(
            at, lambda seen: seen.members.MemberRemove(request, timeout=CHANGE_TIMEOUT_S)
        )

    async def move_leader(self, leader: int, target: int) -> None:
        """Have the leader, the member of ordinal `leader`, transfer to the member `target`.
        Raises StoreError."""
        request = rpc.MoveLeaderRequest(targetID=target)
        await self._ask(
            leader, lambda seen: seen.upkeep.MoveLeader(request, timeout=CHANGE_TIMEOUT_S)
        )

    # --- upkeep -----------------------------------------------------------------------------------

    async def compact(self, at: int, revision: int) -> None:
        """Forget history up to `revision`, and wait until the space is free inside the file.
        Raises StoreError."""
        request = rpc.CompactionRequest(revision=revision, physical=True)
        try:
            await self._ask(
                at, lambda seen: seen.keys.Compact(request, timeout=DEFRAGMENT_TIMEOUT_S)
            )
        except StoreError as error:
            if "compacted" not in str(error):  # another client did it before us: as good
                raise

    async def defragment(self, ordinal: int) -> None:
        """Give one member's free space back to its volume; it serves no request until then. Raises
        StoreError."""
        await self._ask(
            ordinal,
            lambda seen: seen.upkeep.Defragment(
                rpc.DefragmentRequest(), timeout=DEFRAGMENT_TIMEOUT_S
            ),
        )

    async def end_alarm(self, at: int, member: int, alarm: str) -> None:
        """Let etcd take writes again. Raises StoreError."""
        request = rpc.AlarmRequest(
            action=rpc.AlarmRequest.DEACTIVATE, memberID=member, alarm=rpc.AlarmType.Value(alarm)
        )
        await self._ask(at, lambda seen: seen.upkeep.Alarm(request, timeout=CHANGE_TIMEOUT_S))

    async def snapshot(self, at: int) -> AsyncIterator[bytes]:
        """The bytes of etcd's own snapshot, piece by piece; `etcdutl snapshot restore` takes
        them. Raises StoreError."""
        connection = self._connection(at)
        stream = connection.upkeep.Snapshot(rpc.SnapshotRequest(), timeout=SNAPSHOT_TIMEOUT_S)
        try:
            async for piece in stream:
                yield piece.blob
        except grpc.aio.AioRpcError as error:
            raise _refusal(connection, error) from error

    # --- connections ------------------------------------------------------------------------------

    def _connection(self, ordinal: int) -> _Connection:
        """The connection to one member, made again when the certificate has been replaced."""
        known = self._connections.get(ordinal)
        if known is not None and (self._tls is None or known.stamp == self._tls.stamp()):
            return known
        if known is not None:
            closing = asyncio.ensure_future(known.channel.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        self._connections[ordinal] = _Connection(self._clients[ordinal], self._tls)
        return self._connections[ordinal]

    async def _ask(self, ordinal: int, send: Callable[[_Connection], Any]) -> Any:
        connection = self._connection(ordinal)
        try:
            return await send(connection)
        except grpc.aio.AioRpcError as error:
            raise _refusal(connection, error) from error

    @staticmethod
    async def _maybe(answer: Awaitable[T]) -> T | None:
        try:
            return await answer
        except StoreError:
            return None

    async def close(self) -> None:
        """End all connections."""
        for connection in self._connections.values():
            await connection.channel.close()
        self._connections.clear()
        await asyncio.gather(*self._closing)


def _host(url: str) -> str:
    """host:port of a URL."""
    return url.rpartition("://")[2]


def _refusal(connection: _Connection, error: Any) -> StoreError:
    """Our error for gRPC's."""
    code, details = error.code(), error.details() or ""
    if code in _REFUSED:
        return StoreError(f"etcd {connection.endpoint} refused: {details} ({code.name})")
    return StoreUnavailable(f"etcd {connection.endpoint}: {details} ({code.name})")
