"""Structured logs.

Owns: how log events leave a process: JSON lines for machines, short lines for people at a terminal. Imports: structlog.
Invariants: one event per line, on standard error; the event's name is a constant, everything variable is a field; no secret is ever a field.
"""

from __future__ import annotations

import logging
import sys

import structlog

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logs(level: str = "info", json_lines: bool | None = None) -> None:
    """Set up the process's logs; `json_lines` None = JSON unless standard error is a terminal."""
    machine = not sys.stderr.isatty() if json_lines is None else json_lines
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if machine
        else structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info if machine else _unchanged,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def _unchanged(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return event
