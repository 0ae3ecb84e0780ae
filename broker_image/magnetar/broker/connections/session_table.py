"""Producers, consumers and watchers of one connection.

Owns: `SessionTable`: what a client's numeric ids stand for, what is being created under them, and
what comes too late or too early for them. Imports: ports. Invariant: a closed connection leaves no
session with its topic or subscription, whatever fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from magnetar.broker.connections.closed_producers import ClosedProducers
from magnetar.broker.connections.early_acknowledgements import EarlyAcknowledgements
from magnetar.broker.connections.early_closes import EarlyCloses
from magnetar.broker.ports import AttachedConsumer, AttachedProducer, ListWatcher

log = structlog.get_logger(__name__)


class SessionTable:
    """By ids of the client."""

    __slots__ = (
        "closed_producers",
        "consumers",
        "early_acknowledgements",
        "early_consumer_closes",
        "early_producer_closes",
        "pending_consumers",
        "pending_producers",
        "producers",
        "watchers",
    )

    def __init__(self, producers_max: int, consumers_max: int) -> None:
        self.producers: dict[int, AttachedProducer] = {}
        self.consumers: dict[int, AttachedConsumer] = {}
        self.watchers: dict[int, ListWatcher] = {}
        self.pending_producers: dict[int, asyncio.Task[Any]] = {}
        self.pending_consumers: dict[int, int] = {}
        self.closed_producers = ClosedProducers(producers_max)
        self.early_acknowledgements = EarlyAcknowledgements()
        self.early_producer_closes = EarlyCloses(producers_max)
        self.early_consumer_closes = EarlyCloses(consumers_max)

    def flow(self, consumer_id: int, permits: int) -> bytes | None:
        """Take a FLOW; the close to send again if its consumer was closed before its first one."""
        consumer = self.consumers.get(consumer_id)
        if consumer is None or consumer.closed:
            return self.early_consumer_closes.take(consumer_id)
        if permits:
            consumer.flow(permits)
        return None

    def register_producer(self, session: AttachedProducer) -> None:
        self.producers[session.producer_id] = session
        self.early_producer_closes.take(session.producer_id)

    def register_consumer(self, session: AttachedConsumer) -> None:
        self.consumers[session.consumer_id] = session
        self.early_consumer_closes.take(session.consumer_id)

    def refuse_producer_once(self, producer_id: int, reason: str) -> None:
        self.closed_producers.refuse_once(producer_id, reason)

    def ignore_producer(self, session: AttachedProducer) -> None:
        """Drop a producer from the connection; its late SENDs are ignored for a while."""
        if self.producers.get(session.producer_id) is session:
            del self.producers[session.producer_id]
        self.closed_producers.add(session.producer_id)

    def forget_producer(self, session: AttachedProducer) -> None:
        self.ignore_producer(session)
        session.detach()

    def forget_consumer(self, session: AttachedConsumer) -> None:
        if self.consumers.get(session.consumer_id) is session:
            del self.consumers[session.consumer_id]
        session.detach()

    def drop(self, peer: str) -> None:
        """The connection is lost: drop everything, at once."""
        steps: list[Callable[[], None]] = [watcher.stop for watcher in self.watchers.values()]
        sessions: list[AttachedProducer | AttachedConsumer] = [*self.producers.values()]
        for session in [*sessions, *self.consumers.values()]:
            session.closed = True
            steps.append(session.detach)
        self.producers.clear()
        self.consumers.clear()
        self.watchers.clear()
        for step in steps:
            try:
                step()
            except Exception:  # an exclusive session left behind would exclude its successor
                log.exception("connection.session_not_dropped", peer=peer)
