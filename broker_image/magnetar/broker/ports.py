"""How the rooms of a broker know each other.

Owns: the Protocols by which a lower room sees a higher one, and `SendRun`, the value of one run of
SENDs. Lower to higher: reading, connections, topics and transactions, bundles, commands. Imports:
cores, storage values, reading. Invariant: nothing here has state or behaviour of its own but
`SendRun`, whose sequences have one element per entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api

if TYPE_CHECKING:
    from magnetar.broker.context import BrokerContext
    from magnetar.broker.reading.catalog import BundleCatalog, CompactedRead
    from magnetar.broker.reading.entry_index import EntryIndex, TailCache
    from magnetar.broker.replay.topic_transactions import TopicTransactions
    from magnetar.errors import MagnetarError, WireCode
    from magnetar.hosting.advertised import Successor
    from magnetar.hosting.settings import BrokerSettings
    from magnetar.hosting.tls import PeerCertificate
    from magnetar.names import BundleName, NamespaceName, TopicName
    from magnetar.policies import Policies
    from magnetar.security.authorization import Principal
    from magnetar.storage.log.format import Encoded
    from magnetar.storage.log.writer import Durable
    from magnetar.topics.dispatch.base import ReadRequest
    from magnetar.topics.ledger_ids import LedgerIds
    from magnetar.topics.ledgers import Position
    from magnetar.topics.producers import Grant
    from magnetar.topics.subscription import Subscription
    from magnetar.topics.topic import Topic
    from magnetar.wire.runs import AckSpan


class SendRun:
    """Consecutive SENDs of one producer: made once per run, never per message.

    `entries` are the bytes behind each command; on a connection they are views of its receive
    buffer, valid until the next read. `counts` are messages per entry. `highest` holds the highest
    sequence id of each batch and 0 for what is none; None if the run has no batch. `txn` is the
    transaction that all of them name.
    """

    __slots__ = ("counts", "entries", "highest", "sequences", "txn")

    def __init__(
        self,
        entries: Sequence[memoryview],
        counts: Sequence[int],
        sequences: Sequence[int],
        highest: Sequence[int] | None = None,
        txn: TxnId | None = None,
    ) -> None:
        self.entries, self.counts, self.sequences = entries, counts, sequences
        self.highest, self.txn = highest, txn

    def __len__(self) -> int:
        return len(self.sequences)

    def part(self, begin: int, end: int) -> SendRun:
        """Those from `begin` up to `end`."""
        part = slice(begin, end)
        return SendRun(
            self.entries[part],
            self.counts[part],
            self.sequences[part],
            self.highest[part] if self.highest is not None else None,
            self.txn,
        )

    @property
    def tops(self) -> Sequence[int]:
        """The highest sequence id of each entry."""
        return (
            self.sequences if self.highest is None else list(map(max, self.sequences, self.highest))
        )

    def top(self, index: int) -> int:
        """The highest sequence id of one entry."""
        return max(self.sequences[index], self.batch_top(index))

    def batch_top(self, index: int) -> int:
        """What a receipt says of the end of a batch: 0 for what is none."""
        return self.highest[index] if self.highest is not None else 0


class Heartbeats(Protocol):
    """What others ask of a connection's peer."""

    def has_read(self) -> asyncio.Future[None]:
        """Done when the peer has read what is queued to it now."""
        ...


