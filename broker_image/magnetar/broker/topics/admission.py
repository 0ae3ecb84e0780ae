"""Which SENDs one topic stores.

Owns: `Admission`: deduplication, encryption, size and termination, tested where a policy or a
property of the topic asks for it; `Recorded`, what a tested run changes once it is durable.
Imports: topics, errors, wire. Invariants: without such policies nothing is tested or remembered;
tested SENDs are answered in their order; replay of the log knows exactly what was known live.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from magnetar.broker.ports import AttachedProducer, SendRun, ServedTopic
from magnetar.broker.topics.traits import CHUNK_COUNT_TAG, metadata_bytes, sent_chunk
from magnetar.clock import elapsed_ms
from magnetar.errors import LedgerIdsExhausted, ProtocolError, WireCode
from magnetar.topics.deduplication import (
    NO_SEQUENCE,
    NOTHING,
    Deduplication,
    DeduplicationLimits,
    Verdict,
)
from magnetar.topics.ledgers import TERMINATED, Position
from magnetar.topics.sent_chunks import SentChunk, SentChunks
from magnetar.topics.topic import DEDUPLICATION
from magnetar.wire import commands
from magnetar.wire.entries import parse_metadata


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a durable run changes: in `known` the producer's highest sequence id becomes `last`, in
    `chunks` `chunk` is stored.

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
        if self.known is not None and self.last != NOTHING:
            self.known.persist(name, self.last)
        if self.chunks is not None and self.chunk is not None:
            self.chunks.persist(self.chunk)


class Admission:
    """Tests the SENDs of one topic. `guarded`: whether any test is due; `refusing`: whether an
    entry may be refused for its content."""

    def __init__(self, topic: ServedTopic) -> None:
        self._topic = topic
        known = topic.core.deduplication
        if known is not None:
            known.recovered(self._limits(), elapsed_ms(topic.context.clock))
        self.refresh()

    def refresh(self) -> None:
        """Policies or properties of the topic may have changed."""
        policies = self._topic.policies
        self.refusing = bool(
            policies.encryption_required
            or policies.max_message_bytes
            or policies.delayed_delivery.max_delay_ms
            or self._terminated
        )
        self.guarded = (
            self.refusing or self._deduplicates or self._topic.core.deduplication is not None
        )

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
        """The parts of a run that pass every test; the caller appends each before it takes the
        next. All other entries are answered."""
        self.follow_policy()
        known, chunks, tops = self._topic.core.deduplication, self._topic.core.chunks, run.tops
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
            """The entries up to `end` that are not yielded or answered yet."""
            nonlocal begin
            first, begin = begin, end + 1
            if end > first:
                learnt = _recorded(known, recorded[first:end]) if known is not None else None
                yield run.part(first, end), learnt

        for index, entry in enumerate(run.entries):
            sequence = run.sequences[index]
            chunk = sent_chunk(entry, session.name) if session.sends_chunks else None
            stored = chunks.find(chunk) if chunk is not None else None
            if stored is not None:
                yield from passed(index)
                receipt = commands.send_receipt(
                    session.producer_id, sequence, commands.Position(*stored)
                )
                session.answer_behind(receipt)
                continue
            refusal = self.refusal(entry)
            verdict, whole = Verdict.NEW, known is None or is_whole(entry)
            if not whole:  # a part of a message has no sequence id of its own
                recorded[index] = NO_SEQUENCE
            elif known is not None:
                verdict = known.judge(session.name, sequence)
            if refusal is None and verdict is Verdict.NEW and not self._terminated:
                if known is not None and whole:
                    known.push(session.name, tops[index])
                if chunk is not None:
                    yield from passed(index)
                    learnt = _recorded(known, recorded[index : index + 1])
                    yield run.part(index, index + 1), replace(learnt, chunks=chunks, chunk=chunk)
                continue
            yield from passed(index)
            self._answer(session, run, index, refusal, verdict)
            if session.leaving:
                return  # its client gives up the SENDs behind, too, or sends them again
        yield from passed(len(run))

    def refusal(self, entry: memoryview) -> tuple[WireCode, str] | None:
        """Why policies refuse an entry."""
        policies = self._topic.policies
        if 0 < policies.max_message_bytes < len(entry) and is_whole(entry, alone=True):
            return (
                WireCode.NOT_ALLOWED,
                f"Exceed maximum message size of {policies.max_message_bytes} bytes",
            )
        latest_ms = policies.delayed_delivery.max_delay_ms
        if latest_ms and _deliver_at_ms(entry) > self._topic.context.clock.wall_ms() + latest_ms:
            return (
                WireCode.NOT_ALLOWED,
                f"Exceeds max allowed delivery delay of {latest_ms} milliseconds",
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
        verdict: Verdict,
    ) -> None:
        sequence = run.sequences[index]
        if refusal is None and verdict is Verdict.DUPLICATE:
            session.answer(
                commands.send_receipt(
                    session.producer_id, sequence, commands.DUPLICATE, run.batch_top(index)
                )
            )
            return
        if refusal is None and verdict is Verdict.UNKNOWN:
            refusal = (
                WireCode.PERSISTENCE,
                f"Cannot tell yet whether sequence id {sequence} of {session.name} is a duplicate; "
                "send again",
            )
        elif refusal is None:
            refusal = WireCode.TOPIC_TERMINATED, f"Topic {self._topic.name} was already terminated"
        session.refuse_send(run.top(index), *refusal)

    def follow_policy(self) -> None:
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

    @property
    def _deduplicates(self) -> bool:
        """The policy's value; without storage there is no log to recover sequence ids from."""
        return self._topic.policies.deduplication_enabled and self._topic.name.persistent

    @property
    def _terminated(self) -> bool:
        return TERMINATED in self._topic.core.properties

    def _limits(self) -> DeduplicationLimits:
        settings = self._topic.context.settings
        return DeduplicationLimits(
            settings.deduplication_producers_max, round(settings.deduplication_inactive_s * 1000)
        )


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


def _deliver_at_ms(entry: memoryview) -> int:
    try:
        return parse_metadata(entry).deliver_at_time
    except ProtocolError:
        return 0


def _is_encrypted(entry: memoryview) -> bool:
    try:
        return bool(parse_metadata(entry).encryption_keys)
    except ProtocolError:
        return False
