"""Streams into topics, each micro-batch exactly once.

Owns: `TopicStreamWriter`. Imports: pyspark, pyarrow, magnetar.client, batch_commits, topic_writer.
Invariants: tasks publish in transactions of their own attempts; which of them make the micro-batch is
a durable decision on a topic of the query's own before the first of them is committed; a driver that
another one follows can make no decision any more (its producer is fenced), nor does it after it has
read the other's; so a micro-batch that is taken again publishes nothing a second time; what is
decided is not aborted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from magnetar.client import Client, Consumer, Message, Producer
from magnetar.client.failures import TransactionAborted
from magnetar.errors import CorruptData, InvalidRequest
from magnetar_jobs.batch_commits import Decision, is_decided
from magnetar_jobs.topic_options import NAME
from magnetar_jobs.topic_writer import (
    Published,
    WriteOptions,
    abort_transactions,
    publish,
    transactions_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

QUERY_ID = "sql.streaming.queryId"
"""Property of a task with the name of the query, which its checkpoint keeps."""
SUBSCRIPTION = "decisions"
"""Keeps the last decision of a query."""
RECEIVE_S = 120.0


class TopicStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]  # pyspark's own annotations stop at Any
    """The sink of one query."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context is not None else None
        if not query:
            raise InvalidRequest(f"{NAME}: this sink is for streaming queries; use write")
        return asyncio.run(publish(self._options, iterator, query))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        asyncio.run(self._commit(messages, batchId))

    async def _commit(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        transactions = transactions_of(messages)
        if not transactions:
            return
        queries = set(transactions.values())
        async with self._options.client() as client, self._decisions(client, queries) as decisions:
            last = await decisions.last()
            if last is not None and not last.done:
                await self._carry_out(client, last)
                await decisions.add(Decision(last.batch, last.transactions, done=True))
            if is_decided(last, batch):
                await abort_transactions(client, [*transactions])
                return
            decided = Decision(batch, tuple(transactions))
            await decisions.add(decided)
            await self._carry_out(client, decided)
            await decisions.add(Decision(batch, decided.transactions, done=True))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002 - a decision names its transactions
        asyncio.run(self._abort(messages))

    async def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Spark asks for it when a commit failed, too: what was decided stays for the next
        attempt."""
        transactions = transactions_of(messages)
        if not transactions:
            return
        queries = set(transactions.values())
        async with self._options.client() as client, self._decisions(client, queries) as decisions:
            last = await decisions.last()
            decided = last.transactions if last is not None else ()
            await abort_transactions(client, [txn for txn in transactions if txn not in decided])

    @asynccontextmanager
    async def _decisions(self, client: Client, queries: set[str]) -> AsyncIterator[_Decisions]:
        """Those of the one query that has published. First the subscription, which keeps them, then
        the producer, which fences those of other drivers, and only then a look."""
        (query,) = queries
        topic = f"{self._options.topic}-spark-{query}"
        consumer = await client.subscribe(topic, SUBSCRIPTION, initial_position="Earliest")
        producer = await client.create_producer(topic, access_mode="ExclusiveWithFencing")
        try:
            yield _Decisions(consumer, producer)
        finally:
            await producer.close()
            await consumer.close()

    async def _carry_out(self, client: Client, decision: Decision) -> None:
        """Commit what was decided; committing again is nothing. Raises CorruptData if a part of it
        was aborted before."""
        for number, txn_id in enumerate(decision.transactions):
            try:
                await client.resume_transaction(txn_id).commit()
            except TransactionAborted as error:
                raise CorruptData(
                    f"{NAME}: of micro-batch {decision.batch} transaction {number + 1} of "
                    f"{len(decision.transactions)} cannot be committed any more ({error}): it timed "
                    "out while there was no driver, or was committed longer ago than outcomes are "
                    f"kept; look in {self._options.topic} which of its rows are there, and begin a "
                    "query with a new checkpoint"
                ) from error


class _Decisions:
    """What one query has decided so far, for its only driver."""

    def __init__(self, consumer: Consumer[bytes], producer: Producer[bytes]) -> None:
        self._consumer, self._producer = consumer, producer

    async def last(self) -> Decision | None:
        """Everything that was decided before the producer was there; older ones may go."""
        newest = await self._consumer.last_message_id()
        found: Message[bytes] | None = None
        while newest.entry >= 0 and (found is None or found.id.position < newest.position):
            before, found = found, await self._receive()
            if before is not None:
                await self._consumer.acknowledge_cumulative(before)
        return Decision.decode(found.data) if found is not None else None

    async def _receive(self) -> Message[bytes]:
        try:
            return await self._consumer.receive(RECEIVE_S)
        except TimeoutError as error:
            raise CorruptData(
                f"{NAME}: the last decision on {self._consumer.topic} is gone, so it is unknown "
                "what this query has published; see that no time to live, quota or person removes "
                f"messages of subscription {SUBSCRIPTION}, and begin a query with a new checkpoint"
            ) from error

    async def add(self, decision: Decision) -> None:
        """It is durable. Raises BrokerRefused (PRODUCER_FENCED) if another driver follows."""
        await self._producer.send(decision.encode())
