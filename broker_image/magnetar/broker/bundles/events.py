"""Waking those who wait for a bundle.

Owns: `BundleEvents`: one event per bundle that somebody waits for. Imports: asyncio. Invariants:
whoever takes the event of a bundle before looking at its state misses no change; a change of one
bundle wakes nobody who waits for another, so that thousands who are buffered while hundreds of
bundles change hands cost each of them two or three wake-ups.
"""

from __future__ import annotations

import asyncio


class BundleEvents:
    """Events of bundles by name."""

    def __init__(self) -> None:
        self._events: dict[str, asyncio.Event] = {}

    def of(self, name: str) -> asyncio.Event:
        """Set at the next change of this bundle, or of what bears on all."""
        event = self._events.get(name)
        if event is None:
            event = self._events[name] = asyncio.Event()
        return event

    def changed(self, name: str) -> None:
        """Something about this bundle has changed."""
        event = self._events.pop(name, None)
        if event is not None:
            event.set()

    def all_changed(self) -> None:
        """Something that bears on all bundles has changed."""
        events, self._events = self._events, {}
        for event in events.values():
            event.set()
