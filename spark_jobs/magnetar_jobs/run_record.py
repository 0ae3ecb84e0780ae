"""The durable record of a job's run.

Owns: `jobs/<job>/<run>`: started, succeeded, failed. Imports: clock, errors, metadata. Invariants:
a run that succeeded stays so, whatever a late duplicate of its driver does; the record decides
about the run, not the pod.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from magnetar.clock import Clock
from magnetar.errors import StoreError
from magnetar.metadata import keys
from magnetar.metadata.records import JobRunRecord
from magnetar.metadata.store import Compare, MetadataStore, Put

STARTED, SUCCEEDED, FAILED = "started", "succeeded", "failed"
MESSAGE_LENGTH_MAX = 2000
ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run of one job, in one store."""

    store: MetadataStore
    clock: Clock
    kind: str
    job: str
    run: str

    async def begin(self) -> JobRunRecord | None:
        """Note the start; the record of an earlier success if there is one (then there is
        nothing to do)."""
        return await self._write(JobRunRecord(self.kind, STARTED, self.clock.wall_ms(), 0, {}))

    async def succeed(self, result: dict[str, Any], message: str = "") -> None:
        """Note the success with its kind-specific counts, and what else there is to say of it."""
        await self._write(
            JobRunRecord(
                self.kind, SUCCEEDED, 0, self.clock.wall_ms(), result, message[:MESSAGE_LENGTH_MAX]
            )
        )

    async def fail(self, message: str) -> None:
        """Note a failure and why. It may be followed by another start."""
        await self._write(
            JobRunRecord(
                self.kind, FAILED, 0, self.clock.wall_ms(), {}, message[:MESSAGE_LENGTH_MAX]
            )
        )

    async def _write(self, record: JobRunRecord) -> JobRunRecord | None:
        """Replace anything but a success, keeping the start time; the success that stood in the
        way, if any."""
        key = keys.job_run(self.job, self.run)
        for _attempt in range(ATTEMPTS_MAX):
            item = await self.store.get(key)
            known = JobRunRecord.decode(item.value) if item is not None else None
            if known is not None and known.state == SUCCEEDED:
                return known
            started = record.started_ms or (known.started_ms if known is not None else 0)
            value = JobRunRecord(
                record.kind,
                record.state,
                started,
                record.finished_ms,
                record.result,
                record.message,
            ).encode()
            result = await self.store.transact(
                [Compare(key, "mod", "=", item.mod_revision if item is not None else 0)],
                [Put(key, value)],
            )
            if result.succeeded:
                return None
        raise StoreError(
            f"{key}: changed {ATTEMPTS_MAX} times while it was written; do two drivers run the "
            "same run?"
        )
