"""The client.

Owns: `Client`, which makes producers, consumers and readers and closes those that are left.
Imports: the rest of the package. Invariants: everything made by a client shares its connections;
`close` ends every task and connection it started.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, Self

from magnetar.client.attachment import Session
from magnetar.client.connection import KEEP_ALIVE_S, Credentials
from magnetar.client.consumer import Consumer, Reader, Subscribed
from magnetar.client.coordinators import Coordinators
from magnetar.client.dead_letters import DeadLetters
from magnetar.client.growth import PARTITIONS_CHECK_S
from magnetar.client.inbox import Inbox
from magnetar.client.messages import EARLIEST, LATEST, MessageId
from magnetar.client.outgoing import Batching, Compression
from magnetar.client.partitions import Partitions
from magnetar.client.patterns import MatchingTopics, TopicPattern
from magnetar.client.pool import Pool
from magnetar.client.producer import KeyHash, Producer, Route, Router, Routing
from magnetar.client.redelivery import DeadLetterPolicy, RedeliveryBackoff
from magnetar.client.schemas import BYTES, Schema, T
from magnetar.client.sending import (
    MESSAGES_PENDING_MAX,
    SEND_TIMEOUT_S,
    ProducerOptions,
)
from magnetar.client.subscription_options import (
    NEGATIVE_ACK_DELAY_S,
    RECEIVE_QUEUE_MESSAGES_MAX,
    ConsumerOptions,
    InitialPosition,
    SubscriptionType,
)
from magnetar.client.table_view import TableView
from magnetar.client.transactions import TRANSACTION_TIMEOUT_S, Transaction
from magnetar.client.watermarks import OnWatermark, Watermarks
from magnetar.clock import Clock, SystemClock
from magnetar.errors import InvalidRequest
from magnetar.names import TopicName
from magnetar.network import AsyncioNetwork, Network
from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api

OPERATION_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 10.0

MATCHING_SHARES = 50
"""A topic that a pattern names gets the queue of one of so many that share it."""


class Client:
    """A client of the cluster behind `service_url` (`pulsar://host:port[,host:port]`). Use it in
    `async with`."""

    def __init__(
        self,
        service_url: str,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        operation_timeout_s: float = OPERATION_TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        keep_alive_s: float = KEEP_ALIVE_S,
        partitions_check_s: float | None = PARTITIONS_CHECK_S,
        token: str | Callable[[], str] | None = None,
        basic: tuple[str, str] | None = None,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`token`: a JSON Web Token, or what gives the one of the moment whenever the broker asks;
        `basic`: a user and a password; `credentials` for any other method.

        `partitions_check_s`: how often producers, consumers and readers of partitioned topics look
        for new partitions; None: never. `tls`: what to trust and what to present at `pulsar+ssl://`
        addresses (None = what the system trusts).
        """
        if token is not None:
            credentials = Credentials(
                "token", token.encode() if isinstance(token, str) else lambda: token().encode()
            )
        if basic is not None:
            credentials = Credentials("basic", ":".join(basic).encode())
        credentials = credentials or Credentials()
        pool = Pool(
            network or AsyncioNetwork(),
            service_url,
            credentials,
            connect_timeout_s,
            keep_alive_s,
            tls,
        )
        self.clock = clock or SystemClock()
        self._session = Session(pool, self.clock, operation_timeout_s)
        self._partitions = Partitions(self._session, partitions_check_s)
        self._open: set[Producer[Any] | Consumer[Any] | Reader[Any]] = set()
        self._coordinators = Coordinators(
            self._session, lambda topic: self._partitions.count(topic, create=False)
        )

    async def create_producer(
        self,
        topic: str,
        name: str | None = None,
        *,
        schema: Schema[T] | None = None,
        batching: Batching | None = None,
        compression: Compression | str = Compression.NONE,
        send_timeout_s: float | None = SEND_TIMEOUT_S,
        pending_max: int = MESSAGES_PENDING_MAX,
        access_mode: str = "Shared",
        chunking: bool = False,
        routing: Routing | Router = Routing.ROUND_ROBIN,
        key_hash: KeyHash = KeyHash.JAVA,
        properties: Mapping[str, str] | None = None,
        initial_subscription: str | None = None,
    ) -> Producer[T]:
        """A producer of a topic, attached to all its partitions, later ones too. `access_mode`:
        Shared, Exclusive, ExclusiveWithFencing.

        Messages are bytes, or what `schema` takes. Those with a key go to the partition that
        `key_hash` names, others where `routing` says (a function decides for both). With
        `chunking`, messages beyond the broker's limit travel in several entries, unless they are in
        a batch. `initial_subscription` is created, from the first message on, before the producer
        can send. Raises the broker's refusal, or the last failure when the operation timeout is
        over.
        """
        written: Schema[Any] = BYTES if schema is None else schema
        options = ProducerOptions(
            name=name,
            batching=batching,
            compression=Compression(compression),
            send_timeout_s=send_timeout_s,
            messages_pending_max=pending_max,
            access_mode=api.ProducerAccessMode.Value(access_mode),
            properties=properties or {},
            initial_subscription=initial_subscription,
            schema=written,
            chunking=chunking,
        )
        partitions, growth = await self._partitions.produce(topic, options)
        route = Route(key_hash, routing, self.clock)
        producer: Producer[T] = Producer(
            str(TopicName.parse(topic)),
            partitions,
            written,
            route,
            growth,
            self._open.discard,
            self.clock,
        )
        self._open.add(producer)
        return producer

    async def subscribe(
        self,
        topic: str | Sequence[str] | re.Pattern[str],
        subscription: str,
        *,
        schema: Schema[T] | None = None,
        type: SubscriptionType | str = SubscriptionType.EXCLUSIVE,
        initial_position: InitialPosition | str = InitialPosition.LATEST,
        receiver_queue: int = RECEIVE_QUEUE_MESSAGES_MAX,
        consumer_name: str | None = None,
        priority_level: int = 0,
        read_compacted: bool = False,
        durable: bool = True,
        start_message_id: MessageId | None = None,
        negative_ack_delay_s: float = NEGATIVE_ACK_DELAY_S,
        negative_ack_backoff: RedeliveryBackoff | None = None,
        ack_timeout_s: float | None = None,
        ack_group_s: float = 0,
        dead_letter: DeadLetterPolicy | None = None,
        properties: Mapping[str, str] | None = None,
        watermarks: bool = False,
        on_watermark: OnWatermark | None = None,
    ) -> Consumer[T]:
        """A consumer of a subscription on all partitions of a topic, later ones too; the
        subscription is created if it does not exist.

        Of a list of topics, it receives from all of them, each with a subscription of this name;
        ids of messages then name their topic. So it does of a pattern, `re.compile` of
        `tenant/namespace/REGEX`: of all persistent topics whose last part matches as a whole, and
        of those that come later, which are looked for every `partitions_check_s`. What the options mean: `ConsumerOptions`,
        `RedeliveryBackoff`, `DeadLetterPolicy`. With `watermarks` it has those of event times, and
        `on_watermark` is called with each change. Raises InvalidRequest, the broker's refusal, or the
        last failure when the operation timeout is over; nothing stays attached then.
        """
        several = isinstance(topic, re.Pattern) or len(_topics(topic)) > 1
        options = ConsumerOptions(
            subscription=subscription,
            kind=SubscriptionType(type),
            initial_position=InitialPosition(initial_position),
            receiver_queue=receiver_queue,
            name=consumer_name,
            priority_level=priority_level,
            read_compacted=read_compacted,
            durable=durable,
            start=start_message_id,
            negative_ack_delay_s=negative_ack_delay_s,
            negative_ack_backoff=negative_ack_backoff,
            ack_timeout_s=ack_timeout_s,
            ack_group_s=ack_group_s,
            dead_letter=dead_letter,
            properties=properties or {},
            schema=BYTES if schema is None else schema,
            topic_in_ids=several,
            watermarks=watermarks or on_watermark is not None,
        )
        inbox = Inbox(Watermarks(on_watermark) if options.watermarks else None)
        subscribed, matching = await self._attached(topic, inbox, options)
        consumer: Consumer[T] = Consumer(subscribed, inbox, self._open.discard, matching)
        self._open.add(consumer)
        return consumer

    async def _attached(
        self, topic: str | Sequence[str] | re.Pattern[str], inbox: Inbox, options: ConsumerOptions
    ) -> tuple[list[Subscribed], MatchingTopics | None]:
        """The topics of a consumer, and what follows a pattern."""
        if not isinstance(topic, re.Pattern):
            return await self._subscribe_all(_topics(topic), inbox, options), None
        matching = self._matching(TopicPattern.parse(topic), inbox, options)
        await matching.begin()
        return matching.subscribed, matching

    def _matching(
        self, pattern: TopicPattern, inbox: Inbox, options: ConsumerOptions
    ) -> MatchingTopics:
        async def subscribe(topic: str, own: Inbox, later: bool) -> Subscribed:
            first = InitialPosition.EARLIEST if later else options.initial_position
            how = replace(options, initial_position=first)
            (found,) = await self._subscribe_all([topic], own, how, MATCHING_SHARES)
            return found

        partitions = self._partitions
        return MatchingTopics(
            lambda: partitions.matching(pattern), subscribe, inbox, self.clock, partitions.check_s
        )

    async def _subscribe_all(
        self, topics: Sequence[str], inbox: Inbox, options: ConsumerOptions, shares: int = 1
    ) -> list[Subscribed]:
        """Subscribe to every topic, or to none. They are so many of those that share an inbox."""
        policy, subscribed = options.dead_letter, list[Subscribed]()
        try:
            for name in topics:
                letters = (
                    None
                    if policy is None
                    else DeadLetters(policy, name, options.subscription, self._dead_letter_producer)
                )
                partitions, growth = await self._partitions.consume(
                    name, inbox, options, letters, of=max(shares, len(topics))
                )
                subscribed.append(Subscribed(name, partitions, growth, letters))
        except BaseException:  # cancelled, too: no unreachable consumer may stay attached
            await asyncio.gather(*(found.growth.stop() for found in subscribed))
            await asyncio.gather(
                *(partition.abandon() for found in subscribed for partition in found.partitions)
            )
            raise
        return subscribed

    async def create_reader(
        self,
        topic: str,
        start_message_id: MessageId = LATEST,
        *,
        schema: Schema[T] | None = None,
        inclusive: bool = False,
        receiver_queue: int = RECEIVE_QUEUE_MESSAGES_MAX,
        read_compacted: bool = False,
        name: str | None = None,
        watermarks: bool = False,
    ) -> Reader[T]:
        """A reader from `start_message_id`: EARLIEST, LATEST, or an id of a topic without
        partitions, itself `inclusive` or not.

        Of a partitioned topic it reads all partitions, later ones too. Raises as `subscribe`.
        """
        options = ConsumerOptions(
            subscription=name or f"reader-{self.clock.random_bits(40):010x}",
            receiver_queue=receiver_queue,
            read_compacted=read_compacted,
            durable=False,
            start=start_message_id,
            start_inclusive=inclusive,
            schema=BYTES if schema is None else schema,
            watermarks=watermarks,
        )
        inbox = Inbox(Watermarks() if watermarks else None)
        partitions, growth = await self._partitions.consume(topic, inbox, options, None)
        reader: Reader[T] = Reader(
            str(TopicName.parse(topic)), partitions, inbox, growth, self._open.discard
        )
        self._open.add(reader)
        return reader

    async def create_table_view(
        self, topic: str, *, schema: Schema[T] | None = None, read_compacted: bool = True
    ) -> TableView[T]:
        """The latest value of each key of a topic, read to its end, that follows it from then on.
        Raises as `subscribe`."""
        reader = await self.create_reader(
            topic, EARLIEST, schema=schema, read_compacted=read_compacted
        )
        view = TableView(reader)
        try:
            await view.refresh()
        except BaseException:
            await view.close()
            raise
        return view

    def transaction(self, *, timeout_s: float = TRANSACTION_TIMEOUT_S) -> Transaction:
        """A transaction, to be used in `async with`; its coordinator aborts it when it is not ended
        in `timeout_s`.

        Its messages and acknowledgements are those that name it: `producer.send(value, txn=txn)`,
        `consumer.acknowledge(message, txn=txn)`.
        """
        self._partitions.check_open()
        return Transaction(self._coordinators, timeout_s)

    def resume_transaction(self, txn_id: TxnId) -> Transaction:
        """A transaction that another client has begun and that is open: to commit or abort it from
        here, once everything in it has its receipt there."""
        self._partitions.check_open()
        return Transaction.resumed(self._coordinators, txn_id)

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        """Number of partitions of a topic, 0 if it is not partitioned. Retries like everything else
        until the operation timeout.

        `create`: the broker may create the topic if it is not there and its policies say so.
        """
        return await self._partitions.count(topic, create=create)

    async def close(self) -> None:
        """Close everything made by this client, then its connections; idempotent."""
        if self._partitions.closed:
            return
        self._partitions.closed = True
        await asyncio.gather(*(made.close() for made in tuple(self._open)))
        await self._coordinators.close()
        await self._session.pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_failure: object) -> None:
        await self.close()

    async def _dead_letter_producer(self, topic: str, initial_subscription: str | None) -> Producer:
        return await self.create_producer(topic, initial_subscription=initial_subscription)


def _topics(given: str | Sequence[str]) -> list[str]:
    """The full names of what `subscribe` was given. Raises InvalidRequest, InvalidTopicName."""
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, Sequence | Set) or not all(isinstance(name, str) for name in listed):
        raise InvalidRequest(
            f"topic: {str(given)[:200]} is neither a name nor a list of names; pass one of them"
        )
    names = [str(TopicName.parse(name)) for name in listed]
    if not names or len({*names}) < len(names):
        raise InvalidRequest(
            f"topic: {str(given)[:200]} names {'a topic twice' if names else 'none'}; name each "
            "topic once"
        )
    return names
