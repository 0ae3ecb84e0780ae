"""The partitions of topics, as one client attaches to them.

Owns: `Partitions`: how many a topic has, and one producer or consumer for each, later ones too.
Imports: sending, receiving, growth. Invariants: a request attaches to every partition or to none;
ids of producers and consumers are unique in a client.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from magnetar.client.attachment import Attachment, Session
from magnetar.client.backoff import Backoff
from magnetar.client.dead_letters import DeadLetters
from magnetar.client.failures import AlreadyClosed, ConnectionLost
from magnetar.client.growth import Growth
from magnetar.client.inbox import Inbox
from magnetar.client.messages import EARLIEST, LATEST
from magnetar.client.patterns import TopicPattern
from magnetar.client.pool import Pool
from magnetar.client.receiving import PartitionConsumer
from magnetar.client.sending import PartitionProducer, ProducerOptions
from magnetar.client.subscription_options import ConsumerOptions, InitialPosition
from magnetar.errors import InvalidRequest, MagnetarError, Retry
from magnetar.names import TopicName

A = TypeVar("A")
RECEIVE_QUEUE_MESSAGES_MAX = 50_000
"""Of all partitions that share an inbox."""


class Partitions:
    """Attaches to partitions by the session of one client. `check_s`: how often new ones are looked
    for; None: never."""

    def __init__(self, session: Session, check_s: float | None) -> None:
        self._session, self._check_s = session, check_s
        self._producer_ids, self._consumer_ids = itertools.count(), itertools.count()
        self.closed = False

    def check_open(self) -> None:
        """Raises AlreadyClosed."""
        if self.closed:
            raise AlreadyClosed("client is closed; make a new one")

    async def count(self, topic: str, *, create: bool = True) -> int:
        """As `Client.partitions`."""
        name = str(TopicName.parse(topic))
        return await self._asked(topic, lambda pool: pool.partitions(name, create=create))

    async def matching(self, pattern: TopicPattern) -> set[str]:
        """The topics that match a pattern now. Raises as `count`."""
        namespace = str(pattern.namespace)
        return pattern.topics(await self._asked(namespace, lambda pool: pool.topics(namespace)))

    @property
    def check_s(self) -> float | None:
        """How often new partitions and topics are looked for."""
        return self._check_s

    async def _asked(self, topic: str, ask: Callable[[Pool], Awaitable[A]]) -> A:
        """The answer of any broker, until the operation timeout."""
        self.check_open()
        session, backoff = self._session, Backoff(self._session.clock)
        last_failure: MagnetarError = ConnectionLost(
            f"{topic}: no answer in {session.operation_timeout_s} s"
        )
        try:
            async with asyncio.timeout(session.operation_timeout_s):
                while True:
                    try:
                        return await ask(session.pool)
                    except MagnetarError as failure:
                        if failure.retry is Retry.NEVER:
                            raise
                        last_failure = failure
                    await asyncio.sleep(backoff.next())
        except TimeoutError as timeout:
            raise last_failure from timeout

    async def produce(
        self, topic: str, options: ProducerOptions
    ) -> tuple[list[PartitionProducer], Growth]:
        """A producer of each partition, in a list to which `Growth` adds."""
        names = await self._names(topic)
        partitions: list[PartitionProducer] = []

        async def attach(added: Sequence[str]) -> None:
            made = [
                PartitionProducer(
                    self._session,
                    name,
                    next(self._producer_ids),
                    TopicName.parse(name).partition,
                    options,
                )
                for name in added
            ]
            await _attach_all(made)
            partitions.extend(made)

        await attach(names)
        growth = self._growth(topic, names)
        growth.watch(attach)
        return partitions, growth

    async def consume(
        self,
        topic: str,
        inbox: Inbox,
        options: ConsumerOptions,
        letters: DeadLetters | None,
        of: int = 1,
    ) -> tuple[list[PartitionConsumer], Growth]:
        """A consumer of each partition of a topic, one of so many that share an inbox, in a list to
        which `Growth` adds."""
        names = await self._names(topic)
        positioned = options.start is not None and options.start not in (EARLIEST, LATEST)
        if positioned and (len(names) > 1 or of > 1):
            raise InvalidRequest(
                f"{topic}: a start id needs one topic without partitions; name one, such as "
                f"{names[0]}"
            )
        share = min(options.receiver_queue, RECEIVE_QUEUE_MESSAGES_MAX // (of * len(names)))
        options = replace(options, receiver_queue=max(1, share))
        partitions: list[PartitionConsumer] = []

        async def attach(added: Sequence[str], how: ConsumerOptions) -> None:
            made = [
                PartitionConsumer(
                    self._session, name, next(self._consumer_ids), inbox, how, letters
                )
                for name in added
            ]
            # first: a message may be acknowledged before all of them are attached
            partitions.extend(made)
            try:
                await _attach_all(made)
            except BaseException:
                del partitions[-len(made) :]
                raise

        async def grow(added: Sequence[str]) -> None:
            start = None if options.start is None else EARLIEST
            how = replace(options, initial_position=InitialPosition.EARLIEST, start=start)
            await attach(added, how)

        await attach(names, options)
        growth = self._growth(topic, names)
        growth.watch(grow)
        return partitions, growth

    async def _names(self, topic: str) -> list[str]:
        name = TopicName.parse(topic)
        count = 0 if name.partition >= 0 else await self.count(topic)
        self.check_open()
        return [str(name.with_partition(index)) for index in range(count)] or [str(name)]

    def _growth(self, topic: str, names: Sequence[str]) -> Growth:
        """Looks for partitions behind those of `names`."""
        whole = str(TopicName.parse(topic))
        known = 0 if names[0] == whole else len(names)
        return Growth(self._session.clock, self._check_s, self.count, whole, known)


async def _attach_all(partitions: Sequence[Attachment]) -> None:
    """Attach to every partition, or to none."""
    try:
        await asyncio.gather(*(partition.open() for partition in partitions))
    except BaseException:  # cancelled, too: no unreachable session may stay attached
        await asyncio.gather(*(partition.abandon() for partition in partitions))
        raise
