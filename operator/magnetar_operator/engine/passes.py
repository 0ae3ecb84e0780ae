"""What one pass over an object did.

Owns: the count of effects of the pass under way, and the fields that all its log lines carry.
Imports: contextvars, structlog. Invariant: passes run in tasks of their own, so that each counts
its own effects, those of the tasks that it starts included.
"""

from __future__ import annotations

from contextvars import ContextVar

import structlog


class Pass:
    """One pass. `effects` counts the requests and transactions that could change something."""

    __slots__ = ("effects",)

    def __init__(self) -> None:
        self.effects = 0


_current: ContextVar[Pass | None] = ContextVar("pass", default=None)


def begin(key: str, identifier: str) -> Pass:
    """Begin a pass in this task; its log lines carry the object and the pass."""
    current = Pass()
    _current.set(current)
    structlog.contextvars.bind_contextvars(object=key, reconcile_id=identifier)
    return current


def count_effect() -> None:
    """Something that could change the world is sent now."""
    current = _current.get()
    if current is not None:
        current.effects += 1
