"""Whether one connection is read.

Owns: `Intake`: the reasons for which reading is held. Imports: asyncio. Invariant: the transport is
read if and only if no reason is left.
"""

from __future__ import annotations

import asyncio

DISK, REQUESTS, TURN, PEER, RATE, ROOM = 1, 2, 4, 8, 16, 32
"""Reasons, as bits: too much waits for the disk, too many requests wait for their answers, other
connections have their turn, the peer does not read, a rate of publishing is used up, there is no room
for the frame that has begun."""


class Intake:
    """`held`: the present reasons."""

    __slots__ = ("_transport", "held")

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self.held = 0

    def begin(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def hold(self, reason: int) -> None:
        """Read nothing more until this reason is released."""
        self.held |= reason
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def release(self, reason: int) -> bool:
        """True if reading goes on: bytes that were received before are to be handled now."""
        if not self.held & reason:
            return False
        self.held &= ~reason
        if self.held or self._transport is None or self._transport.is_closing():
            return False
        self._transport.resume_reading()
        return True