class ClientConnection(Protocol):
    """One client's connection, as everything but its transport sees it."""

    settings: BrokerSettings
    listener: str | None
    producers: dict[int, AttachedProducer]
    consumers: dict[int, AttachedConsumer]
    watchers: dict[int, ListWatcher]
    client_version: str
    protocol_version: int
    peer: str
    group: str
    certificate: PeerCertificate
    principal: Principal | None

    @property
    def tls(self) -> bool: ...
    @property
    def heartbeat(self) -> Heartbeats: ...
    @property
    def takes_entry_metadata(self) -> bool: ...
    @property
    def writable(self) -> bool: ...
    @property
    def unsent_bytes(self) -> int: ...
    @property
    def connected(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    @property
    def listens(self) -> bool: ...

    def __hash__(self) -> int: ...
    def queue(self, data: bytes | memoryview) -> None: ...
    def queue_messages(
        self,
        session: AttachedConsumer,
        ledger: int,
        entry_ids: Sequence[int],
        entries: Sequence[memoryview],
        redelivery_counts: Sequence[int] | None,
        ack_sets: Sequence[Sequence[int]] | None,
        epoch: int,
    ) -> None: ...
    def admit_in_flight(self, count: int, limit: int) -> int: ...
    def spawn(self, request: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...
    def spawn_in_order(self, request: Coroutine[Any, Any, None]) -> None: ...
    def hold_reading(self) -> None: ...
    def refuse_producer_once(self, producer_id: int, reason: str) -> None: ...
    def ignore_producer(self, session: AttachedProducer) -> None: ...
    def forget_producer(self, session: AttachedProducer) -> None: ...
    def forget_consumer(self, session: AttachedConsumer) -> None: ...
    async def is_alive(self) -> bool: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class CommandService(Protocol):
    """What answers the commands of connections: a broker, or a transaction coordinator."""

    def handle(self, connection: Any, command: api.BaseCommand) -> None:
        """Answer one command, now or later."""
        ...

    def acknowledge_span(self, connection: Any, span: AckSpan) -> None:
        """Take an ACK of consecutive entries that wants no answer."""
        ...

    def take_list(
        self, connection: Any, parts: Iterator[bytes | None]
    ) -> Coroutine[Any, Any, None]:
        """Take an ACK or REDELIVER of very many ids part by part."""
        ...

    def disk_is_behind(self) -> bool:
        """Whether so much waits for a flush that publishers must be held up."""
        ...

    def when_disk_catches_up(self, resume: Callable[[], None]) -> None:
        """Call `resume` once it does not any more."""
        ...


class TransactionCommands(Protocol):
    """The transaction coordinator of a standalone server, as its broker sees it."""

    def handle(self, connection: Any, command: api.BaseCommand) -> None: ...
    def disk_is_behind(self) -> bool: ...
    def when_disk_catches_up(self, resume: Callable[[], None]) -> None: ...


class AttachedProducer(Protocol):
    """A producer, as its connection and its topic see it. `pending` counts SENDs without an
    answer."""

    closed: bool
    sends_chunks: bool
    pending: int
    waits: Callable[[], None] | None

    @property
    def connection(self) -> ClientConnection: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def encoded_name(self) -> bytes: ...
    @property
    def topic_name(self) -> TopicName: ...
    @property
    def leaving(self) -> bool: ...

    def __hash__(self) -> int: ...
    def publish(self, run: SendRun) -> None: ...
    def durable(self, ledger: int, first_entry: int, run: SendRun) -> None: ...
    def answer(self, frame: bytes) -> None: ...
    def answer_behind(self, frame: bytes) -> None: ...
    def refuse_sends(self, run: SendRun, error: MagnetarError) -> None: ...
    def refuse_send(self, sequence: int, code: WireCode, text: str) -> None: ...
    async def wait_for_grant(self) -> Grant: ...
    def grant(self, grant: Grant) -> None: ...
    def refuse(self, error: MagnetarError) -> None: ...
    def close_by_broker(self, successor: Successor | None) -> None: ...
    def detach(self) -> None: ...


class AttachedConsumer(Protocol):
    """A consumer, as its connection and its subscription see it."""

    closed: bool
    entries_out: int
    bytes_out: int
    messages_redelivered: int
    entries_acknowledged: int

    @property
    def connection(self) -> ClientConnection: ...
    @property
    def consumer_id(self) -> int: ...
    @property
    def partition(self) -> int: ...
    @property
    def sends_epoch(self) -> bool: ...
    @property
    def topic_name(self) -> TopicName: ...
    @property
    def subscription_name(self) -> str: ...

    def __hash__(self) -> int: ...
    def flow(self, permits: int) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def part(self, successor: Successor | None) -> None: ...
    def notify_active(self, active: bool) -> None: ...
    def end_of_topic(self) -> None: ...
    def close_by_broker(self, successor: Successor | None) -> None: ...
    def detach(self) -> None: ...


class ListWatcher(Protocol):
    """A watcher of a list of topics, as its connection and the guard see it."""

    @property
    def namespace(self) -> NamespaceName: ...
    def stop(self) -> None: ...


class BufferedWork(Protocol):
    """What is buffered while a bundle is split."""

    def send(self, session: AttachedProducer, run: SendRun) -> None: ...
    def request(self, size: int, again: Callable[[], None]) -> bool: ...


class ServedBundle(Protocol):
    """A bundle in service, as its topics see it."""

    serving: bool

    @property
    def name(self) -> BundleName: ...
    @property
    def context(self) -> BrokerContext: ...
    @property
    def epoch(self) -> int: ...
    @property
    def ledger_ids(self) -> LedgerIds: ...
    @property
    def policies(self) -> TopicPolicies: ...
    @property
    def tail_cache(self) -> TailCache: ...
    @property
    def catalog(self) -> BundleCatalog: ...
    @property
    def buffered(self) -> BufferedWork | None: ...
    @property
    def topics(self) -> Mapping[str, ServedTopic]: ...

    def append(self, record: Encoded, on_durable: Durable | None) -> None: ...
    def cursor_dirty(self, subscription: ServedSubscription) -> None: ...
    def confirm_cursor(
        self, subscription: ServedSubscription, confirmed: Callable[[], None]
    ) -> None: ...
    def write_cursor(
        self, subscription: ServedSubscription, confirmed: Callable[[], None]
    ) -> None: ...
    def refresh_policies(self) -> None: ...
    async def delete_topic(self, name: TopicName) -> None: ...
    async def is_compacted(self, topic: ServedTopic) -> bool: ...
    async def remove_subscription(self, subscription: ServedSubscription) -> None: ...


class TopicPolicies(Protocol):
    """Where a topic finds its policies."""

    def topic(self, name: TopicName, properties: Mapping[str, str]) -> Policies: ...


class ServedTopic(Protocol):
    """A topic in service, as its producers' side, its subscriptions and its bundle see it."""

    unused_since_ms: int | None

    @property
    def name(self) -> TopicName: ...
    @property
    def core(self) -> Topic: ...
    @property
    def context(self) -> BrokerContext: ...
    @property
    def bundle(self) -> ServedBundle: ...
    @property
    def index(self) -> EntryIndex: ...
    @property
    def policies(self) -> Policies: ...
    @property
    def partition(self) -> int: ...
    @property
    def frozen(self) -> bool: ...
    @property
    def ended(self) -> bool: ...

    @property
    def leaving(self) -> bool: ...
    @property
    def transactions(self) -> TopicTransactions | None: ...
    @property
    def subscriptions(self) -> Mapping[str, ServedSubscription]: ...

    def used_with_transactions(self) -> TopicTransactions: ...
    async def update_properties(self, changes: Mapping[str, str]) -> None: ...
    def append_update(self, changes: Mapping[str, str], on_durable: Callable[[], None]) -> None: ...
    def last_sequence_in_transactions(self, name: str) -> int | None: ...
    def tail(self, request: ReadRequest) -> tuple[list[memoryview], Sequence[int]] | None: ...
    async def read(self, request: ReadRequest) -> tuple[list[memoryview], list[int]]: ...
    async def last_message(self, read_compacted: bool) -> tuple[Position, memoryview | None]: ...
    def compacted_before(self, ordinal: int) -> bool: ...
    async def read_compacted(self, request: ReadRequest) -> CompactedRead: ...
    def drop_subscription(self, subscription: ServedSubscription) -> None: ...


class ServedSubscription(Protocol):
    """A subscription in service, as its topic and its bundle see it."""

    recorded: bool

    @property
    def topic(self) -> ServedTopic: ...
    @property
    def core(self) -> Subscription: ...

    def schedule(self) -> None: ...
    def stop(self) -> None: ...
