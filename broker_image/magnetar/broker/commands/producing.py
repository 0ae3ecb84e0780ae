"""Producers of all connections.

Owns: PRODUCER and CLOSE_PRODUCER: admission, names, the answer. Imports: wire, topics, errors.
Invariants: a producer is registered with its topic and its connection or with neither; a request
that its client closes before the answer leaves nothing behind; CLOSE_PRODUCER is answered after the
producer's last receipt.
"""

from __future__ import annotations

import asyncio

from magnetar.broker.commands.consuming import Consuming
from magnetar.broker.commands.schemas import SchemaCommands, TopicOpener
from magnetar.broker.commands.sessions import ProducerSession, producer_of
from magnetar.broker.connections.connection import Connection
from magnetar.broker.context import BrokerContext
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.errors import InvalidRequest, LimitExceeded, NotAllowed, SendsGivenUp, ServiceNotReady
from magnetar.names import CLUSTER_NAME, RULES, TopicName
from magnetar.topics.producers import AccessMode, Producer
from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api


class Producing:
    """Answers the commands about a producer as a whole; SEND goes straight to its topic."""

    def __init__(
        self,
        context: BrokerContext,
        topics: TopicOpener,
        consuming: Consuming,
        schemas: SchemaCommands,
    ) -> None:
        self._context, self._topics, self._consuming = context, topics, consuming
        self._schemas = schemas
        self._number = 0

    # --- PRODUCER ---------------------------------------------------------------------------------

    async def create(self, connection: Connection, request: api.CommandProducer) -> None:
        """Answer PRODUCER; while the producer waits for exclusive access this goes on, and
        CLOSE_PRODUCER cancels it."""
        producer_id, pending = request.producer_id, connection.sessions.pending_producers
        refusal_of = connection.sessions.closed_producers.refusal_of(producer_id)
        if refusal_of is not None:
            raise SendsGivenUp(refusal_of)
        existing = producer_of(connection, producer_id)
        if existing is not None and not self._replaces(existing, request):
            self._answer(
                existing,
                request.request_id,
                await existing.topic.publishing.last_sequence(existing.name),
            )
            return
        if producer_id in pending:
            raise ServiceNotReady(
                f"producer_id: {producer_id} is being created already, its topic is being unloaded "
                "or opened; wait"
            )
        count = len(connection.sessions.producers)
        if count + len(pending) >= self._context.settings.producers_per_connection_max:
            raise LimitExceeded(
                f"producers_per_connection_max: this connection has {count}; open "
                "another connection"
            )
        self._check_name(request.producer_name)
        task = asyncio.current_task()
        assert task is not None, "a request runs in a task of its own"
        pending[producer_id] = task
        try:
            topic = await self._topics.open_topic(TopicName.parse(request.topic), create=True)
            topic.publishing.check()
            if existing is None:
                topic.publishing.check_policies(encrypted=request.encrypted)
            self._context.log.space.check_publishing()
            schema_version = await self._schemas.of_producer(
                topic, request.schema if request.HasField("schema") else None
            )
            if request.initial_subscription_name:
                await self._create_subscription(topic, request.initial_subscription_name)
            await self._attach(connection, request, topic, schema_version)
        finally:
            if pending.get(producer_id) is task:
                del pending[producer_id]

    async def _create_subscription(self, topic: TopicHost, name: str) -> None:
        """The initial subscription, at the first message, durably. Raises NotAllowed."""
        if name not in topic.subscriptions and not topic.policies.auto_subscription_creation:
            raise NotAllowed(
                f"initial_subscription_name: {name!r} does not exist on topic {topic.name}, and "
                "the auto subscription creation is not "
                "allowed; create it first"
            )
        await self._consuming.ensure(topic, name)

    def _replaces(self, existing: ProducerSession, request: api.CommandProducer) -> bool:
        """Whether a producer with an id that is in use is its next self. Raises InvalidRequest
        if it is something else."""
        if str(existing.topic.name) != str(TopicName.parse(request.topic)):
            raise InvalidRequest(
                f"producer_id: {request.producer_id} is in use on this connection; choose another"
            )
        return existing.name == request.producer_name and existing.epoch < request.epoch

    async def _attach(
        self,
        connection: Connection,
        request: api.CommandProducer,
        topic: TopicHost,
        schema_version: bytes,
    ) -> None:
        """Register the producer with topic and connection, and say so. Raises what
        `Publishing.attach` does."""
        name = request.producer_name or self._generate_name()
        session = ProducerSession(connection, request.producer_id, name, request.epoch, topic)
        session.schema_version = schema_version
        if request.metadata:
            session.metadata = {pair.key: pair.value for pair in request.metadata}
        session.waits = lambda: self._notify_that_it_waits(session, request.request_id)
        producer = Producer(
            name,
            session,
            connection,
            request.producer_id,
            request.epoch,
            AccessMode(request.producer_access_mode),
            request.topic_epoch if request.HasField("topic_epoch") else None,
            request.user_provided_producer_name,
        )
        try:
            session.topic_epoch = await topic.publishing.attach(session, producer)
            last_sequence = await topic.publishing.last_sequence(name)
            if session.closed:
                raise ServiceNotReady(f"topic {topic.name} is being unloaded; look it up again")
        except BaseException:
            topic.publishing.detach(session)
            raise
        connection.sessions.register_producer(session)
        self._answer(session, request.request_id, last_sequence)

    def _notify_that_it_waits(self, session: ProducerSession, request_id: int) -> None:
        """It must queue for exclusive access; the earlier producer of its id is closed."""
        earlier = producer_of(session.connection, session.producer_id)
        if earlier is not None:
            session.connection.sessions.ignore_producer(earlier)
            earlier.closed = True
        session.connection.queue(commands.producer_success(request_id, session.name, ready=False))

    def _answer(self, session: ProducerSession, request_id: int, last_sequence: int) -> None:
        answer = commands.producer_success(
            request_id,
            session.name,
            last_sequence,
            schema_version=session.schema_version,
            topic_epoch=session.topic_epoch,
        )
        session.connection.queue(answer)

    def _check_name(self, name: str) -> None:
        limit, size = self._context.settings.producer_name_bytes_max, len(name.encode())
        if size > limit:
            raise LimitExceeded(
                f"producer_name: {size} bytes are beyond producer_name_bytes_max {limit}; use a "
                "shorter one"
            )
        if name and (violation := RULES["producer_name"].violation(name)) is not None:
            raise InvalidRequest(violation)

    def _generate_name(self) -> str:
        """A name that no producer of the cluster had before: deduplication would drop what a
        second one of the name publishes."""
        self._number += 1
        return f"{CLUSTER_NAME}-{self._context.number}-{self._number}"

    # --- CLOSE_PRODUCER ---------------------------------------------------------------------------

    async def close(self, connection: Connection, request: api.CommandCloseProducer) -> None:
        """Answer CLOSE_PRODUCER, also for a producer that is not there; one that waits gives up."""
        pending = connection.sessions.pending_producers.pop(request.producer_id, None)
        if pending is not None:
            pending.cancel()
        session = producer_of(connection, request.producer_id)
        if session is not None:
            connection.sessions.ignore_producer(session)
            try:
                if session.pending:
                    await self._context.log.barrier()
            finally:
                session.topic.publishing.detach(session)
                session.closed = True
        connection.queue(commands.success(request.request_id))
