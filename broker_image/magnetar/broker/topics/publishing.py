"""Producers of one topic in service.

Owns: attaching and detaching producers as the topic's registry decides, whether the topic takes
producers at all, and what is tested of SENDs where a policy asks for it: deduplication, encryption,
size, termination. Imports: topics, errors, wire. Invariants: whoever the registry puts out or
refuses is told; an exclusive grant is told only after its epoch is durable; without such policies
nothing is tested or remembered; what is tested is answered in the order of the SENDs; replay of the
log knows exactly what was known live.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import structlog

from magnetar.broker.ports import AttachedProducer, SendRun, ServedTopic
from magnetar.broker.topics.traits import CHUNK_COUNT_TAG, metadata_bytes, sent_chunk
from magnetar.clock import elapsed_ms
from magnetar.errors import (
    BacklogQuotaExceeded,
    BacklogQuotaRefused,
    InvalidRequest,
    LedgerIdsExhausted,
    ProducerBusy,
    ProducerFenced,
    ProtocolError,
    ServiceNotReady,
    TopicTerminated,
    WireCode,
)
from magnetar.policies import REFUSE
from magnetar.topics.deduplication import NO_SEQUENCE, NOTHING, Deduplication, DeduplicationLimits
from magnetar.topics.deduplication import Verdict as Judgement
from magnetar.topics.ledgers import Position
from magnetar.topics.producers import Grant, Producer, Succession
from magnetar.topics.quota import WITHIN, Verdict, judge
from magnetar.topics.sent_chunks import SentChunk, SentChunks
from magnetar.topics.topic import DEDUPLICATION, TERMINATED
from magnetar.wire import commands
from magnetar.wire.entries import parse_metadata

if TYPE_CHECKING:
    from magnetar.hosting.advertised import Successor

log = structlog.get_logger(__name__)

TOPIC_EPOCH = "topic_epoch"
"""Durable property of a topic: the epoch of its last exclusive grant."""


class PublishBlock(enum.StrEnum):
    """Why a topic takes no producers: its backlog is beyond a quota that says to let them wait,
    or to refuse them."""

    HOLD = "hold"
    EXCEPTION = "exception"


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is learnt of a run once it is durable: by `known` its highest sequence id, `last`, and
    by `chunks` that `chunk` is there.

    The log gets `sequences`, one per entry.
    """

    known: Deduplication | None
    sequences: Sequence[int]
    last: int
    chunks: SentChunks | None = None
    chunk: SentChunk | None = None

    def placed(self, position: Position) -> None:
        """The run has its first position."""
        if self.chunks is not None and self.chunk is not None:
            self.chunks.push(self.chunk, position)

    def persist(self, name: str) -> None:
        """The run is durable."""
        if self.known is not None and self.last != NOTHING:
            self.known.persist(name, self.last)
        if self.chunks is not None and self.chunk is not None:
            self.chunks.persist(self.chunk)


