"""Copies of entries that arrive more than once.

Owns: `Copies`: which of them an application may still be given. Imports: wire's positions. No I/O,
no clock. Source: the broker redelivers entries as a whole. Of a batch, some messages may be with
the application, some wait in the inbox: these would be handed out twice, and the second time
perhaps after they were acknowledged (a transaction would be refused for it). Invariants: a copy
that arrived before its entry was asked for again, or before it came again, is not handed out: the
copy behind it has every message that is not acknowledged by then; what is remembered for that is
forgotten once everything that arrived until then has left the inbox.
"""

from __future__ import annotations

from collections.abc import Iterable

from magnetar.wire.commands import Position


class Copies:
    """Arrivals of one partition's entries, numbered."""

    __slots__ = ("_arrived", "_left_behind", "_until")

    def __init__(self) -> None:
        self._arrived = self._left_behind = 0
        self._until: dict[Position, int] = {}
        """Entries with the last arrival before they come (or came) again, in the order of these."""

    def arrived(self) -> int:
        """An entry arrived; its number."""
        self._arrived += 1
        return self._arrived

    def came_again(self, position: Position) -> None:
        """The last arrival is this entry, of which earlier copies may wait."""
        self._leave_out(position, self._arrived - 1)

    def come_again(self, positions: Iterable[Position]) -> None:
        """These entries will be redelivered."""
        for position in positions:
            self._leave_out(position, self._arrived)

    def _leave_out(self, position: Position, until: int) -> None:
        self._until.pop(position, None)
        self._until[position] = until

    def all_come_again(self) -> None:
        """Everything will, or is not wanted any more; nothing of it counts as waiting from now
        on."""
        self._left_behind = self._arrived
        self._until.clear()

    def counted(self, copy: int) -> bool:
        """Whether a copy arrived since `all_come_again`."""
        return copy > self._left_behind

    def comes_again(self, copy: int, position: Position) -> bool:
        """Whether this copy of an entry is not to be handed out."""
        return copy <= self._left_behind or (
            bool(self._until) and copy <= self._until.get(position, 0)
        )

    def passed(self, copy: int) -> None:
        """Every copy that arrived before this one has left the inbox."""
        while self._until and self._until[position := next(iter(self._until))] < copy:
            del self._until[position]
