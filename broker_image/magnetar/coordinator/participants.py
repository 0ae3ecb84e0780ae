"""Notifying topics and subscriptions of the end of a transaction.

Owns: the port by which a coordinator reaches its participants, and its implementation by look-up
and END_TXN_ON_PARTITION or END_TXN_ON_SUBSCRIPTION (that of a standalone server is
`broker.commands.transaction_ends.OwnParticipants`). Imports: client (connections), metadata, wire.
Invariants: one call is one attempt, which ends within its time; the last known owner of a topic is
asked first, and looked up again once that fails; SubscriptionNotFound is what the owner of the
bundle says; TopicNotFound is what any broker says of a namespace without a record, and leaves
`ConfirmedParticipants` only if the store does not know the topic either: a lost record costs an
outage, not messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from magnetar.client.connection import Connection, Credentials
from magnetar.client.failures import ConnectionLost, failure_of
from magnetar.client.pool import Address, Pool
from magnetar.clock import Clock
from magnetar.errors import MagnetarError, NamespaceNotFound, ServiceNotReady, TopicNotFound
from magnetar.metadata import keys
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    IncarnationRecord,
    PartitionedTopicRecord,
)
from magnetar.metadata.store import MetadataStore
from magnetar.names import TopicName
from magnetar.network import Network
from magnetar.transactions.ids import TxnId
from magnetar.transactions.records import Action
from magnetar.wire import requests

if TYPE_CHECKING:
    from magnetar.hosting.tls import TlsPort

PLACES_MAX = 10_000
"""Topics whose broker is remembered."""


class Participants(Protocol):
    """What takes part in transactions, topics by full names. Both raise TopicNotFound or SubscriptionNotFound for what
    does not exist any more, InvalidTxnStatus if the transaction has ended the other way there,
    any other MagnetarError for what should be tried again."""

    async def end_on_partition(
        self, topic: str, txn: TxnId, action: Action, low_watermark: int
    ) -> None:
        """Have a topic commit or abort what a transaction published there."""
        ...

    async def end_on_subscription(
        self, topic: str, subscription: str, txn: TxnId, action: Action, low_watermark: int
    ) -> None:
        """Have a subscription commit or abort what a transaction acknowledged there."""
        ...


class ConfirmedParticipants:
    """Others, whose word that a topic does not exist is believed only if the store confirms it;
    otherwise it is one for now, ServiceNotReady."""

    def __init__(self, others: Participants, store: MetadataStore) -> None:
        self._others, self._store = others, store

    async def end_on_partition(
        self, topic: str, txn: TxnId, action: Action, low_watermark: int
    ) -> None:
        try:
            await self._others.end_on_partition(topic, txn, action, low_watermark)
        except TopicNotFound as error:
            await self._confirm(topic, error)
            raise

    async def end_on_subscription(
        self, topic: str, subscription: str, txn: TxnId, action: Action, low_watermark: int
    ) -> None:
        try:
            await self._others.end_on_subscription(topic, subscription, txn, action, low_watermark)
        except TopicNotFound as error:
            await self._confirm(topic, error)
            raise

    async def _confirm(self, topic: str, refusal: TopicNotFound) -> None:
        """Raises ServiceNotReady if a topic may yet be there, StoreError.

        A topic's entry goes after the topic. A topic whose entry is still to be written is in one
        of the bundles of its namespace.
        """
        name = TopicName.parse(topic)
        entry = await self._store.get(keys.partitioned_topic(name))
        if entry is not None and not PartitionedTopicRecord.decode(entry.value).partitions:
            raise ServiceNotReady(
                f"topic {topic} is still entered in the metadata store, although a broker says: "
                f"{refusal}"
            ) from refusal
        namespace = name.namespace_name
        if await self._store.get(keys.namespace(namespace)) is not None:
            if isinstance(refusal, NamespaceNotFound):
                raise ServiceNotReady(
                    f"namespace {namespace} of topic {topic} is there (again); look the topic up "
                    "again"
                ) from refusal
            return
        bundles = (await self._store.range(keys.bundles_in(namespace))).items
        if any(
            BundleRecord.decode(item.value).state is not BundleState.DELETED for item in bundles
        ):
            raise ServiceNotReady(
                f"namespace {namespace} of topic {topic} has bundles and no record: create it "
                "again if it was lost"
            ) from refusal


class WireParticipants:
    """Participants that brokers serve, found through any broker that is registered."""

    def __init__(
        self,
        store: MetadataStore,
        network: Network,
        clock: Clock,
        credentials: Credentials,
        timeout_s: float,
        tls: TlsPort | None = None,
    ) -> None:
        """`credentials` and `tls` show brokers who asks; a broker without a plain port is
        reached by TLS."""
        self._store, self._network, self._clock, self._credentials = (
            store,
            network,
            clock,
            credentials,
        )
        self._timeout_s, self._tls = timeout_s, tls
        self._pool: Pool | None = None
        self._places: dict[str, Address] = {}

    async def end_on_partition(
        self, topic: str, txn: TxnId, action: Action, low_watermark: int
    ) -> None:
        commit = action is Action.COMMIT
        await self._ask(
            topic,
            lambda number: requests.end_txn_on_partition(
                number, txn, topic, commit=commit, low_watermark=low_watermark
            ),
        )

    async def end_on_subscription(
        self, topic: str, subscription: str, txn: TxnId, action: Action, low_watermark: int
    ) -> None:
        commit = action is Action.COMMIT
        await self._ask(
            topic,
            lambda number: requests.end_txn_on_subscription(
                number, txn, topic, subscription, commit=commit, low_watermark=low_watermark
            ),
        )

    async def close(self) -> None:
        """Close every connection."""
        if self._pool is not None:
            await self._pool.close()

    async def _ask(self, topic: str, build: Callable[[int], bytes]) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                connection, pool = await self._connection_to(topic)
                number = pool.next_request_id()
                answer = await connection.request(number, build(number))
        except TimeoutError as error:
            self._places.pop(topic, None)
            raise ConnectionLost(f"{topic} gave no answer in {self._timeout_s:g} s") from error
        except OSError as error:  # of the authority's file
            raise ConnectionLost(f"{topic} cannot be reached by TLS: {error}") from error
        except MagnetarError:
            self._places.pop(topic, None)
            raise
        body = (
            answer.end_txn_on_partition_response
            if answer.HasField("end_txn_on_partition_response")
            else answer.end_txn_on_subscription_response
        )
        if body.HasField("error"):
            self._places.pop(topic, None)
            raise failure_of(body.error, body.message)

    async def _connection_to(self, topic: str) -> tuple[Connection, Pool]:
        """A connection to the broker of a topic. Raises NamespaceNotFound, ServiceNotReady while
        no broker is registered."""
        if (place := self._places.get(topic)) is not None and self._pool is not None:
            return await self._pool.get(place), self._pool
        pool = await self._any_broker()
        try:
            place = await pool.locate(topic)
        except (
            TopicNotFound
        ) as error:  # a look-up finds an owner for any topic of a namespace that is there
            raise NamespaceNotFound(str(error)) from error
        self._places[topic] = place
        if len(self._places) > PLACES_MAX:
            del self._places[next(iter(self._places))]
        return await pool.get(place), pool

    async def _any_broker(self) -> Pool:
        """Connections that begin at a broker that is registered now."""
        items = (await self._store.range(keys.INCARNATIONS)).items
        urls = sorted(IncarnationRecord.decode(item.value).service_url for item in items)
        if not urls:
            raise ServiceNotReady("no broker is registered that could be asked about topics")
        url = urls[int(self._clock.uniform(0, len(urls))) % len(urls)]
        if self._pool is None:
            self._pool = Pool(self._network, url, self._credentials, self._timeout_s)
        self._pool.begin_at(url, self._tls.to_peers() if self._tls is not None else None)
        return self._pool
