"""Producers of one topic in service.

Owns: attaching and detaching producers as the topic's registry decides, and whether the topic takes
producers at all. What they send goes through `topic_host` and `admission`, not through here.
Imports: topics, errors. Invariants: every producer that the registry removes or refuses is
notified; an exclusive grant is answered only after its epoch is durable.
"""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING, cast

import structlog

from magnetar.broker.ports import AttachedProducer, ServedTopic
from magnetar.broker.topics.publish_histogram import PublishHistogram
from magnetar.broker.topics.published_run import CountedRun, PublishedRun
from magnetar.clock import elapsed_ms
from magnetar.errors import (
    BacklogQuotaExceeded,
    BacklogQuotaRefused,
    InvalidRequest,
    ProducerBusy,
    ProducerFenced,
    ServiceNotReady,
    TopicTerminated,
)
from magnetar.policy_shapes import REFUSE
from magnetar.topics.deduplication import NOTHING
from magnetar.topics.ledgers import TERMINATED
from magnetar.topics.producers import Grant, Producer
from magnetar.topics.quota import WITHIN, Verdict, judge

if TYPE_CHECKING:
    from magnetar.broker.topics.admission import Admission
    from magnetar.hosting.advertised import Successor

log = structlog.get_logger(__name__)

TOPIC_EPOCH = "topic_epoch"
"""Durable property of a topic: the epoch of its last exclusive grant."""


class PublishBlock(enum.StrEnum):
    """Why a topic takes no producers: its backlog is over a quota whose policy is to let them
    wait, or to refuse them."""

    HOLD = "hold"
    EXCEPTION = "exception"


