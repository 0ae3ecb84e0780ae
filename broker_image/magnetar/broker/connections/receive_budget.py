"""Which unfinished frames may have the room that they need.

Owns: `ReceiveBudget`. Imports: nothing. Pure. Invariants: what is reserved never exceeds `most`, nor
that of one address `group_max`; requests of one address are granted in their order, addresses take
turns; who waits holds nothing, so every reservation can end; a request that waits for others is not
overtaken, one that waits for its own address delays no other.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Peer = TypeVar("Peer", bound=Hashable)


class ReceiveBudget(Generic[Peer]):
    """Reservations in bytes. `reserved`: their sum."""

    def __init__(self, most: int, group_max: int) -> None:
        self.most, self.group_max = most, group_max
        self.reserved = 0
        self._held: dict[Peer, tuple[str, int]] = {}
        self._groups: dict[str, int] = {}
        self._queues: dict[str, dict[Peer, int]] = {}
        self._queue_of: dict[Peer, str] = {}
        self._turns: dict[str, None] = {}
        """Groups whose first request may be within their own limit, in the order of their turns."""
        self._granted: list[Peer] = []

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._queue_of)

    def reserve(self, peer: Peer, group: str, size: int) -> bool:
        """Reserve for a peer that neither holds nor waits; False if it has to wait until
        `take_granted` names it. `size` is at most `group_max`."""
        queue = self._queues.setdefault(group, {})
        queue[peer], self._queue_of[peer] = size, group
        if len(queue) == 1:
            self._turns[group] = None
        self._grant()
        if peer not in self._held:
            return False
        self._granted.remove(peer)
        return True

    def release(self, peer: Peer) -> None:
        """End a reservation, or a request that waits; of any other peer nothing happens."""
        if peer in self._held:
            group, size = self._held.pop(peer)
            self.reserved -= size
            self._groups[group] -= size
            if not self._groups[group]:
                del self._groups[group]
        elif peer in self._queue_of:
            group = self._queue_of.pop(peer)
            del self._queues[group][peer]
            if not self._queues[group]:
                del self._queues[group]
                self._turns.pop(group, None)
        else:
            return
        if group in self._queues:
            self._turns.setdefault(group)
        self._grant()

    def take_granted(self) -> list[Peer]:
        """Those that waited and hold their reservation now, each once."""
        granted, self._granted = self._granted, []
        return granted

    def _grant(self) -> None:
        while self._turns:
            group = next(iter(self._turns))
            queue = self._queues[group]
            peer, size = next(iter(queue.items()))
            held = self._groups.get(group, 0)
            if held + size > self.group_max:
                del self._turns[group]  # until one of its own ends
                continue
            if self.reserved + size > self.most:
                return
            del queue[peer], self._queue_of[peer], self._turns[group]
            self._held[peer], self._groups[group] = (group, size), held + size
            self.reserved += size
            self._granted.append(peer)
            if queue:
                self._turns[group] = None  # behind the others
            else:
                del self._queues[group]
