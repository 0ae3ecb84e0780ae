"""How far a run is.

Owns: what is counted while a run is at work, the estimate of its end, and publishing both in the
metadata store. Imports: clock, errors, metadata, reporting. Invariants: `estimated` is pure; the
percentage goes back only where a topic is planned again; a store that takes no progress never fails a run; one
write is under way at a time and none is cancelled, so that no older one takes effect after a newer
one, and a driver that has ended by itself leaves no progress behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import structlog

from magnetar.clock import Clock
from magnetar.errors import StoreError
from magnetar.metadata import keys
from magnetar.metadata.records import JobProgressRecord
from magnetar.metadata.store import MetadataStore, Put
from magnetar_jobs.reporting import Report

log = structlog.get_logger(__name__)

SEALING, STARTING, PLANNING, READING, WRITING, COMMITTING, WORKING = (
    "Sealing",
    "Starting",
    "Planning",
    "Reading",
    "Writing",
    "Committing",
    "Working",
)
_BEGINS = {READING: 0.0, WRITING: 0.5, COMMITTING: 0.98}
"""The share of a topic that is done when a phase begins; each lasts until the next one."""
POLL_S, PUBLISH_S = 1.0, 10.0
WRITE_TIMEOUT_S = 5.0
MEASURED_MIN_S = 0.001
"""Nothing is said of the rate of less."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a run has done. `bytes_now` are those of the topic in work, `tasks` the share of its
    phase's tasks that have ended."""

    phase: str = SEALING
    topics_done: int = 0
    topics_total: int = 0
    bytes_done: int = 0
    bytes_now: int = 0
    tasks: float = 0.0

    @property
    def share_now(self) -> float:
        """Of the topic in work."""
        begins = _BEGINS.get(self.phase, 0.0)
        ends = min((share for share in _BEGINS.values() if share > begins), default=begins)
        return begins + (ends - begins) * self.tasks if self.phase in _BEGINS else 0.0


def estimated(counts: Counts, worked_s: float, now_ms: int) -> JobProgressRecord:
    """The record of what was done in `worked_s` seconds. Topics count alike: the size of those to
    come is not known yet."""
    share = (
        min(1.0, (counts.topics_done + counts.share_now) / counts.topics_total)
        if counts.topics_total
        else 0.0
    )
    done = counts.bytes_done + int(counts.bytes_now * counts.share_now)
    return JobProgressRecord(
        phase=counts.phase,
        topics_done=counts.topics_done,
        topics_total=counts.topics_total,
        bytes_done=done,
        bytes_planned=counts.bytes_done + counts.bytes_now,
        percent=int(100 * share) if counts.topics_total else None,
        bytes_per_s=int(done / worked_s) if worked_s >= MEASURED_MIN_S else 0,
        eta_s=int(worked_s * (1 - share) / share) if share > 0 else None,
        updated_ms=now_ms,
    )


class RunProgress:
    """Counts of one attempt; set by the event loop and by Spark's threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts = Counts()
        self._since_s = clock.monotonic()

    @property
    def phase(self) -> str:
        return self._counts.phase

    def enter(self, phase: str) -> None:
        """Another phase begins."""
        if phase == PLANNING and self._counts.topics_done == 0:
            self._since_s = self._clock.monotonic()  # a session's start says nothing of the rate
        self._counts = replace(self._counts, phase=phase, tasks=0.0)

    def begin_topics(self, total: int) -> None:
        self._counts = replace(self._counts, topics_total=total)

    def planned(self, size: int) -> None:
        """The topic in work has so many bytes to read."""
        self._counts = replace(self._counts, bytes_now=size)

    def tasks(self, done: int, total: int) -> None:
        """Of the stages that Spark works on. A phase may have several, one after the other."""
        if total:
            share = max(self._counts.tasks, min(1.0, done / total))
            self._counts = replace(self._counts, tasks=share)

    def topic_done(self) -> None:
        found = self._counts
        self._counts = replace(
            found,
            phase=PLANNING,
            topics_done=found.topics_done + 1,
            bytes_done=found.bytes_done + found.bytes_now,
            bytes_now=0,
            tasks=0.0,
        )

    def record(self) -> JobProgressRecord:
        worked_s = self._clock.monotonic() - self._since_s
        return estimated(self._counts, worked_s, self._clock.wall_ms())


@dataclass(frozen=True, slots=True)
class Publisher:
    """Where the progress of one run is published; `report` shows it to the process that started
    the run."""

    progress: RunProgress
    store: MetadataStore
    key: str
    report: Report
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def publish(self) -> None:
        """Write the progress now, if the store takes it."""
        self.report.progress(self.progress.record())
        try:
            async with self._writing, asyncio.timeout(WRITE_TIMEOUT_S):
                await self.store.transact([], [Put(self.key, self.progress.record().encode())])
        except (StoreError, TimeoutError) as error:
            log.warning("progress.unpublished", error=f"{type(error).__name__}: {error}")

    async def run(self, ended: asyncio.Event) -> None:
        """Publish each phase when it begins, and again while it lasts. A write that was cancelled
        might still take effect, behind the removal."""
        shown, since_s = "", 0.0
        while not ended.is_set():
            since_s += POLL_S
            if self.progress.phase != shown or since_s >= PUBLISH_S:
                shown, since_s = self.progress.phase, 0.0
                await self.publish()
            else:
                self.report.progress(self.progress.record())
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), POLL_S)

    async def remove(self) -> None:
        try:
            async with self._writing, asyncio.timeout(WRITE_TIMEOUT_S):
                await self.store.delete(self.key)
        except (StoreError, TimeoutError) as error:
            log.warning("progress.left", error=f"{type(error).__name__}: {error}")


@asynccontextmanager
async def published(
    store: MetadataStore, clock: Clock, job: str, run: str, report: Report
) -> AsyncIterator[Publisher]:
    """Progress that is published while the block runs."""
    publisher = Publisher(RunProgress(clock), store, keys.job_progress(job, run), report)
    ended = asyncio.Event()
    task = asyncio.create_task(publisher.run(ended), name="progress")
    try:
        yield publisher
    finally:
        ended.set()
        await asyncio.gather(task, return_exceptions=True)
        await publisher.remove()
