"""What an etcd's administrator does to it, for tests.

Owns: `EtcdAdmin`: compaction, alarms, leases, leadership of one member. Imports: grpc, aetcd's
stubs.
"""

from __future__ import annotations

from types import TracebackType

import grpc  # type: ignore[import-untyped]
from aetcd import rpc

TIMEOUT_S = 60.0


class EtcdAdmin:
    """Blocking calls to one member; a context manager."""

    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.insecure_channel(
            endpoint.removeprefix("http://"), (("grpc.enable_http_proxy", 0),)
        )
        self._keys, self._leases = rpc.KVStub(self._channel), rpc.LeaseStub(self._channel)
        self._maintenance = rpc.MaintenanceStub(self._channel)

    def __enter__(self) -> EtcdAdmin:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.close()

    def compact(self) -> int:
        """Make all history go away; the revision up to which it is gone."""
        revision = int(
            self._keys.Range(rpc.RangeRequest(key=b"\0"), timeout=TIMEOUT_S).header.revision
        )
        self._keys.Compact(
            rpc.CompactionRequest(revision=revision, physical=True), timeout=TIMEOUT_S
        )
        return revision

    def lease_of(self, key: str) -> int:
        """The lease that a key is bound to; 0 for none."""
        found = self._keys.Range(rpc.RangeRequest(key=key.encode()), timeout=TIMEOUT_S).kvs
        return int(found[0].lease) if found else 0

    def revoke(self, lease: int) -> None:
        self._leases.LeaseRevoke(rpc.LeaseRevokeRequest(ID=lease), timeout=TIMEOUT_S)

    def raise_space_alarm(self) -> None:
        """Make etcd refuse every write that needs space, as it does once its quota is used up."""
        self._alarm(rpc.AlarmRequest.ACTIVATE)

    def end_space_alarm(self) -> None:
        self._alarm(rpc.AlarmRequest.DEACTIVATE)

    def _alarm(self, action: int) -> None:
        member = self._maintenance.Status(rpc.StatusRequest(), timeout=TIMEOUT_S).header.member_id
        self._maintenance.Alarm(
            rpc.AlarmRequest(action=action, memberID=member, alarm=rpc.AlarmType.NOSPACE),
            timeout=TIMEOUT_S,
        )

    def member_and_leader(self) -> tuple[int, int]:
        """This member's id, and that of the leader (0 while there is none)."""
        status = self._maintenance.Status(rpc.StatusRequest(), timeout=TIMEOUT_S)
        return int(status.header.member_id), int(status.leader)

    def hand_leadership_to(self, member: int) -> None:
        """To be asked of the leader."""
        self._maintenance.MoveLeader(rpc.MoveLeaderRequest(targetID=member), timeout=TIMEOUT_S)
