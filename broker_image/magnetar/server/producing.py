"""Producers of all connections.

Owns: PRODUCER and CLOSE_PRODUCER: admission, names, the answer. Imports: wire, topics, errors, server siblings.
Source: facts on protocol semantics 2.12, 2.18.
Invariants: a producer is registered with its topic and its connection or with neither; a request that its client has closed meanwhile leaves
nothing behind; CLOSE_PRODUCER is answered after the producer's last receipt.
"""

from __future__ import annotations

from magnetar.errors import InvalidRequest, LimitExceeded, NotAllowed, ServiceNotReady
from magnetar.names import TopicName
from magnetar.server.connection import Connection
from magnetar.server.consuming import Consuming, TopicOpener
from magnetar.server.context import BrokerContext
from magnetar.server.sessions import ProducerSession
from magnetar.server.topic_host import TopicHost
from magnetar.topics.producers import Producer
from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api

SHARED_ACCESS = 0


class Producing:
    """Answers what is about a producer as a whole; SEND goes straight to its topic."""

    def __init__(self, context: BrokerContext, topics: TopicOpener, consuming: Consuming) -> None:
        self._context, self._topics, self._consuming = context, topics, consuming
        self._number = 0

    async def create(self, connection: Connection, request: api.CommandProducer) -> None:
        producer_id = request.producer_id
        existing = connection.producers.get(producer_id)
        if existing is not None and existing.name == request.producer_name:
            connection.queue(commands.producer_success(request.request_id, existing.name))
            return
        if existing is not None or producer_id in connection.pending_producers:
            raise InvalidRequest(f"producer_id: {producer_id} is in use on this connection; choose another")
        if len(connection.producers) >= self._context.settings.producers_per_connection_max:
            raise LimitExceeded(
                f"producers_per_connection_max: this connection has {len(connection.producers)}; open another connection"
            )
        if request.producer_access_mode != SHARED_ACCESS:
            raise NotAllowed(f"producer_access_mode: {request.producer_access_mode} is not offered yet; use Shared")
        if request.txn_enabled:
            raise NotAllowed("Transactions are not enabled.")
        connection.pending_producers[producer_id] = request.request_id
        try:
            topic = await self._topics.open_topic(TopicName.parse(request.topic), create=True)
            if connection.pending_producers.get(producer_id) != request.request_id:
                return  # closed by the client while it waited
            if request.initial_subscription_name:
                await self._consuming.ensure(topic, request.initial_subscription_name)
            session = self._register_producer(connection, request, topic)
        finally:
            if connection.pending_producers.get(producer_id) == request.request_id:
                del connection.pending_producers[producer_id]
        connection.producers[producer_id] = session
        connection.queue(commands.producer_success(request.request_id, session.name))

    def _register_producer(self, connection: Connection, request: api.CommandProducer, topic: TopicHost) -> ProducerSession:
        if topic.frozen:
            raise ServiceNotReady(f"topic {topic.name} is being unloaded; look it up again")
        name = request.producer_name or self._generate_name()
        session = ProducerSession(connection, request.producer_id, name, request.epoch, topic)
        replaced = topic.core.producers.add(Producer(name, session, connection, request.producer_id, request.epoch))
        if replaced is not None:
            assert isinstance(replaced.handle, ProducerSession)
            replaced.handle.closed = True
        return session

    def _generate_name(self) -> str:
        self._number += 1
        return f"{self._context.incarnation}-{self._number}"

    async def close(self, connection: Connection, request: api.CommandCloseProducer) -> None:
        connection.pending_producers.pop(request.producer_id, None)
        session = connection.producers.get(request.producer_id)
        if session is not None:
            if session.pending:
                await self._context.log.barrier()
            connection.forget_producer(session)
            session.closed = True
        connection.queue(commands.success(request.request_id))
