"""The audit log as a file.

Owns: `AuditFile`, a processor of structlog that copies audit events into a file of JSON lines.
Imports: structlog. Invariants: the file and the one before it have `bytes_max` each at most; an
event that cannot be written stays in the log, which then says so once for each new reason; nothing
of an event is changed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import structlog

FILE_BYTES_MAX = 64 << 20
PREFIX = "audit."
MODE = 0o640


class AuditFile:
    """`FILE`, and `FILE.1` with what was before."""

    def __init__(self, path: Path, bytes_max: int = FILE_BYTES_MAX) -> None:
        self._path, self._bytes_max = path, bytes_max
        self._failed = ""

    def __call__(
        self, _logger: object, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        if not str(event.get("event", "")).startswith(PREFIX):
            return event
        try:
            self._write(json.dumps(event, default=str).encode() + b"\n")
            self._failed = ""
        except OSError as error:
            if error.strerror != self._failed:
                self._failed = str(error.strerror)
                return {**event, "audit_file": f"not written: {self._failed}"}
        return event

    def _write(self, line: bytes) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, MODE)
        try:
            if os.fstat(file).st_size + len(line) > self._bytes_max:
                os.replace(self._path, f"{self._path}.1")
                os.close(file)
                file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, MODE)
            os.write(file, line)
        finally:
            os.close(file)
