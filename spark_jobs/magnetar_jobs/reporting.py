"""What a driver says to the process that started it.

Owns: `Report`: lines of JSON on standard output. Imports: the standard library, metadata records.
Invariant: each line is one object with one key: `progress` (a `JobProgressRecord`), `result` (the
counts of the run) or `error` (one line of text); without a reader nothing is written.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import structlog

from magnetar.metadata.records import JobProgressRecord


@dataclass(frozen=True, slots=True)
class Report:
    """`enabled`: a process reads standard output; logs go to standard error then."""

    enabled: bool

    def begin(self) -> None:
        if self.enabled:
            structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

    def progress(self, record: JobProgressRecord) -> None:
        self._line("progress", asdict(record))

    def result(self, counts: Mapping[str, Any]) -> None:
        self._line("result", dict(counts))

    def error(self, text: str) -> None:
        self._line("error", " ".join(text.split()))

    def _line(self, name: str, value: object) -> None:
        if self.enabled:
            print(json.dumps({name: value}), flush=True)
