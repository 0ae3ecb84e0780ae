"""Messages on their way from a topic to its consumers.

Owns: `MessageSender`: deliveries as MESSAGE commands on their consumers' connections, and the
counters of both. Imports: ports, traits, topics, wire. Invariants: a message is counted after it was
queued; entries of a topic that never had a chunk are not searched for chunks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from magnetar.broker.ports import AttachedConsumer, ServedTopic
from magnetar.broker.topics.traits import chunks_among
from magnetar.wire import runs

if TYPE_CHECKING:
    from magnetar.topics.dispatch.base import Delivery


class MessageSender:
    """Sends the entries of one topic."""

    __slots__ = ("_chunks", "_counters", "_ledgers", "_topic")

    def __init__(self, topic: ServedTopic) -> None:
        self._topic, self._counters = topic, topic.core.counters
        self._ledgers, self._chunks = topic.core.ledgers, topic.core.chunks

    def send(self, delivery: Delivery, first: int, entries: Sequence[memoryview]) -> None:
        """Send one delivery out of `entries`, whose ordinals begin with `first`."""
        session = cast("AttachedConsumer", delivery.consumer)
        if delivery.scattered is None:
            low = delivery.first - first
            entries = entries[low : low + delivery.entries]
        else:
            entries = [entries[ordinal - first] for ordinal in delivery.scattered]
        self._queue(session, delivery, entries)
        traffic, counters, size = self._topic.bundle.traffic, self._counters, sum(map(len, entries))
        session.entries_out += delivery.entries
        session.bytes_out += size
        if delivery.redelivery_counts is not None:
            session.messages_redelivered += sum(map(bool, delivery.redelivery_counts))
        if self._chunks.seen:
            session.chunks_out += chunks_among(entries)
        traffic.messages_out += delivery.messages
        traffic.bytes_out += size
        counters.messages_out += delivery.messages
        counters.bytes_out += size

    def _queue(
        self, session: AttachedConsumer, delivery: Delivery, entries: Sequence[memoryview]
    ) -> None:
        done, ordinals = 0, delivery.ordinals
        start, counts, sets = delivery.first, delivery.redelivery_counts, delivery.ack_sets
        for ledger, low, high in self._ledgers.runs(start, ordinals[-1] + 1):
            entry_ids: Sequence[int] = range(low, high + 1)
            if delivery.scattered is not None:
                until = bisect_left(ordinals, start + high + 1 - low, done)
                entry_ids = [ordinal - start + low for ordinal in ordinals[done:until]]
                start += high + 1 - low
            if not entry_ids:
                continue
            end = done + len(entry_ids)
            frames = runs.scattered_message_frames(
                session.consumer_id,
                ledger,
                entry_ids,
                entries[done:end],
                partition=session.partition,
                redelivery_counts=counts[done:end] if counts is not None else None,
                ack_sets=sets[done:end] if sets is not None else None,
                consumer_epoch=delivery.epoch if session.sends_epoch else None,
            )
            session.connection.queue_messages(session, frames)
            done = end
