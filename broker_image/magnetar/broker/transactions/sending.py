"""SENDs that name a transaction.

Owns: the verdict on each, the way into the sidecar, and the receipts. Imports: transactions, wire,
errors. Source: PIP-31: a marker seals its transaction, so that what comes behind it is refused.
Invariants: answers leave in the order of the SENDs; a receipt, which names the place in the
sidecar, leaves when the entries, and the record that names their transaction, are durable; nothing
of it is delivered before its transaction commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magnetar.broker.ports import AttachedProducer, SendRun
from magnetar.broker.reading.entry_index import Run
from magnetar.broker.topics.admission import is_whole
from magnetar.broker.topics.traits import sent_chunk
from magnetar.broker.watermarks.topic_watermarks import note_sent
from magnetar.coordinator.identity import check_coordinator
from magnetar.errors import LedgerIdsExhausted, LimitExceeded, NotAllowed, TopicTerminated
from magnetar.names import sidecar_of
from magnetar.storage.log.format import encode_entries, encode_transaction
from magnetar.storage.log.places import RecordPlace
from magnetar.topics.ledgers import Position
from magnetar.topics.sent_chunks import SentChunk
from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import NO_SEQUENCE, Append
from magnetar.transactions.topic.limits import Judgement, Verdict
from magnetar.wire import commands

if TYPE_CHECKING:
    from magnetar.broker.topics.topic_host import TopicHost


@dataclass(slots=True, eq=False)
class _SentRun:
    """A run on its way to stable storage; the log reports where it lies, then that the record
    behind it, which names its transaction, is durable."""

    topic: TopicHost
    session: AttachedProducer
    run: SendRun
    change: Append
    payload: bytes
    lengths: Sequence[int]
    entries_offset: int = 0
    chunk: SentChunk | None = None
    place: RecordPlace | None = None

    def lies(self, place: RecordPlace) -> None:
        self.place = place

    def durable(self, _place: RecordPlace) -> None:
        """Both records are on stable storage: keep where the entries lie, answer."""
        assert self.place is not None, "the entries are in the log before the record behind them"
        used = self.topic.used_with_transactions()
        offset = self.place.offset + self.entries_offset
        run = Run(
            0,
            self.topic.context.incarnation,
            self.place.file,
            offset,
            self.lengths,
            self.run.counts,
            self.change.append_ms,
        )
        used.sidecar.add(self.change.first, run)
        self.topic.bundle.tail_cache.keep(run, self.payload)
        used.buffer.confirm(self.change)
        if self.chunk is not None:
            self.topic.core.chunks.persist(self.chunk)
        self.session.durable(*self.change.first, self.run)


class TransactionalSends:
    """A group of SENDs of one producer in one transaction on its way into the sidecar: judged,
    divided, answered."""

    def __init__(
        self, topic: TopicHost, session: AttachedProducer, run: SendRun, txn: TxnId
    ) -> None:
        self._topic, self._session, self._run, self._txn = topic, session, run, txn
        self._tops = run.tops

    def publish(self) -> None:
        """Take them; every one is answered, now or when it is durable, up to one whose refusal
        closes the producer."""
        begin, last = 0, NO_SEQUENCE
        for index, entry in enumerate(self._run.entries):
            if self._session.leaving:
                return  # one before it was refused: the client gives it up, too, or sends it again
            whole = is_whole(entry)
            chunk = sent_chunk(entry, self._session.name) if self._session.sends_chunks else None
            stored = self._topic.core.chunks.find(chunk) if chunk is not None else None
            if whole and last != NO_SEQUENCE and self._run.sequences[index] <= last:
                self._append(begin, index)  # it may repeat one of those before it
                begin, last = index, NO_SEQUENCE
            try:
                self._check(entry)
                judged = self._judge(index, whole, stored)
            except (NotAllowed, TopicTerminated) as error:
                self._append(begin, index)
                self._session.refuse_send(self._tops[index], error.wire_code, str(error))
                begin, last = index + 1, NO_SEQUENCE
                continue
            if judged.verdict is Verdict.NEW:
                last = self._tops[index] if whole else last
                if chunk is not None:
                    self._append(begin, index)
                    self._append(index, index + 1, chunk)
                    begin, last = index + 1, NO_SEQUENCE
                continue
            self._append(begin, index)
            begin, last = index + 1, NO_SEQUENCE
            if judged.verdict is Verdict.DUPLICATE:
                receipt = commands.send_receipt(
                    self._session.producer_id,
                    self._run.sequences[index],
                    commands.Position(*judged.position),
                    self._run.batch_top(index),
                )
                # it may be on its way, from a connection before this one
                self._session.answer_behind(receipt)
            else:
                self._publish_late(index)
        self._append(begin, len(self._run))

    def _check(self, entry: memoryview) -> None:
        """Raises NotAllowed for what policies refuse."""
        topic = self._topic
        check_coordinator(self._txn.most)
        if not topic.name.persistent:
            raise NotAllowed(
                f"topic {topic.name} is non-persistent: it takes part in no transactions; publish "
                "without one"
            )
        refusal = topic.admission.refusal(entry)
        if refusal is not None:
            raise NotAllowed(refusal[1])

    def _judge(self, index: int, whole: bool, stored: Position | None) -> Judgement:
        """`stored`: where an equal chunk lies. Raises NotAllowed, which fails the SEND,
        TopicTerminated, which ends the producer."""
        buffer = self._topic.used_with_transactions().buffer
        judged = buffer.judge(
            self._txn, self._session.name, self._run.sequences[index] if whole else None
        )
        if stored is not None:
            return Judgement(Verdict.DUPLICATE, stored)
        if (
            judged.verdict is Verdict.ORDINARY
            and not self._topic.context.settings.txn_late_sends_as_ordinary
        ):
            raise NotAllowed(
                f"transaction {self._txn} was COMMITTED: begin another one; topic "
                f"{self._topic.name} takes nothing more of it"
            )
        if self._topic.terminated and judged.verdict is not Verdict.DUPLICATE:
            raise TopicTerminated(
                f"Topic {self._topic.name} was already terminated; nothing can be published to it"
            )
        return judged

    def _publish_late(self, index: int) -> None:
        """Its transaction has committed without it: an ordinary message, if
        `txn_late_sends_as_ordinary` says so."""
        late = self._run.part(index, index + 1)
        self._topic.context.metrics.late_transactional_messages.inc(late.counts[0])
        self._topic.publish(self._session, late)

    def _append(self, begin: int, end: int, chunk: SentChunk | None = None) -> None:
        """Those of them go to the log, as one run; `chunk` is what the one is known by, if it is
        one."""
        if begin == end or self._session.leaving:
            return
        topic, session = self._topic, self._session
        buffer, now_ms = topic.used_with_transactions().buffer, topic.context.clock.wall_ms()
        part, tops = self._run.part(begin, end), self._tops[begin:end]
        whole = [top for top, entry in zip(tops, part.entries, strict=True) if is_whole(entry)]
        lengths = list(map(len, part.entries))
        marks = topic.watermarks
        try:
            if marks is not None:
                marks.check_sending(self._txn, session.name)
            change = buffer.append(
                self._txn,
                session.name,
                count=end - begin,
                highest=max(whole, default=NO_SEQUENCE),
                size=sum(lengths),
                messages=sum(part.counts),
                send_point=topic.core.last_published,
                now_ms=now_ms,
            )
        except (NotAllowed, LimitExceeded, LedgerIdsExhausted) as error:
            for top in tops:
                self._session.refuse_send(top, error.wire_code, str(error))
            return
        run = _SentRun(topic, session, part, change, b"".join(part.entries), lengths)
        if chunk is not None:
            run.chunk = chunk
            topic.core.chunks.push(chunk, Position(*change.first))
        encoded = encode_entries(
            epoch=topic.bundle.epoch,
            ledger=change.first[0],
            first_entry=change.first[1],
            append_ms=now_ms,
            topic=sidecar_of(str(topic.name)).encode(),
            producer=session.encoded_name,
            message_counts=part.counts,
            sequences=tops,
            entries=[run.payload],
            lengths=lengths,
        )
        run.entries_offset = encoded.entries_offset
        session.pending += end - begin
        if marks is not None:
            marks.sends_in(self._txn, session.name)
        record = encode_transaction(epoch=topic.bundle.epoch, topic=str(topic.name), change=change)
        topic.bundle.append(encoded, run.lies)
        topic.bundle.append(record, run.durable)
        if marks is not None or topic.policies.watermarks.in_properties:
            note_sent(topic, session.name, part.entries, sum(lengths), self._txn)


def publish_in_transaction(
    topic: TopicHost, session: AttachedProducer, run: SendRun, txn: TxnId
) -> None:
    """As `TopicHost.publish`, of messages that belong to a transaction."""
    if topic.admits(session, run):
        TransactionalSends(topic, session, run, txn).publish()
