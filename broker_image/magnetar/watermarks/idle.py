"""When a silent producer is idle.

Owns: `IdlePolicy`. Imports: the standard library. Pure. Times are ms that this process saw pass
(`clock.elapsed_ms`): neither a wall clock that jumps nor a time without an owner makes a producer
idle. The policy only decides: the broker writes W_IDLE into the log, so every subscription and
every recovery applies the same decision at the same position. Invariants: a producer is due at
most once until it asserts again; none is due
before `timeout_ms` after its last assertion or message.
"""

from __future__ import annotations

from collections.abc import Iterable


class IdlePolicy:
    """Active producers of one topic, those silent for longest first. `timeout_ms` 0: never idle."""

    __slots__ = ("_seen_ms", "timeout_ms")

    def __init__(self, timeout_ms: int, active: Iterable[str] = (), now_ms: int = 0) -> None:
        """`active` producers are seen now: after a recovery each gets a whole timeout to return."""
        self.timeout_ms = timeout_ms
        self._seen_ms = dict.fromkeys(active, now_ms)

    @property
    def active(self) -> bool:
        """Whether any producer may become idle."""
        return bool(self._seen_ms)

    def asserted(self, producer: str, now_ms: int) -> None:
        """It is active."""
        self._seen_ms.pop(producer, None)
        self._seen_ms[producer] = now_ms

    def sent(self, producer: str, now_ms: int) -> None:
        """It sent messages, and is not idle if it was active."""
        if producer in self._seen_ms:
            self.asserted(producer, now_ms)

    def left(self, producer: str) -> None:
        """It has marked itself as idle."""
        self._seen_ms.pop(producer, None)

    def due(self, now_ms: int, at_most: int) -> list[str]:
        """Producers to write W_IDLE for. If the log refuses it, call `asserted` for them."""
        found: list[str] = []
        if not self.timeout_ms:
            return found
        for producer, seen_ms in self._seen_ms.items():
            if len(found) == at_most or now_ms - seen_ms < self.timeout_ms:
                break
            found.append(producer)
        for producer in found:
            del self._seen_ms[producer]
        return found
