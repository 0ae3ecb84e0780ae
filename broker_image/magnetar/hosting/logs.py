"""Structured logs.

Owns: how log events leave a process: JSON lines for machines, short lines for people at a terminal.
Imports: structlog, clock, errors. Invariants: one event per line, on standard error; the event's
name is a constant, everything variable is a field; no secret is ever a field; events that name a
peer, which it can cause at will, are limited in rate by name; what was left out is counted in the
next one that is not.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import structlog

from magnetar.clock import SystemClock
from magnetar.errors import InvalidRequest
from magnetar.hosting.audit_file import AuditFile

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

PEER_EVENTS_PER_S, PEER_EVENTS_BURST = 10.0, 50.0
"""Events of one name that name a peer: as many a second, and at once."""


class PeerEventLimit:
    """A processor of structlog that drops events with the field `peer` beyond a rate, by event
    name."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._left: dict[str, tuple[float, float, int]] = {}

    def __call__(
        self, _logger: object, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        if "peer" not in event:
            return event
        name, now = str(event["event"]), self._now_s()
        left, since, dropped = self._left.get(name, (PEER_EVENTS_BURST, now, 0))
        left = min(PEER_EVENTS_BURST, left + (now - since) * PEER_EVENTS_PER_S)
        if left < 1:
            self._left[name] = left, now, dropped + 1
            raise structlog.DropEvent
        self._left[name] = left - 1, now, 0
        if dropped:
            event["left_out"] = dropped
        return event


def configure_logs(level: str, audit_file: str = "") -> None:
    """Set up the process's logs: JSON unless standard error is a terminal; audit events go to
    `audit_file` as well. Raises InvalidRequest for an unknown level, or a file that cannot be
    written."""
    if level not in LEVELS:
        raise InvalidRequest(f"log-level: {level!r} is not known; use {', '.join(LEVELS)}")
    if audit_file:
        try:
            Path(audit_file).open("ab").close()
        except OSError as error:
            raise InvalidRequest(
                f"audit-log: {audit_file} cannot be written: {error.strerror}; name a file that "
                "this process may write"
            ) from error
    machine = not sys.stderr.isatty()
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if machine
        else structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    )
    structlog.configure(
        processors=[
            PeerEventLimit(SystemClock().monotonic),
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            AuditFile(Path(audit_file)) if audit_file else _unchanged,
            structlog.processors.format_exc_info if machine else _unchanged,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def _unchanged(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    return event
