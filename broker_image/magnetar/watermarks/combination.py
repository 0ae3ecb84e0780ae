"""One watermark of several topics or partitions.

Owns: `Combination`, for clients. Imports: generator, minimum. Pure. Invariants: the minimum over
all sources; a source without a watermark means no advance; what was delivered goes back by `Reset`
only. So a new partition never makes a watermark wrong.
"""

from __future__ import annotations

from collections.abc import Iterable

from magnetar.watermarks.generator import Effect, Reset, Watermark
from magnetar.watermarks.minimum import Minimum


class Combination:
    """Sources by name."""

    __slots__ = ("_delivered_ms", "_known", "_missing")

    def __init__(self, sources: Iterable[str] = ()) -> None:
        self._missing = set(sources)
        self._known: Minimum[str] = Minimum()
        self._delivered_ms: int | None = None

    @property
    def watermark_ms(self) -> int | None:
        """The last one delivered."""
        return self._delivered_ms

    def add(self, source: str) -> None:
        """A partition or topic joined: the watermark stays until it has one as well."""
        if source not in self._known:
            self._missing.add(source)

    def remove(self, source: str) -> Effect | None:
        """A source has no more messages: it was read to its end, or is subscribed no more."""
        self._missing.discard(source)
        self._known.remove(source)
        return self._settled()

    def apply(self, source: str, effect: Effect) -> Effect | None:
        """What a source delivered. A broker that recovered begins lower: that is no step back."""
        assert source in self._missing or source in self._known, source
        before, event_ms = self._known.get(source), effect.event_ms
        if isinstance(effect, Watermark):
            self._missing.discard(source)
            self._known.set(
                source, effect.event_ms if before is None else max(before, effect.event_ms)
            )
            return self._settled()
        if event_ms is None:
            self._known.remove(source)
            self._missing.add(source)
        else:
            self._missing.discard(source)
            self._known.set(source, event_ms)
        self._delivered_ms = None
        self._settled()
        return Reset(self._delivered_ms)

    def _settled(self) -> Watermark | None:
        least = None if self._missing else self._known.least()
        if least is None or (self._delivered_ms is not None and least[0] <= self._delivered_ms):
            return None
        self._delivered_ms = least[0]
        return Watermark(least[0])
