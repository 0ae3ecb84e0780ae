"""The client.

Owns: the door to a cluster: makes producers, consumers and readers and closes what is left of them.
Imports: the rest of the package. Invariants: everything made by a client shares its connections;
`close` ends every task and connection it started.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from magnetar.client.attachment import Attachment, Session
from magnetar.client.backoff import Backoff
from magnetar.client.compression import Compression, available
from magnetar.client.connection import KEEP_ALIVE_S, Credentials
from magnetar.client.consumer import Consumer, Reader, Subscribed
from magnetar.client.coordinators import Coordinators
from magnetar.client.dead_letters import DeadLetters
from magnetar.client.failures import AlreadyClosed, ConnectionLost
from magnetar.client.growth import PARTITIONS_CHECK_S, Growth
from magnetar.client.inbox import Inbox
from magnetar.client.messages import EARLIEST, LATEST, MessageId
from magnetar.client.outgoing import Batching
from magnetar.client.pool import Pool
from magnetar.client.producer import KeyHash, Producer, Route, Router, Routing
from magnetar.client.receiving import PartitionConsumer
from magnetar.client.redelivery import DeadLetterPolicy, RedeliveryBackoff
from magnetar.client.schemas import BYTES, Schema, T
from magnetar.client.sending import (
    MESSAGES_PENDING_MAX,
    SEND_TIMEOUT_S,
    PartitionProducer,
    ProducerOptions,
)
from magnetar.client.subscription_options import (
    NEGATIVE_ACK_DELAY_S,
    RECEIVE_QUEUE_MESSAGES_MAX,
    ConsumerOptions,
    InitialPosition,
    SubscriptionType,
)
from magnetar.client.transactions import TRANSACTION_TIMEOUT_S, Transaction
from magnetar.clock import Clock, SystemClock
from magnetar.errors import InvalidRequest, MagnetarError, Retry
from magnetar.names import TopicName
from magnetar.network import AsyncioNetwork, Network
from magnetar.wire import pulsar_api_pb2 as api

OPERATION_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 10.0
PARTITIONS_RECEIVE_QUEUE_MESSAGES_MAX = 50_000


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
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`token`: a JSON Web Token, or what gives the one of the moment whenever the broker asks;
        `credentials` for any other method.

        `partitions_check_s`: how often producers, consumers and readers of partitioned topics look
        for new partitions; None: never. `tls`: whom to believe and what to show at `pulsar+ssl://`
        addresses (None = what the system trusts).
        """
        if token is not None:
            credentials = Credentials(
                "token", token.encode() if isinstance(token, str) else lambda: token().encode()
            )
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
        self._producer_ids = itertools.count()
        self._consumer_ids = itertools.count()
        self._partitions_check_s = partitions_check_s
        self._open: set[Producer[Any] | Consumer[Any] | Reader[Any]] = set()
        self._coordinators = Coordinators(
            self._session, lambda topic: self.partitions(topic, create=False)
        )
        self._closed = False

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
            compression=available(Compression(compression)),
            send_timeout_s=send_timeout_s,
            messages_pending_max=pending_max,
            access_mode=api.ProducerAccessMode.Value(access_mode),
            properties=properties or {},
            initial_subscription=initial_subscription,
            schema=written,
            chunking=chunking,
        )
        names = await self._partition_names(topic)
        partitions = await self._attach_producers(names, options)
        growth = self._growth(topic, names)
        route = Route(key_hash, routing, self.clock)
        producer: Producer[T] = Producer(
            str(TopicName.parse(topic)), partitions, written, route, growth, self._open.discard
        )

        async def grow(added: Sequence[str]) -> None:
            partitions.extend(await self._attach_producers(added, options))

        growth.watch(grow)
        self._open.add(producer)
        return producer

    async def subscribe(
        self,
        topic: str | Sequence[str],
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
    ) -> Consumer[T]:
        """A consumer of a subscription on all partitions of a topic, later ones too; the
        subscription is created if it does not exist.

        Of a list of topics, it receives from all of them, each with a subscription of this name;
        ids of messages then name their topic. What the options mean: `ConsumerOptions`,
        `RedeliveryBackoff`, `DeadLetterPolicy`. Raises InvalidRequest, the broker's refusal, or the
        last failure when the operation timeout is over; nothing stays attached then.
        """
        topics = _topics(topic)
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
            topic_in_ids=len(topics) > 1,
        )
        inbox, subscribed = Inbox(), list[Subscribed]()
        try:
            for name in topics:
                letters = (
                    None
                    if dead_letter is None
                    else DeadLetters(dead_letter, name, subscription, self._dead_letter_producer)
                )
                partitions, growth = await self._receive(
                    name, inbox, options, letters, of=len(topics)
                )
                subscribed.append(Subscribed(name, partitions, growth, letters))
        except BaseException:  # cancelled, too: nothing may stay attached that nobody holds
            await asyncio.gather(*(found.growth.stop() for found in subscribed))
            await asyncio.gather(
                *(partition.abandon() for found in subscribed for partition in found.partitions)
            )
            raise
        consumer: Consumer[T] = Consumer(subscribed, inbox, self._open.discard)
        self._open.add(consumer)
        return consumer

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
        )
        inbox = Inbox()
        partitions, growth = await self._receive(topic, inbox, options, None)
        reader: Reader[T] = Reader(
            str(TopicName.parse(topic)), partitions, inbox, growth, self._open.discard
        )
        self._open.add(reader)
        return reader

    def transaction(self, *, timeout_s: float = TRANSACTION_TIMEOUT_S) -> Transaction:
        """A transaction, to be used in `async with`; its coordinator aborts it when it is not ended
        in `timeout_s`.

        Its messages and acknowledgements are those that name it: `producer.send(value, txn=txn)`,
        `consumer.acknowledge(message, txn=txn)`.
        """
        self._check_open()
        return Transaction(self._coordinators, timeout_s)

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        """Number of partitions of a topic, 0 if it is not partitioned. Retries like everything else
        until the operation timeout.

        `create`: the broker may create the topic if it is not there and its policies say so.
        """
        self._check_open()
        backoff = Backoff(self._session.clock)
        last_failure: MagnetarError = ConnectionLost(
            f"{topic}: no answer in {self._session.operation_timeout_s} s"
        )
        try:
            async with asyncio.timeout(self._session.operation_timeout_s):
                while True:
                    try:
                        return await self._session.pool.partitions(
                            str(TopicName.parse(topic)), create=create
                        )
                    except MagnetarError as failure:
                        if failure.retry is Retry.NEVER:
                            raise
                        last_failure = failure
                    await asyncio.sleep(backoff.next())
        except TimeoutError as timeout:
            raise last_failure from timeout

    async def close(self) -> None:
        """Close everything made by this client, then its connections; idempotent."""
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*(made.close() for made in tuple(self._open)))
        await self._coordinators.close()
        await self._session.pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _dead_letter_producer(self, topic: str, initial_subscription: str | None) -> Producer:
        return await self.create_producer(topic, initial_subscription=initial_subscription)

    async def _partition_names(self, topic: str) -> list[str]:
        name = TopicName.parse(topic)
        count = 0 if name.partition >= 0 else await self.partitions(topic)
        self._check_open()
        return [str(name.with_partition(index)) for index in range(count)] or [str(name)]

    def _growth(self, topic: str, names: Sequence[str]) -> Growth:
        """What looks for partitions behind those of `names`."""
        whole = str(TopicName.parse(topic))
        return Growth(
            self.clock,
            self._partitions_check_s,
            self.partitions,
            whole,
            0 if names[0] == whole else len(names),
        )

    async def _attach_producers(
        self, names: Sequence[str], options: ProducerOptions
    ) -> list[PartitionProducer]:
        made = [
            PartitionProducer(
                self._session,
                name,
                next(self._producer_ids),
                TopicName.parse(name).partition,
                options,
            )
            for name in names
        ]
        await self._attach_all(made)
        return made

    async def _receive(
        self,
        topic: str,
        inbox: Inbox,
        options: ConsumerOptions,
        letters: DeadLetters | None,
        of: int = 1,
    ) -> tuple[list[PartitionConsumer], Growth]:
        """Attach to a topic, one of so many that share an inbox."""
        names = await self._partition_names(topic)
        positioned = options.start is not None and options.start not in (EARLIEST, LATEST)
        if positioned and (len(names) > 1 or of > 1):
            raise InvalidRequest(
                f"{topic}: a start id needs one topic without partitions; name one, such as "
                f"{names[0]}"
            )
        share = max(
            1,
            min(options.receiver_queue, PARTITIONS_RECEIVE_QUEUE_MESSAGES_MAX // (of * len(names))),
        )
        options = replace(options, receiver_queue=share)

        partitions: list[PartitionConsumer] = []

        async def attach(parts: Sequence[str], how: ConsumerOptions) -> None:
            made = [
                PartitionConsumer(
                    self._session, part, next(self._consumer_ids), inbox, how, letters
                )
                for part in parts
            ]
            # first: a message may be acknowledged before all of them are attached
            partitions.extend(made)
            try:
                await self._attach_all(made)
            except BaseException:
                del partitions[-len(made) :]
                raise

        async def grow(added: Sequence[str]) -> None:
            start = None if options.start is None else EARLIEST
            await attach(
                added, replace(options, initial_position=InitialPosition.EARLIEST, start=start)
            )

        await attach(names, options)
        growth = self._growth(topic, names)
        growth.watch(grow)
        return partitions, growth

    async def _attach_all(self, partitions: Sequence[Attachment]) -> None:
        """Attach to every partition, or to none."""
        try:
            await asyncio.gather(*(partition.open() for partition in partitions))
        except BaseException:  # cancelled, too: nothing may stay attached that nobody holds
            await asyncio.gather(*(partition.abandon() for partition in partitions))
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosed("client is closed; make a new one")


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
