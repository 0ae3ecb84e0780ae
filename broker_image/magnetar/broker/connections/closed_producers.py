"""Producers that one connection has had.

Owns: `ClosedProducers`: the producers whose late SENDs are ignored, and the refusal of the next
PRODUCER of an id. Imports: asyncio. Invariants: an id counts as closed for `FORGOTTEN_SENDS_S`;
closing one costs no more however many were closed; memory is bounded.
"""

from __future__ import annotations

import asyncio

FORGOTTEN_SENDS_S = 30.0
"""SENDs for a producer that the broker closed may arrive for about as long; they are dropped
silently."""


class ClosedProducers:
    """By producer id."""

    __slots__ = ("_limit", "_refusals", "_until")

    def __init__(self, limit: int) -> None:
        """`limit`: the most refusals that are remembered."""
        self._limit = limit
        self._until: dict[int, float] = {}  # in the order in which they end
        self._refusals: dict[int, tuple[str, float]] = {}

    def __contains__(self, producer_id: int) -> bool:
        until = self._until.get(producer_id)
        return until is not None and asyncio.get_running_loop().time() < until

    def add(self, producer_id: int) -> None:
        now = asyncio.get_running_loop().time()
        self._until.pop(producer_id, None)
        while self._until and self._until[oldest := next(iter(self._until))] <= now:
            del self._until[oldest]
        self._until[producer_id] = now + FORGOTTEN_SENDS_S

    def refuse_once(self, producer_id: int, text: str) -> None:
        """Have the next PRODUCER of that id refused with `text`; beyond the limit the first
        refusal is forgotten."""
        self._refusals.pop(producer_id, None)
        self._refusals[producer_id] = text, asyncio.get_running_loop().time() + FORGOTTEN_SENDS_S
        if len(self._refusals) > self._limit:
            del self._refusals[next(iter(self._refusals))]

    def refusal_of(self, producer_id: int) -> str | None:
        """What a PRODUCER of that id is refused with, once, and only if it comes about as soon
        as a client does that was closed."""
        text, until = self._refusals.pop(producer_id, ("", 0.0))
        return text if asyncio.get_running_loop().time() < until else None
