"""CLOSE_CONSUMER and CLOSE_PRODUCER that a client may not have noticed.

Owns: `EarlyCloses`. Imports: nothing. The Go client (0.19) registers a consumer or producer after it
has read the answer to SUBSCRIBE or PRODUCER; a close that arrives in between is dropped, and the
client waits for messages or receipts that never come. Its first FLOW or SEND proves that the
session is registered: the close is sent again then. Invariant: each close is repeated once at most;
memory is bounded.
"""

from __future__ import annotations


class EarlyCloses:
    """Of one connection, by the client's id: the closes of sessions that were never used."""

    __slots__ = ("_frames", "_limit")

    def __init__(self, limit: int) -> None:
        """`limit`: beyond it the first close is forgotten."""
        self._limit = limit
        self._frames: dict[int, bytes] = {}

    def add(self, session_id: int, frame: bytes) -> None:
        self._frames.pop(session_id, None)
        self._frames[session_id] = frame
        if len(self._frames) > self._limit:
            del self._frames[next(iter(self._frames))]

    def take(self, session_id: int) -> bytes | None:
        """The close to send again to a client that uses this session, if any."""
        return self._frames.pop(session_id, None)
