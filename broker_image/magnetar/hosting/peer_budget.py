"""What connections may take before they are authenticated, and by address.

Owns: `PeerBudget`, which counts the connections of one kind, and `peer_group`, the unit that is
counted. Imports: errors, ipaddress. Pure. Invariants: there are never more than `most` connections;
of those that have shown nothing yet there are at most `unknown_max`; for one more the oldest of the
group that has most of them is dropped, so that a flood from one address drops itself; a connection
that is kept is never dropped.
"""

from __future__ import annotations

from collections.abc import Hashable
from ipaddress import AddressValueError, IPv6Address
from typing import Any, Generic, TypeVar

from magnetar.errors import LimitExceeded

_SUBNET_BITS = 64
"""Of an IPv6 address: one subscriber has as many addresses below it as it likes."""

Peer = TypeVar("Peer", bound=Hashable)


def peer_group(peername: Any) -> str:
    """The unit by which peers are counted: an IPv4 address, or the /64 of an IPv6 address.
    `peername` is a socket's; unknown ones are one group."""
    if not isinstance(peername, tuple) or not peername:
        return ""
    host = str(peername[0])
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host)
    except AddressValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{IPv6Address(int(address) >> _SUBNET_BITS << _SUBNET_BITS)}/{_SUBNET_BITS}"


class PeerBudget(Generic[Peer]):
    """Counts connections: all, those of one group, and those that have shown nothing yet."""

    def __init__(self, name: str, *, most: int, group_max: int, unknown_max: int) -> None:
        """`name` is the setting that bounds all of them; a refusal names it."""
        self._name, self.most, self.group_max, self.unknown_max = name, most, group_max, unknown_max
        self._groups: dict[Peer, str] = {}
        self._count: dict[str, int] = {}
        self._unknown: dict[str, dict[Peer, None]] = {}
        self._unknown_count = 0
        self.dropped = 0
        """How many had to make room."""

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, peer: Peer) -> bool:
        return peer in self._groups

    @property
    def unknown(self) -> int:
        """How many have shown nothing yet."""
        return self._unknown_count

    def admit(self, peer: Peer, group: str) -> Peer | None:
        """Count one more, which has shown nothing yet. Returns the one that has to go for it; the
        caller ends that connection.

        Raises LimitExceeded if there is no room: it is not counted.
        """
        count, oldest = self._count.get(group, 0), None
        if count >= self.group_max and not self._unknown.get(group):
            raise LimitExceeded(
                f"{self._name}: {count} connections are open from {group or 'unknown'}, the most "
                "one address may have"
            )
        if count >= self.group_max:
            oldest = self._drop_oldest(group)
        elif self._unknown_count and (
            self._unknown_count >= self.unknown_max or len(self._groups) >= self.most
        ):
            oldest = self._drop_oldest(
                max(self._unknown, key=lambda name: len(self._unknown[name]))
            )
        elif len(self._groups) >= self.most:
            raise LimitExceeded(
                f"{self._name}: {len(self._groups)} connections are open, the most there may be; "
                "close some"
            )
        self._groups[peer] = group
        self._count[group] = self._count.get(group, 0) + 1
        self._unknown.setdefault(group, {})[peer] = None
        self._unknown_count += 1
        return oldest

    def keep(self, peer: Peer) -> None:
        """It has shown what is asked of it: it is not dropped for others."""
        group = self._groups.get(peer)
        if group is not None:
            self._no_longer_unknown(peer, group)

    def spare(self, peer: Peer) -> None:
        """It may be dropped for others again, after those that may be dropped already."""
        group = self._groups.get(peer)
        if group is not None and peer not in self._unknown.setdefault(group, {}):
            self._unknown[group][peer] = None
            self._unknown_count += 1

    def forget(self, peer: Peer) -> None:
        """It is gone; one that is not counted is passed over."""
        group = self._groups.pop(peer, None)
        if group is None:
            return
        self._no_longer_unknown(peer, group)
        if self._count[group] == 1:
            del self._count[group]
        else:
            self._count[group] -= 1

    def _drop_oldest(self, group: str) -> Peer:
        oldest = next(iter(self._unknown[group]))
        self.forget(oldest)
        self.dropped += 1
        return oldest

    def _no_longer_unknown(self, peer: Peer, group: str) -> None:
        unknown = self._unknown.get(group)
        if unknown is None or peer not in unknown:
            return
        del unknown[peer]
        self._unknown_count -= 1
        if not unknown:
            del self._unknown[group]
