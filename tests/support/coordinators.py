"""Lives of a transaction coordinator for tests.

Owns: a number held on a store in memory, its log on a volume in a temporary directory, and a core
that was recovered from it; whole coordinators with real sockets, a client that speaks to them frame
by frame, and the broker that they drive.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from magnetar.broker.connections.connection import Connection
from magnetar.broker.connections.connection_table import ConnectionTable
from magnetar.coordinator.claim import CoordinatorClaim
from magnetar.coordinator.identity import CoordinatorIdentity
from magnetar.coordinator.incarnation import Coordinator
from magnetar.coordinator.metrics import CoordinatorMetrics
from magnetar.coordinator.transaction_log import TransactionLog
from magnetar.errors import StorageError
from magnetar.hosting.advertised import ListenerOptions
from magnetar.hosting.identity import ProcessIdentity, ProcessPorts
from magnetar.hosting.security.authentication import Authenticator
from magnetar.hosting.usage import ProcessUsage
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.leases import LeaseKeeper
from magnetar.metadata.records import CoordinatorRecord, IncarnationRecord
from magnetar.network import AsyncioNetwork
from magnetar.storage.volumes.volume import Volume
from magnetar.transactions.coordinator.core import CoordinatorCore
from magnetar.transactions.coordinator.events import Answer, Event, NewRequested, Write
from magnetar.transactions.coordinator.usage import Limits
from magnetar.transactions.ids import TxnId
from magnetar.transactions.records import Action
from magnetar.wire import commands, requests, transactions
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.transactions import Refusal
from tests.support.brokers import CLOCK, HOST, SETTINGS, Peer, volume_in

FILE_BYTES = 64 << 10
CHECKPOINT_BYTES = 4 << 10


@dataclass
class Life:
    """One incarnation: `answers` are what left it, in order; `failed` is done, with the reason,
    once nothing leaves it any more."""

    claim: CoordinatorClaim
    lease: int
    log: TransactionLog
    core: CoordinatorCore
    failed: asyncio.Future[StorageError]
    answers: list[Answer] = field(default_factory=list)

    def handle(self, event: Event) -> None:
        for effect in self.core.handle(event):
            if isinstance(effect, Answer):
                self.answers.append(effect)
            elif effect.lazy:
                self.log.defer(effect.changes)
            else:
                self.log.append(effect.changes, lambda write=effect: self._durable(write))

    def _durable(self, write: Write) -> None:
        self.answers += [then for then in write.then if isinstance(then, Answer)]

    async def begin(self) -> int:
        """A transaction that a client knows; its sequence."""
        self.handle(NewRequested("new", 60_000, "", CLOCK.wall_ms()))
        await self.settled()
        return self.answers.pop().least

    async def settled(self) -> None:
        """Everything appended so far is durable, or never will be."""
        done = asyncio.get_running_loop().create_future()
        self.log.append((), lambda: done.set_result(None))
        await asyncio.wait([done, self.failed], return_when=asyncio.FIRST_COMPLETED)


async def held(
    store: MemoryStore, name: str, *, tcid: int = 0, restore: int = 0
) -> tuple[CoordinatorClaim, int]:
    """A number that was just taken."""
    identity = CoordinatorIdentity(
        tcid,
        f"tx-coordinator-{tcid}",
        f"tx-coordinator-{tcid}.{name}",
        "pulsar://x:1",
        "http://x:2",
    )
    claim = CoordinatorClaim(store, CLOCK, identity, restore)
    lease = await store.grant_lease(60)
    await claim.acquire(lease)
    return claim, lease


async def begin_life(
    store: MemoryStore,
    volume: Volume,
    name: str,
    *,
    tcid: int = 0,
    restore: int = 0,
    settle: bool = True,
) -> Life:
    """An incarnation that has recovered, and answers if it has settled."""
    claim, lease = await held(store, name, tcid=tcid, restore=restore)
    failed: asyncio.Future[StorageError] = asyncio.get_running_loop().create_future()
    log = TransactionLog(
        volume,
        CLOCK,
        claim,
        failed.set_result,
        file_bytes=FILE_BYTES,
        checkpoint_bytes=CHECKPOINT_BYTES,
    )
    core = CoordinatorCore(tcid, Limits())
    await log.recover(core)
    core.recovered(CLOCK.wall_ms())
    if settle:
        await claim.settle(lambda: core.live)
    return Life(claim, lease, log, core, failed)


# --- whole lives ----------------------------------------------------------------------------------


Verdict = Callable[[api.BaseCommand], Refusal | None]


class TopicServer:
    """What a coordinator sees of a broker: it is registered, owns every topic, and learns how
    transactions end.

    `verdict` says what it answers; while `silent` it answers nothing. `received` has every
    END_TXN_ON_* in order. `lookups` are what it refuses the next look-ups with.
    """

    def __init__(self, store: MemoryStore, verdict: Verdict = lambda _command: None) -> None:
        self._store, self.verdict, self.silent = store, verdict, False
        self.received: asyncio.Queue[tuple[str, TxnId, Action]] = asyncio.Queue()
        self.low_watermarks: list[int] = []
        self.lookups: list[Refusal] = []
        self._table = ConnectionTable(SETTINGS)
        self._table.open_gate()

    async def start(self) -> None:
        self._listener = await AsyncioNetwork().listen(
            HOST, 0, lambda: Connection(self._table, lambda: self)
        )
        self._url = f"pulsar://{HOST}:{self._listener.port}"
        record = IncarnationRecord("broker-0", self._url, f"http://{HOST}:1", 0, "test")
        await self._store.put(keys.incarnation("broker-0.1"), record.encode())

    def stop(self) -> None:
        self._listener.close()
        self._table.abort_all()

    def handle(self, connection: Connection, command: api.BaseCommand) -> None:
        if command.type == api.BaseCommand.Type.LOOKUP:
            if self.lookups:
                refused = self.lookups.pop(0)
                connection.queue(
                    commands.lookup_failed(command.lookup.request_id, refused.code, refused.message)
                )
                return
            connection.queue(commands.lookup_connect(command.lookup.request_id, self._url))
            return
        partition = command.type == api.BaseCommand.Type.END_TXN_ON_PARTITION
        body: Any = command.end_txn_on_partition if partition else command.end_txn_on_subscription
        name = (
            body.topic
            if partition
            else f"{body.subscription.topic}/{body.subscription.subscription}"
        )
        txn = TxnId(body.txnid_most_bits, body.txnid_least_bits)
        watermark = "txnid_least_bits_of_low_watermark"
        self.low_watermarks.append(getattr(body, watermark) if body.HasField(watermark) else -1)
        self.received.put_nowait((name, txn, Action(body.txn_action)))
        if not self.silent:
            answer = (
                transactions.end_on_partition_response
                if partition
                else transactions.end_on_subscription_response
            )
            connection.queue(answer(body.request_id, txn, self.verdict(command)))

    def disk_is_behind(self) -> bool:
        return False

    def when_disk_catches_up(self, resume: Callable[[], None]) -> None:
        resume()


@asynccontextmanager
async def topic_server(store: MemoryStore) -> AsyncIterator[TopicServer]:
    server = TopicServer(store)
    await server.start()
    try:
        yield server
    finally:
        server.stop()


@asynccontextmanager
async def running_coordinator(
    directory: Path,
    store: MemoryStore,
    *,
    tcid: int = 0,
    enabled: int = 1,
    security: Authenticator | None = None,
    listeners: ListenerOptions = ListenerOptions(),  # noqa: B008 - frozen
    **settings: Any,
) -> AsyncIterator[Coordinator]:
    """A coordinator that is ready; on leaving it is closed as after a failure, unless it was
    stopped."""
    chosen = replace(SETTINGS, transactions_enabled=enabled, **settings)
    async with volume_in(directory) as volume:
        ports = ProcessPorts(
            clock=CLOCK,
            network=AsyncioNetwork(),
            volume=volume,
            store=store,
            lease=lambda on_lost: LeaseKeeper(store, CLOCK, chosen.lease_ttl_s, on_lost),
            usage=ProcessUsage(),
            security=security,
        )
        identity = ProcessIdentity(
            f"tx-coordinator-{tcid}", HOST, HOST, 0, f"http://{HOST}:0", listeners
        )
        coordinator = Coordinator(ports, identity, chosen, CoordinatorMetrics())
        try:
            await coordinator.start()
            yield coordinator
        finally:
            await coordinator.close()


class TransactionPeer(Peer):
    """A client of transactions, frame by frame; each request returns its response."""

    async def connect(self, tcid: int = 0) -> Any:
        self.write(requests.coordinator_connect(self.next_request(), tcid))
        return (await self.answer()).tc_client_connect_response

    async def new(self, timeout_ms: int = 60_000, *, tcid: int = 0) -> Any:
        self.write(requests.new_txn(self.next_request(), tcid, timeout_ms))
        return (await self.answer(api.BaseCommand.Type.NEW_TXN_RESPONSE)).new_txn_response

    async def begin(self, *topics: str, timeout_ms: int = 60_000, tcid: int = 0) -> TxnId:
        """A transaction that publishes to these topics."""
        response = await self.new(timeout_ms, tcid=tcid)
        assert not response.HasField("error"), response
        txn = TxnId(response.txnid_most_bits, response.txnid_least_bits)
        if topics:
            assert not (await self.join(txn, *topics)).HasField("error")
        return txn

    async def join(self, txn: TxnId, *topics: str) -> Any:
        self.write(requests.add_partitions_to_txn(self.next_request(), txn, topics))
        return (
            await self.answer(api.BaseCommand.Type.ADD_PARTITION_TO_TXN_RESPONSE)
        ).add_partition_to_txn_response

    async def acknowledge(self, txn: TxnId, topic: str, subscription: str) -> Any:
        self.write(requests.add_subscription_to_txn(self.next_request(), txn, topic, subscription))
        return (
            await self.answer(api.BaseCommand.Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE)
        ).add_subscription_to_txn_response

    async def end(self, txn: TxnId, action: Action = Action.COMMIT) -> Any:
        self.write(requests.end_txn(self.next_request(), txn, commit=action is Action.COMMIT))
        return (await self.answer(api.BaseCommand.Type.END_TXN_RESPONSE)).end_txn_response


@asynccontextmanager
async def transaction_peer(
    coordinator: Coordinator, *, handshake: bool = True
) -> AsyncIterator[TransactionPeer]:
    peer = TransactionPeer(*await asyncio.open_connection(HOST, coordinator.port))
    try:
        if handshake:
            peer.write(requests.connect("test", 21))
            await peer.answer(api.BaseCommand.Type.CONNECTED)
        yield peer
    finally:
        await peer.close()


@asynccontextmanager
async def transaction_stage(
    directory: Path, **settings: Any
) -> AsyncIterator[tuple[TopicServer, Coordinator, TransactionPeer]]:
    """The participants of transactions, a coordinator, and a client of it."""
    store = MemoryStore(CLOCK)
    async with (
        topic_server(store) as server,
        running_coordinator(directory, store, **settings) as coordinator,
        transaction_peer(coordinator) as peer,
    ):
        yield server, coordinator, peer


async def record_of(store: MemoryStore) -> CoordinatorRecord:
    item = await store.get(keys.coordinator(0))
    assert item is not None
    return CoordinatorRecord.decode(item.value)


def code(response: object) -> int | None:
    """The error of a response, which always says why; None for success."""
    if not response.HasField("error"):  # type: ignore[attr-defined]
        return None
    assert response.message  # type: ignore[attr-defined]
    return response.error  # type: ignore[attr-defined,no-any-return]