class Publishing:
    """What a topic does with producers as a whole, and with SENDs that something is to be tested
    of: chunks of messages among them.

    `guarded` tells whether there is anything to test, `refusing` whether an entry may be refused
    for what it is.
    """

    def __init__(self, topic: ServedTopic) -> None:
        self._topic, self._registry = topic, topic.core.producers
        epoch = topic.core.properties.get(TOPIC_EPOCH)
        self._registry.topic_epoch = int(epoch) if epoch is not None else None
        self._block: PublishBlock | None = None
        if topic.core.deduplication is not None:
            topic.core.deduplication.recovered(self._limits(), self._now_ms())
        self.refresh()

    def refresh(self) -> None:
        """Policies or properties of the topic may have changed."""
        policies, core = self._topic.policies, self._topic.core
        self.refusing = bool(
            policies.encryption_required or policies.max_message_bytes or self._terminated
        )
        self.guarded = self.refusing or self._deduplicates or core.deduplication is not None

    # --- whether producers are taken --------------------------------------------------------------

    @property
    def block(self) -> PublishBlock | None:
        """Why no producers are taken now."""
        return self._block

    def compare_backlog(self) -> Verdict:
        """Compare the backlog with its quotas; what is to be done about it beside what is done
        here.

        Beyond one that says so all producers are sent away: they come back, and are refused until
        it is lifted.
        """
        quotas, core, clock = (
            self._topic.policies.backlog_quotas,
            self._topic.core,
            self._topic.context.clock,
        )
        if not self._topic.name.persistent or (not quotas and self._block is None):
            return WITHIN
        now_ms, end = elapsed_ms(clock), core.ledgers.end
        core.age(now_ms)
        first = min(
            (found.cursor.mark_delete for found in core.subscriptions.values() if found.durable),
            default=end,
        )
        age_s = (now_ms - core.ages.appended_by(first, now_ms)) / 1000 if first < end else 0.0
        verdict = judge(quotas, core.ages.bytes_from(first, end), age_s)
        block = None
        if verdict.block:
            block = PublishBlock.EXCEPTION if verdict.block == REFUSE else PublishBlock.HOLD
        if block is not self._block:
            log.info(
                "topic.backlog_quota", topic=str(self._topic.name), block=verdict.block or "lifted"
            )
            self._block = block
            if block is not None:
                self.close_all(None)
        return verdict

    def check(self) -> None:
        """Raises TopicTerminated, BacklogQuotaExceeded, BacklogQuotaRefused, ServiceNotReady if
        no producer may come."""
        name = self._topic.name
        if self._topic.frozen:
            raise ServiceNotReady(f"topic {name} is being unloaded; look it up again")
        self._follow_policy()
        self.compare_backlog()
        if TERMINATED in self._topic.core.properties:
            raise TopicTerminated(
                f"Topic {name} was already terminated; nothing can be published to it"
            )
        if self._block is not None:
            kind = BacklogQuotaExceeded if self._block is PublishBlock.HOLD else BacklogQuotaRefused
            raise kind(
                f"Cannot create producer on topic {name} with backlog quota exceeded; consume or "
                "raise the quota"
            )

    def check_policies(self, *, encrypted: bool) -> None:
        """Whether policies let one more producer come. Raises ProducerBusy, InvalidRequest."""
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
        """Let a producer in; the topic's epoch that it holds, None for Shared.

        May wait long for exclusive access: then `session.waits` is called first. A caller that is
        cancelled must `detach`. Raises ProducerBusy, ProducerFenced, ServiceNotReady, StorageError.
        """
        await self._put_ghosts_out(producer)
        self.check()
        grant = self._registry.add(producer)
        if grant is None:
            grant = await session.wait_for_grant()
        else:
            self._inform(grant)
        if self._topic.core.deduplication is not None:
            self._topic.core.deduplication.connected(session.name, self._now_ms())
        if grant.topic_epoch is not None:
            await self._topic.update_properties({TOPIC_EPOCH: str(grant.topic_epoch)})
        return grant.topic_epoch

    async def _put_ghosts_out(self, producer: Producer) -> None:
        """Whoever is in the way, one that succeeds a ghost too, may be what is left of a
        connection that nobody has noticed the end of."""
        asked: set[Producer] = set()
        while left := [
            found for found in self._registry.in_the_way_of(producer) if found not in asked
        ]:
            asked.update(left)
            connections = dict.fromkeys(_session(found).connection for found in left)
            if any(await asyncio.gather(*[connection.is_alive() for connection in connections])):
                return

    async def last_sequence(self, name: str) -> int:
        """The highest sequence id that is known to be durable under a producer's name; -1 for none.
        Raises StorageError.

        Deduplication knows it, and transactions remember what was sent in them: who begins below it
        repeats.
        """
        topic, known = self._topic, self._topic.core.deduplication
        if known is None and topic.last_sequence_in_transactions(name) is None:
            return NOTHING
        # Of what is still on its way nobody may say that it is there; and a producer that begins
        # behind an id of the past would number again what its successor holds for duplicates.
        log = topic.context.log
        await (log.confirm() if known is None or known.settled(name) else log.barrier())
        sent = topic.last_sequence_in_transactions(name)
        return max(
            known.last_sequence(name) if known is not None else NOTHING,
            sent if sent is not None else NOTHING,
        )

    def detach(self, session: AttachedProducer) -> None:
        """A producer leaves, or gives up waiting; the next one gets its chance."""
        # it was in use until now, whether a look saw that or not
        self._topic.unused_since_ms = None
        succession = self._registry.remove(session.name, session)
        if succession is not None:
            if (
                self._topic.core.deduplication is not None
                and session.name not in self._registry.by_name
            ):
                self._topic.core.deduplication.disconnected(session.name, self._now_ms())
            self._succeed(succession)

    def _succeed(self, succession: Succession) -> None:
        for refused in succession.refused:
            _session(refused).refuse(_fenced(self._topic))
        if succession.granted is not None:
            _session(succession.granted.producer).grant(succession.granted)

    def _inform(self, grant: Grant) -> None:
        """Whoever had to make room learns of it."""
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
        """Send all producers away, to the successor's address if known, and those that wait,
        too."""
        away = ServiceNotReady(f"topic {self._topic.name} is being unloaded; look it up again")
        for waiting in self._registry.waiting:
            self._registry.remove(waiting.name, waiting.handle)
            _session(waiting).refuse(away)
        for producer in list(self._registry.by_name.values()):
            _session(producer).close_by_broker(successor)

    # --- SENDs that are tested --------------------------------------------------------------------

    def take_ledger(self, session: AttachedProducer, run: SendRun) -> bool:
        """Get the topic's ledger id in this term; without one these SENDs are refused, to be
        sent again."""
        try:
            self._topic.core.take_ledger()
        except LedgerIdsExhausted as error:
            session.refuse_sends(run, error)
            return False
        return True

    def admitted(
        self, session: AttachedProducer, run: SendRun
    ) -> Iterator[tuple[SendRun, Recorded | None]]:
        """Parts of a run that pass every test that is due, each to be appended before the next is
        asked for; the rest is answered in its place."""
        self._follow_policy()
        known, tops = self._topic.core.deduplication, run.tops
        if (
            known is not None
            and not self.refusing
            and not session.sends_chunks
            and all(map(is_whole, run.entries))
            and known.push_run(session.name, run.sequences, tops)
        ):
            yield run, Recorded(known, tops, tops[-1])
            return
        recorded, begin = list(tops), 0

        def passed(end: int) -> Iterator[tuple[SendRun, Recorded | None]]:
            if end > begin:
                learnt = _recorded(known, recorded[begin:end]) if known is not None else None
                yield run.part(begin, end), learnt

        for index, entry in enumerate(run.entries):
            chunk = sent_chunk(entry, session.name) if session.sends_chunks else None
            stored = self._topic.core.chunks.find(chunk) if chunk is not None else None
            if stored is not None:
                yield from passed(index)
                begin = index + 1
                self._answer_repeated(session, run.sequences[index], stored)
                continue
            verdict, refusal = self._judge(session, run.sequences[index], entry, known)
            if verdict is None:
                recorded[index] = NO_SEQUENCE
            new = verdict in (None, Judgement.NEW)
            if new and refusal is None and not self._terminated:
                if known is not None and verdict is not None:
                    known.push(session.name, tops[index])
                if chunk is not None:
                    yield from passed(index)
                    begin = index + 1
                    learnt = _recorded(known, recorded[index:begin])
                    yield (
                        run.part(index, begin),
                        replace(learnt, chunks=self._topic.core.chunks, chunk=chunk),
                    )
                continue
            yield from passed(index)
            begin = index + 1
            self._answer(session, run, index, refusal, verdict or Judgement.NEW)
            if session.leaving:
                # closed for it: its client gives up what lies behind, too, or sends it again
                return
        yield from passed(len(run))

    def _judge(
        self,
        session: AttachedProducer,
        sequence: int,
        entry: memoryview,
        known: Deduplication | None,
    ) -> tuple[Judgement | None, tuple[WireCode, str] | None]:
        """What deduplication says of an entry (None: it is a part of a message, which has no
        sequence id of its own), and what policies have against it."""
        refusal = self.refusal(entry)
        if known is None:
            return Judgement.NEW, refusal
        return known.judge(session.name, sequence) if is_whole(entry) else None, refusal

    def _answer_repeated(
        self, session: AttachedProducer, sequence: int, stored: tuple[int, int]
    ) -> None:
        """A chunk that the topic has: the receipt names where."""
        receipt = commands.send_receipt(session.producer_id, sequence, commands.Position(*stored))
        session.answer_behind(receipt)

    @property
    def _deduplicates(self) -> bool:
        """What the policy says; a topic without storage has no log that could know what was
        sent."""
        return self._topic.policies.deduplication_enabled and self._topic.name.persistent

    @property
    def _terminated(self) -> bool:
        return TERMINATED in self._topic.core.properties

    def refusal(self, entry: memoryview) -> tuple[WireCode, str] | None:
        """What policies have against an entry."""
        policies = self._topic.policies
        if 0 < policies.max_message_bytes < len(entry) and is_whole(entry, alone=True):
            return (
                WireCode.NOT_ALLOWED,
                f"Exceed maximum message size of {policies.max_message_bytes} bytes",
            )
        if policies.encryption_required and not _is_encrypted(entry):
            return WireCode.METADATA, "Messages must be encrypted"
        return None

    def _answer(
        self,
        session: AttachedProducer,
        run: SendRun,
        index: int,
        refusal: tuple[WireCode, str] | None,
        verdict: Judgement,
    ) -> None:
        """Answer a SEND that is not stored."""
        sequence = run.sequences[index]
        if refusal is None and verdict is Judgement.DUPLICATE:
            duplicate = commands.DUPLICATE
            session.answer(
                commands.send_receipt(
                    session.producer_id, sequence, duplicate, run.batch_top(index)
                )
            )
            return
        if refusal is None and verdict is Judgement.UNKNOWN:
            refusal = (
                WireCode.PERSISTENCE,
                f"Cannot tell yet whether sequence id {sequence} of {session.name} is a duplicate; "
                "send again",
            )
        elif refusal is None:
            refusal = WireCode.TOPIC_TERMINATED, f"Topic {self._topic.name} was already terminated"
        session.refuse_send(run.top(index), *refusal)

    def _follow_policy(self) -> None:
        """Begin or end deduplication where the policy has changed; its record divides the log
        into what was tested and what was not."""
        core, wanted = self._topic.core, self._deduplicates
        if wanted == (core.deduplication is not None):
            return
        core.deduplicate(wanted)
        if core.deduplication is not None:
            core.deduplication.limits = self._limits()
        value = "on" if wanted else ""
        self._topic.append_update(
            {DEDUPLICATION: value}, lambda: core.change_property(DEDUPLICATION, value)
        )
        self.refresh()

    def _limits(self) -> DeduplicationLimits:
        settings = self._topic.context.settings
        return DeduplicationLimits(
            settings.deduplication_producers_max, round(settings.deduplication_inactive_s * 1000)
        )

    def _now_ms(self) -> int:
        return elapsed_ms(self._topic.context.clock)


def _recorded(known: Deduplication | None, sequences: Sequence[int]) -> Recorded:
    last = next((sequence for sequence in reversed(sequences) if sequence != NO_SEQUENCE), NOTHING)
    return Recorded(known, sequences, last)


def is_whole(entry: memoryview, *, alone: bool = False) -> bool:
    """Whether deduplication looks at an entry: it is no chunk before the last one. With `alone`:
    whether it is no chunk at all."""
    if CHUNK_COUNT_TAG not in metadata_bytes(entry):
        return True
    try:
        metadata = parse_metadata(entry)
    except ProtocolError:
        return True
    chunks = metadata.num_chunks_from_msg
    return chunks <= 1 or (not alone and metadata.chunk_id == chunks - 1)


def _is_encrypted(entry: memoryview) -> bool:
    try:
        return bool(parse_metadata(entry).encryption_keys)
    except ProtocolError:
        return False


def _session(producer: Producer) -> AttachedProducer:
    return cast("AttachedProducer", producer.handle)


def _fenced(topic: ServedTopic) -> ProducerFenced:
    return ProducerFenced(
        f"Fenced out: exclusive access to topic {topic.name} has passed to another producer"
    )
