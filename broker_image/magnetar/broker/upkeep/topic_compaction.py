"""Compaction of topics by their owner.

Owns: `TopicCompactor`: which topics are compacted, by request or because of their threshold, one at
a time, and what came of it. Imports: compaction, bundles, siblings. Invariants: a view changes by
one compare-and-swap, so a broker that dies, or loses the topic, leaves the old view, and an intent
and files for the collector; of a broker and a job that compact one topic the first commit wins, and
the other plans again; what is beyond the limits is refused with what to do instead; looking for
topics over their threshold costs the same however large they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import structlog

from magnetar.broker.bundles.ownership import Ownership
from magnetar.broker.context import BrokerContext
from magnetar.broker.topics.compaction_state import CompactionState, CompactionStatus
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.broker.upkeep.compaction_input import CompactionInput, CompactionPlan
from magnetar.broker.upkeep.view_writing import ViewWriter, WrittenView
from magnetar.clock import elapsed_ms
from magnetar.compaction.commit import KIND, Committer
from magnetar.compaction.intents import Conflict
from magnetar.errors import (
    AlreadyRunning,
    LimitExceeded,
    MagnetarError,
    ServiceNotReady,
    StoreUnavailable,
)
from magnetar.metadata import keys
from magnetar.metadata.records import IntentRecord
from magnetar.storage.turns import Turns

log = structlog.get_logger(__name__)

ATTEMPTS_MAX = 3
AGAIN_S = 0.5
WAITING_MAX = 1000
RETRY_MS = 600_000
"""A topic over its threshold whose compaction failed is not compacted again for so long."""
TOPICS_PER_TURN = 500


class TopicCompactor:
    """Compacts the topics that are served here."""

    def __init__(self, context: BrokerContext, ownership: Ownership) -> None:
        self._context, self._ownership = context, ownership
        self._waiting: dict[str, TopicHost] = {}
        self._wanted = asyncio.Event()
        self._running = self._uncertain = False
        self._committer = Committer(
            context.store, context.volume, context.clock, "", context.incarnation
        )

    def request(self, host: TopicHost) -> None:
        """Compact a topic when its turn comes. Raises AlreadyRunning if it runs or waits,
        LimitExceeded."""
        state = host.compaction
        if state is not None and state.status is CompactionStatus.RUNNING:
            raise AlreadyRunning("Compaction already in progress")
        if len(self._waiting) >= WAITING_MAX:
            raise LimitExceeded(f"{WAITING_MAX} topics wait for their compaction; try again later")
        self._check_size(host, _bytes_of(host))
        if state is None:
            state = host.compaction = CompactionState()
        state.status = CompactionStatus.RUNNING
        self._waiting[str(host.name)] = host
        self._wanted.set()

    def status(self, host: TopicHost) -> CompactionState:
        """What came of the topic's compactions; an earlier owner's by its result."""
        if host.compaction is not None:
            return host.compaction
        viewed = host.bundle.known_view(host) is not None
        return CompactionState(CompactionStatus.SUCCESS if viewed else CompactionStatus.NOT_RUN)

    async def look(self) -> None:
        """Begin what is due by thresholds. Raises StoreError."""
        await self._resolve()
        turns = Turns(TOPICS_PER_TURN)
        for host in self._topics():
            threshold = host.policies.compaction_threshold
            if threshold and self._may_begin(host) and _backlog(host) > threshold:
                try:
                    self.request(host)
                except AlreadyRunning:
                    pass
                except LimitExceeded as error:
                    self._failed(host, error, 0)
            await turns.after(1)

    def _topics(self) -> Iterator[TopicHost]:
        for owned in list(self._ownership.owned.values()):
            yield from list(owned.topics.values()) if owned.serving else ()

    def _may_begin(self, host: TopicHost) -> bool:
        state = host.compaction
        if state is None or state.status is not CompactionStatus.ERROR:
            return True
        return self._context.clock.wall_ms() - state.failed_ms >= RETRY_MS

    def _check_size(self, host: TopicHost, size: int) -> None:
        most = self._context.settings.compaction_bytes_max
        if size > most:
            raise LimitExceeded(
                f"topic {host.name} has {size} bytes to compact, and brokers compact up to "
                f"compaction_bytes_max={most}",
                "use a DataJob of type compaction (examples/compaction.yaml)",
            )

    # --- running ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """One topic after another, until cancelled."""
        while True:
            while self._waiting:
                name = next(iter(self._waiting))
                await self._compact_one(self._waiting.pop(name))
            self._wanted.clear()
            await self._wanted.wait()

    async def _compact_one(self, host: TopicHost) -> None:
        """Compact a topic and remember what came of it, whatever that is."""
        began_ms = elapsed_ms(self._context.clock)
        self._running = True
        try:
            written = await self.compact(host)
        except Exception as error:
            if not isinstance(error, MagnetarError | FileNotFoundError):
                self._context.metrics.surprises.note(
                    "topic compaction", error, topic=str(host.name)
                )
            self._uncertain = self._uncertain or isinstance(error, StoreUnavailable)
            self._failed(host, error, elapsed_ms(self._context.clock) - began_ms)
            return
        finally:
            self._running = False
        duration_ms = elapsed_ms(self._context.clock) - began_ms
        state = host.compaction or CompactionState()
        removed = written.messages_in - written.messages_out
        state.succeed(removed, self._context.clock.wall_ms(), duration_ms)
        self._context.metrics.compaction.runs.labels("success").inc()
        self._context.metrics.compaction.seconds.observe(duration_ms / 1000)

    def _failed(self, host: TopicHost, error: Exception, duration_ms: int) -> None:
        if host.compaction is None:
            host.compaction = CompactionState()
        text = str(error) or type(error).__name__
        host.compaction.fail(text, self._context.clock.wall_ms(), duration_ms)
        self._context.metrics.compaction.runs.labels("error").inc()
        log.warning("topic.compaction_failed", topic=str(host.name), error=text)

    async def compact(self, host: TopicHost) -> WrittenView:
        """Compact a topic now: nothing is written if its view has everything. Raises Conflict if
        others came first `ATTEMPTS_MAX` times, LimitExceeded, ServiceNotReady, StoreError,
        StorageError."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                return await self._attempt(host)
            except (Conflict, ServiceNotReady) as error:
                log.warning(
                    "topic.compaction_conflict",
                    topic=str(host.name),
                    attempt=attempt,
                    error=str(error),
                )
                if attempt == ATTEMPTS_MAX:
                    raise
                await asyncio.sleep(AGAIN_S)  # a split, or a transfer that is given up
        raise AssertionError("the loop returns or raises")

    async def _attempt(self, host: TopicHost) -> WrittenView:
        plan = await CompactionPlan.of(host)
        if plan is None:
            return WrittenView()
        self._check_size(host, plan.bytes)
        self._context.log.space.check_publishing()
        committed = await self._committer.commit(plan.basis, partial(self._write, host, plan))
        host.bundle.catalog.take(committed.manifest)
        self._context.metrics.compaction.bytes_read.inc(plan.bytes)
        log.info(
            "topic.compacted",
            topic=str(host.name),
            generation=committed.generation,
            messages_in=committed.written.messages_in,
            messages_out=committed.written.messages_out,
        )
        return committed.written

    async def _write(self, host: TopicHost, plan: CompactionPlan, intent: str) -> WrittenView:
        return await ViewWriter(self._context, plan, CompactionInput(host, plan), intent).write()

    async def _resolve(self) -> None:
        """End intents of ours whose commit has an unknown outcome: one that took place has removed
        its own. They would keep the bundle's files as they are."""
        if not self._uncertain or self._running:
            return
        for item in (await self._context.store.range(keys.INTENTS)).items:
            intent = IntentRecord.decode(item.value)
            if (intent.kind, intent.run) == (KIND, self._context.incarnation):
                await self._context.store.delete(item.key)
        self._uncertain = False


def _behind(host: TopicHost) -> int:
    """The first entry that the compacted view does not stand for."""
    view = host.bundle.catalog.compacted(str(host.name))
    ledgers = host.core.ledgers
    return ledgers.ordinal_after(view.horizon) if view is not None else ledgers.first


def _backlog(host: TopicHost) -> int:
    """Bytes of the entries behind the view, estimated."""
    host.core.age(elapsed_ms(host.context.clock))
    return host.core.ages.bytes_from(_behind(host), host.core.ledgers.end)


def _bytes_of(host: TopicHost) -> int:
    """Bytes that a compaction would read now."""
    view = host.bundle.catalog.compacted(str(host.name))
    viewed = sum(segment.bytes for segment in view.segments) if view is not None else 0
    return viewed + _backlog(host)