class Publishing:
    """The producers of one topic. `block`: why none is taken now; `run_type`: what becomes of
    their runs, which are counted in `histogram` where the settings ask for it."""

    def __init__(self, topic: ServedTopic, admission: Admission) -> None:
        self._topic, self._admission, self._registry = topic, admission, topic.core.producers
        epoch = topic.core.properties.get(TOPIC_EPOCH)
        self._registry.topic_epoch = int(epoch) if epoch is not None else None
        self.block: PublishBlock | None = None
        self.histogram: PublishHistogram | None = None
        self.run_type = PublishedRun
        self._follow_settings()

    def refresh(self) -> None:
        """Policies or settings may have changed."""
        self._follow_settings()
        if not self._topic.frozen:
            self.compare_backlog()

    def _follow_settings(self) -> None:
        settings = self._topic.context.settings
        if not (settings.metrics_publish_histograms and self._topic.name.persistent):
            self.histogram = None
        elif self.histogram is None:
            self.histogram = PublishHistogram(self._topic.context.clock.monotonic())
        self.run_type = PublishedRun if self.histogram is None else CountedRun

    # --- whether producers are taken --------------------------------------------------------------

    def compare_backlog(self) -> Verdict:
        """Compare the backlog with its quotas; the caller carries out the rest of the verdict.

        Over a quota that blocks, all producers are closed: they reconnect, and are refused until
        the backlog is within it.
        """
        topic, core = self._topic, self._topic.core
        quotas = topic.policies.backlog_quotas
        if not topic.name.persistent or (not quotas and self.block is None):
            return WITHIN
        now_ms, end = elapsed_ms(topic.context.clock), core.ledgers.end
        core.age(now_ms)
        first = min(
            (found.cursor.mark_delete for found in core.subscriptions.values() if found.durable),
            default=end,
        )
        age_s = core.ages.waited_ms(first, now_ms) / 1000 if first < end else 0.0
        verdict = judge(quotas, core.ages.bytes_from(first, end), age_s)
        block = None
        if verdict.block:
            block = PublishBlock.EXCEPTION if verdict.block == REFUSE else PublishBlock.HOLD
        if block is not self.block:
            log.info("topic.backlog_quota", topic=str(topic.name), block=verdict.block or "lifted")
            self.block = block
            if block is not None:
                self.close_all(None)
        return verdict

    def check(self) -> None:
        """Raises TopicTerminated, BacklogQuotaExceeded, BacklogQuotaRefused, ServiceNotReady if
        no producer is taken."""
        name = self._topic.name
        if self._topic.frozen:
            raise _unloaded(self._topic)
        self._admission.follow_policy()
        self.compare_backlog()
        if TERMINATED in self._topic.core.properties:
            raise TopicTerminated(
                f"Topic {name} was already terminated; nothing can be published to it"
            )
        if self.block is not None:
            kind = BacklogQuotaExceeded if self.block is PublishBlock.HOLD else BacklogQuotaRefused
            raise kind(
                f"Cannot create producer on topic {name} with backlog quota exceeded; consume or "
                "raise the quota"
            )

    def check_policies(self, *, encrypted: bool) -> None:
        """Whether policies allow one more producer. Raises ProducerBusy, InvalidRequest."""
        limit, name = self._topic.policies.max_producers, self._topic.name
        if 0 < limit <= len(self._registry):
            raise ProducerBusy(
                f"Topic {name} reached max producers limit, maxProducersPerTopic {limit}; close "
                "some or raise it"
            )
        if self._topic.policies.encryption_required and not encrypted:
            raise InvalidRequest(
                f"Encryption is required in {name}; configure the producer with encryption keys"
            )

    # --- producers --------------------------------------------------------------------------------

    async def attach(self, session: AttachedProducer, producer: Producer) -> int | None:
        """Register a producer; returns the topic epoch that it holds, None for Shared.

        May wait long for exclusive access: then `session.waits` is called first. A caller that is
        cancelled must `detach`. Raises ProducerBusy, ProducerFenced, ServiceNotReady, StorageError.
        """
        await self._abort_dead_connections(producer)
        self.check()
        grant = self._registry.add(producer)
        if grant is None:
            grant = await session.wait_for_grant()
        else:
            self._close_replaced(grant)
        known = self._topic.core.deduplication
        if known is not None:
            known.connected(session.name, self._now_ms())
        if grant.topic_epoch is not None:
            await self._topic.update_properties({TOPIC_EPOCH: str(grant.topic_epoch)})
        return grant.topic_epoch

    async def _abort_dead_connections(self, producer: Producer) -> None:
        """A producer that excludes this one, or its successor, may belong to a connection whose
        peer is gone: probe those connections."""
        asked: set[Producer] = set()
        while left := [
            found for found in self._registry.in_the_way_of(producer) if found not in asked
        ]:
            asked.update(left)
            connections = dict.fromkeys(_session(found).connection for found in left)
            if any(await asyncio.gather(*[connection.is_alive() for connection in connections])):
                return

    async def last_sequence(self, name: str) -> int:
        """The highest sequence id of a producer's name that is known to be durable; -1 for none.
        Raises StorageError.

        Deduplication knows it, and so do transactions: a producer that starts below it sends
        duplicates.
        """
        topic, known = self._topic, self._topic.core.deduplication
        if known is None and topic.last_sequence_in_transactions(name) is None:
            return NOTHING
        # A SEND under way must not count as stored; and a producer that starts behind an outdated
        # id would give its new messages ids that its successor takes for duplicates.
        log = topic.context.log
        await (log.confirm() if known is None or known.settled(name) else log.barrier())
        sent = topic.last_sequence_in_transactions(name)
        return max(
            known.last_sequence(name) if known is not None else NOTHING,
            sent if sent is not None else NOTHING,
        )

    def detach(self, session: AttachedProducer) -> None:
        """A producer leaves, or gives up waiting; the next one in the queue is granted."""
        # in use until now, even if no expiry check ever saw it
        self._topic.unused_since_ms = None
        succession = self._registry.remove(session.name, session)
        if succession is None:
            return
        known = self._topic.core.deduplication
        if known is not None and session.name not in self._registry.by_name:
            known.disconnected(session.name, self._now_ms())
        for refused in succession.refused:
            _session(refused).refuse(_fenced(self._topic))
        if succession.granted is not None:
            _session(succession.granted.producer).grant(succession.granted)

    def _close_replaced(self, grant: Grant) -> None:
        """Notify the producers that a grant closes or refuses."""
        for closed in grant.closed:
            if (
                closed.connection is grant.producer.connection
                and closed.producer_id == grant.producer.producer_id
            ):
                _session(closed).closed = True  # replaced by itself
            else:
                _session(closed).close_by_broker(None)
        for refused in grant.refused:
            _session(refused).refuse(_fenced(self._topic))

    def close_all(self, successor: Successor | None) -> None:
        """Close all producers, with the successor's address if known, and refuse those that
        wait."""
        for waiting in self._registry.waiting:
            self._registry.remove(waiting.name, waiting.handle)
            _session(waiting).refuse(_unloaded(self._topic))
        for producer in list(self._registry.by_name.values()):
            _session(producer).close_by_broker(successor)

    def _now_ms(self) -> int:
        return elapsed_ms(self._topic.context.clock)


def _session(producer: Producer) -> AttachedProducer:
    return cast("AttachedProducer", producer.handle)


def _fenced(topic: ServedTopic) -> ProducerFenced:
    return ProducerFenced(
        f"Fenced out: exclusive access to topic {topic.name} has passed to another producer"
    )


def _unloaded(topic: ServedTopic) -> ServiceNotReady:
    return ServiceNotReady(f"topic {topic.name} is being unloaded; look it up again")
