"""What is known of the compactions of one topic.

Owns: `CompactionState`, by which REST shows status and statistics. Imports: none. Source: Pulsar's
LongRunningProcessStatus and CompactionStats. Invariant: it covers the time since the topic is
served here; what was committed before stands in the manifest.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CompactionStatus(StrEnum):
    """As Pulsar names them."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


@dataclass(slots=True)
class CompactionState:
    """The compaction that runs or waits for its turn, or else the last one. Times are wall-clock
    milliseconds, 0: never."""

    status: CompactionStatus = CompactionStatus.NOT_RUN
    last_error: str = ""
    removed_messages: int = 0
    succeeded_ms: int = 0
    failed_ms: int = 0
    duration_ms: int = 0

    def succeed(self, removed: int, now_ms: int, duration_ms: int) -> None:
        self.status, self.last_error = CompactionStatus.SUCCESS, ""
        self.removed_messages, self.succeeded_ms, self.duration_ms = removed, now_ms, duration_ms

    def fail(self, error: str, now_ms: int, duration_ms: int) -> None:
        self.status, self.last_error = CompactionStatus.ERROR, error
        self.failed_ms, self.duration_ms = now_ms, duration_ms
