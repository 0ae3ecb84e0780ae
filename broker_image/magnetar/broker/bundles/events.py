"""Waking requests that wait for a bundle.

Owns: `BundleEvents`: one event per bundle that requests wait for. Imports: asyncio. Invariants: a
request that takes the event of a bundle before it reads its state misses no change; a change of one
bundle wakes no request for another, so thousands of them cost two or three wake-ups each while
hundreds of bundles are transferred.
"""

from __future__ import annotations

import asyncio


class BundleEvents:
    """Events of bundles by name."""

    def __init__(self) -> None:
        self._events: dict[str, asyncio.Event] = {}

    def of(self, name: str) -> asyncio.Event:
        """Set at the next change of this bundle, or of all."""
        event = self._events.get(name)
        if event is None:
            event = self._events[name] = asyncio.Event()
        return event

    def changed(self, name: str) -> None:
        """This bundle, or its record, has changed."""
        event = self._events.pop(name, None)
        if event is not None:
            event.set()

    def all_changed(self) -> None:
        """A change concerns all bundles."""
        events, self._events = self._events, {}
        for event in events.values():
            event.set()
