"""DataFrames into topics.

Owns: `WRITE_OPTIONS`, from which docs/spark.md has its table, `publish`, what tasks do, and `TopicWriter`. Imports: pyspark,
pyarrow, magnetar.client, topic_options. Invariants: each attempt of a task publishes in a
transaction of its own; the driver commits those of the attempts that count, once all tasks have
succeeded; so what a failed attempt has published is never seen.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from magnetar.client import Batching, Client, Producer, Transaction
from magnetar.errors import InvalidRequest, MagnetarError
from magnetar.names import TopicName
from magnetar.transactions.ids import TxnId
from magnetar_jobs.topic_options import NAME, Option, number_of, refusal

if TYPE_CHECKING:
    import pyarrow as pa

PENDING_MAX = 1000
SEND_TIMEOUT_S = 120.0
WRITE_OPTIONS = (
    Option("topic", "", "where messages are published; one topic"),
    Option("serviceUrl", "", "`pulsar://host:port[,host:port]`, or `pulsar+ssl://...`"),
    Option("tokenFile", "", "file with a token, at the same place on driver and executors"),
    Option("tlsTrust", "", "file with the certificates to trust, for `pulsar+ssl://`"),
    Option("transactionTimeout", "3600", "seconds that the whole write may take, up to 86400"),
)  # fmt: skip
_TYPES = {
    "value": ("binary", "string"),
    "key": ("string", "binary"),
    "properties": ("map<string,string>",),
    "event_time": ("timestamp", "bigint"),
}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The values."""

    topic: str
    service_url: str
    token_file: str
    tls_trust: str
    transaction_timeout_s: float

    @staticmethod
    def parse(given: Mapping[str, str]) -> WriteOptions:
        """Raises InvalidRequest naming option, value and remedy."""
        known = {option.name.lower(): option for option in WRITE_OPTIONS}
        unknown = [name for name in given if name.lower() not in known]
        if unknown:
            names = ", ".join(option.name for option in WRITE_OPTIONS)
            raise InvalidRequest(
                f"{NAME}: option {unknown[0]!r} is not known when writing; there are {names}"
            )
        values = {name: option.default for name, option in known.items()}
        values |= {name.lower(): value for name, value in given.items()}
        try:
            topic = TopicName.parse(values["topic"])
        except MagnetarError as error:
            raise refusal("topic", values["topic"], str(error)) from error
        if not values["serviceurl"] or "@" in values["serviceurl"]:
            raise refusal("serviceUrl", "(not shown)", "write pulsar://host:port; use tokenFile")
        return WriteOptions(
            str(topic),
            values["serviceurl"],
            values["tokenfile"],
            values["tlstrust"],
            number_of("transactionTimeout", values, 1, 86_400),
        )

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Connected as the options say. Raises InvalidRequest."""
        try:
            tls = ssl.create_default_context(cafile=self.tls_trust) if self.tls_trust else None
            token = Path(self.token_file).read_text().strip() if self.token_file else None
        except OSError as error:
            raise InvalidRequest(f"{NAME}: {error.filename} cannot be read: {error}") from error
        async with Client(self.service_url, token=token, tls=tls) as client:
            yield client


def check_schema(schema: StructType) -> None:
    """Raises InvalidRequest naming the column that cannot be written."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in types:
        raise InvalidRequest(f"{NAME}: there is no column value to publish; there are {[*types]}")
    for name, kind in types.items():
        offered = _TYPES.get(name)
        if offered is None:
            raise InvalidRequest(
                f"{NAME}: column {name!r} is not of a message; select {', '.join(_TYPES)}"
            )
        if kind not in offered:
            raise InvalidRequest(
                f"{NAME}: column {name} is {kind}; cast it to {' or '.join(offered)}"
            )


@dataclass(frozen=True, slots=True)
class Published(WriterCommitMessage):  # type: ignore[misc]  # pyspark's own annotations stop at Any
    """What a task has published, in which transaction; None: nothing. `query`: of a stream."""

    txn: tuple[int, int] | None
    messages: int
    query: str = ""


async def publish(
    options: WriteOptions, batches: Iterator[pa.RecordBatch], query: str = ""
) -> Published:
    """Publish the rows of a task in a transaction, which stays open."""
    # In a thread: the connection must be kept alive while Spark computes.
    batch = await asyncio.to_thread(next, batches, None)
    if batch is None:
        return Published(None, 0)
    async with options.client() as client:
        producer = await client.create_producer(
            options.topic, batching=Batching(), send_timeout_s=SEND_TIMEOUT_S
        )
        txn = client.transaction(timeout_s=options.transaction_timeout_s)
        await txn.begin()
        count = 0
        try:
            while batch is not None:
                count += await _send(producer, txn, batch)
                batch = await asyncio.to_thread(next, batches, None)
        except BaseException:
            await txn.abort()
            raise
        return Published((txn.id.most, txn.id.least), count, query)


class TopicWriter(DataSourceArrowWriter):  # type: ignore[misc]  # pyspark's own annotations stop at Any
    """One write of a DataFrame."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return asyncio.run(publish(self._options, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        asyncio.run(self._commit([*transactions_of(messages)]))

    async def _commit(self, transactions: Sequence[TxnId]) -> None:
        async with self._options.client() as client:
            for number, txn_id in enumerate(transactions):
                try:
                    await client.resume_transaction(txn_id).commit()
                except MagnetarError as error:
                    await abort_transactions(client, transactions[number + 1 :])
                    raise MagnetarError(
                        f"{NAME}: {number} of {len(transactions)} transactions of this write are "
                        f"committed, number {number + 1} is not: {error}"
                    ) from error

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        asyncio.run(self._abort([*transactions_of(messages)]))

    async def _abort(self, transactions: Sequence[TxnId]) -> None:
        async with self._options.client() as client:
            await abort_transactions(client, transactions)


def transactions_of(messages: Sequence[WriterCommitMessage | None]) -> dict[TxnId, str]:
    """Those of the attempts that count and have published anything, and the query of each."""
    return {
        TxnId(*message.txn): message.query
        for message in messages
        if isinstance(message, Published) and message.txn is not None
    }


async def abort_transactions(client: Client, transactions: Sequence[TxnId]) -> None:
    """None of them has been decided to be committed."""
    for txn_id in transactions:
        await client.resume_transaction(txn_id).abort()


async def _send(producer: Producer[bytes], txn: Transaction, batch: pa.RecordBatch) -> int:
    """Publish the rows of a batch and wait for their receipts; how many."""
    rows = batch.to_pylist()
    for first in range(0, len(rows), PENDING_MAX):
        await asyncio.gather(
            *(
                producer.send(_bytes(row["value"]), txn=txn, **_traits(row))
                for row in rows[first : first + PENDING_MAX]
            )
        )
    return len(rows)


def _traits(row: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if row.get("key") is not None:
        key = row["key"]
        found["key"] = key if isinstance(key, str) else bytes(key).decode()
    if row.get("properties"):
        found["properties"] = dict(row["properties"])
    if row.get("event_time") is not None:
        at = row["event_time"]
        found["event_time"] = at if isinstance(at, int) else round(at.timestamp() * 1000)
    return found


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
