"""Following files that another process replaces.

Owns: `Follower`: reading files again and again, and the treatment of unusable ones. Imports:
asyncio, errors. Invariants: what is broken changes nothing; it is logged once, for it stays until
it is repaired, and counted; no content is ever logged. Nothing ends the following: an unforeseen
error is a failure like any other.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import TypeVar

import structlog

from magnetar.errors import InvalidRequest

log = structlog.get_logger(__name__)

REREAD_S = 1.0
T = TypeVar("T")


class Follower:
    """Follows the files behind one thing. `subject` begins the names of what is logged, `named`
    says where it lies."""

    def __init__(self, subject: str, **named: str) -> None:
        self._subject, self._named = subject, named
        self._trouble = ""
        self.failed = 0

    async def follow(self, read: Callable[[], T], take: Callable[[T], None]) -> None:
        """`read` in a thread, which raises InvalidRequest for what will not do; give what it
        returns to `take`, again if that fails."""
        while True:
            await asyncio.sleep(REREAD_S)
            try:
                take(await asyncio.to_thread(read))
            except InvalidRequest as error:
                self._failed(str(error))
            except Exception as error:  # its text may hold contents
                where = traceback.extract_tb(error.__traceback__)[-1]
                self._failed(f"{type(error).__name__} in {where.name}, line {where.lineno}")
            else:
                self._trouble = ""

    def _failed(self, trouble: str) -> None:
        if trouble != self._trouble:
            self.failed += 1
            log.error(f"{self._subject}.unchanged", **self._named, error=trouble)
        self._trouble = trouble
