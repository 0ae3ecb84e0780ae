"""Decisions that are kept.

Owns: `DecisionLog`: records of decisions on the shared volume, where every broker reads them: the
leader's on moves, owners' on splits and merges.
Imports: balance.decision, the volume. Invariants: records are kept for a day, at most `KEPT_MAX` of
them and `KEPT_BYTES_MAX` bytes, oldest removed first; a volume that fails costs records, never
decisions.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import structlog

from magnetar.broker.context import BrokerContext
from magnetar.errors import StorageError, StoreError
from magnetar.storage.dated import surplus
from magnetar.storage.names import DECISIONS, decision_name, decision_place

if TYPE_CHECKING:
    from magnetar.balance.decision import Decision

log = structlog.get_logger(__name__)

KEPT_MS = 86_400_000
KEPT_MAX = 1000
KEPT_BYTES_MAX = 64 << 20
UNSAVED_MAX = 16
AUTHOR_BITS = 62
"""Of the random number by which an owner's decisions differ from others of the same moment."""


class DecisionLog:
    """The records of all leaders."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._unsaved: deque[tuple[int, bytes]] = deque(maxlen=UNSAVED_MAX)

    def add(self, at_ms: int, encoded: bytes) -> None:
        """Keep a decision from the next `save` on."""
        self._unsaved.append((at_ms, encoded))

    async def save(self, author: int) -> None:
        """Write what was added, and remove what is too old or too much. `author` keeps decisions
        of the same moment apart: the leader's term, or any number that owners rarely share."""
        if not self._unsaved:
            return
        volume = self._context.volume
        try:
            while self._unsaved and self._context.log.space.short is None:
                at_ms, encoded = self._unsaved[0]
                await volume.put_if_absent(decision_name(at_ms, author, len(encoded)), encoded)
                self._unsaved.popleft()
            places = {name: decision_place(name) or (0, 0) for name in await self.names()}
            since_ms = self._context.clock.wall_ms() - KEPT_MS
            for name in surplus(places, since_ms, KEPT_BYTES_MAX, KEPT_MAX):
                await volume.remove(name)
        except StorageError as error:
            log.warning("balance.decision_not_kept", error=str(error))

    async def names(self) -> list[str]:
        """Names of the records, newest first. Raises StorageError."""
        found = await self._context.volume.list(DECISIONS)
        return sorted((name for name in found if decision_place(name) is not None), reverse=True)

    async def newest(
        self, count: int, before: str = "", kind: str = ""
    ) -> list[tuple[str, Decision]]:
        """The last decisions (of one kind) with their names, newest first; with `before` those
        before it. Damaged ones are passed over. Raises StorageError."""
        found: list[tuple[str, Decision]] = []
        for name in await self.names():
            if len(found) == count:
                break
            if before and name >= before:
                continue
            decision = await self.read(name)
            if decision is not None and kind in ("", decision.kind):
                found.append((name, decision))
        return found

    async def read(self, name: str) -> Decision | None:
        """One record; None if it is gone or damaged. Raises StorageError."""
        if decision_place(name) is None or not await self._context.volume.exists(name):
            return None
        data = await self._context.volume.read(name)

        def decode() -> Decision:
            from magnetar.balance.decision import Decision  # not before one is read

            return Decision.decode(data)

        try:
            return await self._context.compute(decode)
        except StoreError as error:
            log.warning("balance.decision_unreadable", name=name, error=str(error))
            return None
