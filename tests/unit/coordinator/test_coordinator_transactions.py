"""A coordinator as its clients and its brokers see it: every answer behind its record, every
decision carried out, whatever happens between."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.topics.topic_registry import PLAIN_TOPIC
from magnetar.coordinator.attempts import Attempts
from magnetar.coordinator.claim import CoordinatorClaim
from magnetar.coordinator.incarnation import Coordinator
from magnetar.coordinator.inspection import CoordinatorInspection
from magnetar.errors import TransactionCoordinatorNotFound, WireCode
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    NamespaceRecord,
    PartitionedTopicRecord,
)
from magnetar.names import COORDINATOR_TOPIC, BundleName, TopicName
from magnetar.storage import names
from magnetar.transactions.coordinator.events import Caller
from magnetar.transactions.ids import TxnId
from magnetar.transactions.records import Action
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.transactions import Refusal
from tests.support.brokers import CLOCK
from tests.support.coordinators import (
    TransactionPeer,
    code,
    record_of,
    running_coordinator,
    topic_server,
    transaction_peer,
    transaction_stage,
)
from tests.support.secured import authenticator, permit, show, token

COMMIT, ABORT = Action.COMMIT, Action.ABORT
A, B = "persistent://public/default/a", "persistent://public/default/b"
OF_LOST = TopicName.parse("persistent://public/lost/a")
TIMEOUT_S = 120.0


async def test_switched_off_nothing_is_written(tmp_path: Path) -> None:
    """No log, no checkpoint, and the record that components without logs of coordinators read."""

    store = MemoryStore(CLOCK)
    async with running_coordinator(tmp_path, store, enabled=0) as coordinator:
        item = await store.get(keys.coordinator(0))
        assert item is not None
        assert b'"chain":[],"checkpoint":null' in item.value
        await coordinator.stop()
    left = [path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*") if path.is_file()]
    assert not {names.LOGS, names.COORDINATORS, names.CLAIMS} & set(left)


async def test_the_course_of_a_transaction(tmp_path: Path) -> None:
    """Its participants learn of the decision before the client does. The end can be asked for
    again; its opposite is refused with the outcome."""

    async with transaction_stage(tmp_path, transaction_end_patience_s=30) as (broker, _, peer):
        assert code(await peer.connect()) is None
        txn = await peer.begin(A)
        assert txn == TxnId(0, 0)
        assert code(await peer.acknowledge(txn, B, "shop")) is None
        answer = await peer.end(txn)
        assert (code(answer), answer.txnid_most_bits, answer.txnid_least_bits) == (None, 0, 0)
        received = {broker.received.get_nowait() for _ in range(broker.received.qsize())}
        assert received == {(A, txn, COMMIT), (f"{B}/shop", txn, COMMIT)}
        assert code(await peer.end(txn)) is None
        answer = await peer.end(txn, ABORT)
        assert code(answer) == WireCode.INVALID_TXN_STATUS
        assert "COMMITTED" in answer.message
        assert code(await peer.join(txn, A)) == WireCode.INVALID_TXN_STATUS
        assert code(await peer.end(TxnId(0, 7))) == WireCode.TRANSACTION_NOT_FOUND
        second = await peer.begin(A)
        assert code(await peer.end(second, ABORT)) is None
        assert broker.received.get_nowait() == (A, second, ABORT)
        assert broker.low_watermarks == [-1, -1, 0]


async def test_a_topic_is_asked_by_its_full_name_whatever_the_client_wrote(tmp_path: Path) -> None:
    """Also one that a transaction names in several ways: each name is asked, which changes
    nothing the second time. Those names survive, and the next incarnation shows them too."""

    store, short, middle = MemoryStore(CLOCK), "a", "public/default/a"
    async with (
        running_coordinator(tmp_path, store) as coordinator,
        transaction_peer(coordinator) as peer,
    ):
        txn = await peer.begin(short, middle, A)
        assert code(await peer.acknowledge(txn, short, "shop")) is None
        assert code(await peer.join(txn, short)) is None
    async with (
        topic_server(store) as broker,
        running_coordinator(tmp_path, store, transaction_end_patience_s=30) as coordinator,
        transaction_peer(coordinator) as peer,
    ):
        shown = await CoordinatorInspection(lambda: coordinator).transaction(0, txn.least)
        assert shown["partitions"] == [short, middle, A]
        assert shown["subscriptions"] == [{"topic": short, "subscription": "shop"}]
        assert code(await peer.end(txn)) is None
        received = [broker.received.get_nowait() for _ in range(broker.received.qsize())]
        assert sorted(received) == [*3 * [(A, txn, COMMIT)], (f"{A}/shop", txn, COMMIT)]


async def test_a_client_does_not_wait_for_a_broker_that_is_unavailable(tmp_path: Path) -> None:
    """The answer comes after the patience; the broker is asked again until it answers."""

    async with transaction_stage(
        tmp_path, transaction_end_patience_s=0.05, transaction_participant_timeout_s=0.5
    ) as (
        broker,
        _,
        peer,
    ):
        broker.silent = True
        txn = await peer.begin(A)
        assert code(await peer.end(txn)) is None
        assert await asyncio.wait_for(broker.received.get(), TIMEOUT_S) == (A, txn, COMMIT)
        assert await asyncio.wait_for(broker.received.get(), TIMEOUT_S) == (A, txn, COMMIT)
        broker.silent = False
        assert await asyncio.wait_for(broker.received.get(), TIMEOUT_S) == (A, txn, COMMIT)


async def test_an_unforeseen_error_of_one_participant_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is counted and tried again until the participant has carried the decision out; the life
    goes on."""

    async with transaction_stage(tmp_path, transaction_end_patience_s=30) as (
        _,
        coordinator,
        peer,
    ):
        assert code(await peer.connect()) is None
        txn = await peer.begin(A, B)
        attempt, failures, attempted = Attempts.make, [1, 1], list[str]()

        async def surprising(self: Attempts, order: Any) -> bool:
            attempted.append(order.name.topic)
            if order.name.topic == A and failures:
                failures.pop()
                raise RuntimeError("unforeseen")
            return await attempt(self, order)

        monkeypatch.setattr(Attempts, "make", surprising)
        assert code(await peer.end(txn, COMMIT)) is None
        assert sorted(attempted) == [A, A, A, B]
        assert coordinator.metrics.surprises.counts == {"ends of transactions": 2}


@pytest.mark.parametrize(
    "gone", [WireCode.TOPIC_NOT_FOUND, WireCode.SUBSCRIPTION_NOT_FOUND, WireCode.INVALID_TXN_STATUS]
)
async def test_what_does_not_exist_any_more_has_ended(tmp_path: Path, gone: WireCode) -> None:
    """So has what ended the other way there, for good. Whatever else a broker refuses with is
    tried again."""

    store = MemoryStore(CLOCK)
    verdicts = [
        Refusal(WireCode.SERVICE_NOT_READY, "moving"),
        Refusal(WireCode.NOT_ALLOWED, "not yet"),
        Refusal(gone, "gone"),
    ]
    async with (
        topic_server(store) as broker,
        running_coordinator(tmp_path, store, transaction_end_patience_s=60) as coordinator,
        transaction_peer(coordinator) as peer,
    ):
        broker.verdict = lambda _command: verdicts.pop(0)
        assert code(await peer.end(await peer.begin(A))) is None
        assert verdicts == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (keys.partitioned_topic(OF_LOST), PLAIN_TOPIC),
        (
            keys.bundle(BundleName(OF_LOST.namespace_name, 0, 1 << 31)),
            BundleRecord(BundleState.OWNED, 1, "broker-0.1").encode(),
        ),
        (keys.namespace(OF_LOST.namespace_name), NamespaceRecord((0, 1 << 31), {}).encode()),
    ],
    ids=["a topic is entered", "bundles are recorded", "it was put back concurrently"],
)
async def test_a_namespace_whose_record_was_lost_has_not_ended_its_topics(
    tmp_path: Path, key: str, value: bytes
) -> None:
    """No broker finds it for a while. What the store knows of it says that a topic may be there:
    it is asked when it is found again."""

    store, topic = MemoryStore(CLOCK), str(OF_LOST)
    await store.put(key, value)
    async with (
        topic_server(store) as broker,
        running_coordinator(tmp_path, store, transaction_end_patience_s=60) as coordinator,
        transaction_peer(coordinator) as peer,
    ):
        txn = await peer.begin(topic)
        assert code(await peer.acknowledge(txn, topic, "shop")) is None
        broker.lookups = [Refusal(WireCode.TOPIC_NOT_FOUND, "no such namespace")] * 4
        assert code(await peer.end(txn)) is None
        received = {broker.received.get_nowait() for _ in range(broker.received.qsize())}
        assert received == {(topic, txn, COMMIT), (f"{topic}/shop", txn, COMMIT)}
        assert broker.lookups == []


async def test_a_namespace_that_was_deleted_has_ended_its_topics(tmp_path: Path) -> None:
    """Nothing in the store says that one of them may come back: the entry of that name is a
    partitioned topic's, the bundle was split."""

    store, bundle = MemoryStore(CLOCK), BundleName(OF_LOST.namespace_name, 0, 1 << 31)
    await store.put(keys.partitioned_topic(OF_LOST), PartitionedTopicRecord(2, {}).encode())
    await store.put(keys.bundle(bundle), BundleRecord(BundleState.DELETED, 1).encode())
    async with (
        topic_server(store) as broker,
        running_coordinator(tmp_path, store, transaction_end_patience_s=60) as coordinator,
        transaction_peer(coordinator) as peer,
    ):
        broker.lookups = [Refusal(WireCode.TOPIC_NOT_FOUND, "no such namespace")]
        assert code(await peer.end(await peer.begin(str(OF_LOST)))) is None
        assert (broker.lookups, broker.received.qsize()) == ([], 0)


async def test_a_transaction_that_is_forgotten_by_its_client_is_aborted(tmp_path: Path) -> None:
    """At its timeout; a later commit is refused with that outcome."""

    async with transaction_stage(tmp_path) as (broker, _, peer):
        txn = await peer.begin(timeout_ms=1000)
        slow = await peer.begin(A, timeout_ms=2000)
        assert await asyncio.wait_for(broker.received.get(), TIMEOUT_S) == (A, slow, ABORT)
        answer = await peer.end(txn)
        assert code(answer) == WireCode.INVALID_TXN_STATUS
        assert "ABORTED" in answer.message


async def test_metrics_tell_how_transactions_end_and_how_long_it_takes(tmp_path: Path) -> None:
    """One committed at a participant, one aborted, one whose time was over: counted by outcome,
    and timed until they have ended everywhere."""

    store = MemoryStore(CLOCK)
    async with (
        topic_server(store),
        running_coordinator(tmp_path, store) as coordinator,
        transaction_peer(coordinator) as peer,
    ):
        committed, aborted = await peer.begin(A), await peer.begin()
        assert code(await peer.end(committed)) is None
        assert code(await peer.end(aborted, ABORT)) is None
        await peer.begin(timeout_ms=1)
        sample = coordinator.metrics.registry.get_sample_value
        name, outcomes = (
            "magnetar_coordinator_transactions_decided_total",
            ("committed", "aborted", "timed_out"),
        )
        async with asyncio.timeout(TIMEOUT_S):
            while [sample(name, {"outcome": outcome}) for outcome in outcomes] != [1, 1, 1]:
                await asyncio.sleep(0.01)
            while (
                sample("magnetar_coordinator_settle_seconds_count", {"outcome": "committed"}) != 1
            ):
                await asyncio.sleep(0.01)
        assert sample("magnetar_coordinator_transactions_begun_total") == 3
        assert sample("magnetar_coordinator_request_seconds_count", {"command": "end_txn"}) == 2
        assert sample("magnetar_coordinator_request_seconds_sum", {"command": "new_txn"}) > 0


async def test_waiting_clients_get_an_error_when_an_incarnation_ends_and_its_gauges_are_reset(
    tmp_path: Path,
) -> None:
    """Not left to its own timeout: the next incarnation knows what was decided. On connections
    that go on, as a standalone server's do."""

    store = MemoryStore(CLOCK)
    gauges = "held", "epoch", "transactions", "oldest_transaction_seconds"

    async def reported(coordinator: Coordinator) -> list[float | None]:
        return [
            coordinator.metrics.registry.get_sample_value(f"magnetar_coordinator_{name}")
            for name in gauges
        ]

    async with (
        topic_server(store) as broker,
        running_coordinator(tmp_path, store, transaction_end_patience_s=60) as coordinator,
        transaction_peer(coordinator) as peer,
    ):
        broker.silent = True
        txn = await peer.begin(A)
        transactions = coordinator.service.transactions
        assert transactions is not None
        waiting = asyncio.create_task(transactions.end(txn.least, COMMIT, Caller()))
        async with asyncio.timeout(TIMEOUT_S):
            await broker.received.get()
        assert (await reported(coordinator))[:3] == [1, 1, 1]
        coordinator.fail("a test")
        assert await reported(coordinator) == [0, 0, 0, 0]
        await coordinator.close()
        with pytest.raises(TransactionCoordinatorNotFound, match="look it up again"):
            await asyncio.wait_for(waiting, TIMEOUT_S)
        with pytest.raises(TransactionCoordinatorNotFound):
            await transactions.end(txn.least, COMMIT, Caller())
        assert await reported(coordinator) == [0, 0, 0, 0]


async def test_the_next_incarnation_carries_on(tmp_path: Path) -> None:
    """After a crash: decisions are carried out, open transactions stay open, outcomes are known,
    ids are new."""

    store = MemoryStore(CLOCK)
    async with topic_server(store) as broker:
        broker.silent = True
        async with (
            running_coordinator(tmp_path, store, transaction_end_patience_s=0) as first,
            transaction_peer(first) as peer,
        ):
            decided, opened, over = await peer.begin(A), await peer.begin(B), await peer.begin()
            assert code(await peer.end(decided)) is None
            assert code(await peer.end(over, ABORT)) is None
            first.fail("killed")
        broker.silent = False
        while not broker.received.empty():
            broker.received.get_nowait()
        async with (
            running_coordinator(tmp_path, store) as second,
            transaction_peer(second) as peer,
        ):
            assert await asyncio.wait_for(broker.received.get(), TIMEOUT_S) == (A, decided, COMMIT)
            assert code(await peer.end(decided)) is None
            assert code(await peer.end(over)) == WireCode.INVALID_TXN_STATUS
            assert code(await peer.end(opened)) is None
            assert await asyncio.wait_for(broker.received.get(), TIMEOUT_S) == (B, opened, COMMIT)
            assert await peer.begin() == TxnId(0, 3)
            await second.stop()
        assert (await record_of(store)).open_transactions == 1


async def test_an_unforeseen_error_in_background_work_ends_no_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is counted, and the work begins again."""
    changed, again = CoordinatorClaim.set_changed, asyncio.Event()
    errors = [RuntimeError("the test says so")]

    async def set_changed(claim: CoordinatorClaim) -> None:
        if errors:
            raise errors.pop()
        again.set()
        await changed(claim)

    monkeypatch.setattr(CoordinatorClaim, "set_changed", set_changed)

    async with (
        running_coordinator(tmp_path, MemoryStore(CLOCK)) as coordinator,
        transaction_peer(coordinator) as peer,
    ):
        await asyncio.wait_for(again.wait(), TIMEOUT_S)
        assert coordinator.metrics.surprises.counts["coordinator set"] == 1
        assert coordinator.ready
        assert code(await peer.end(await peer.begin())) is None


@pytest.mark.parametrize("ahead_ms", [365 * 86_400_000, -365 * 86_400_000])
async def test_a_wall_clock_that_jumps_ends_nothing_and_forgets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_ms: int
) -> None:
    """Between two incarnations: what is open stays open, outcomes stay known, and administrators
    read ages that passed."""

    store = MemoryStore(CLOCK)
    async with running_coordinator(tmp_path, store) as first, transaction_peer(first) as peer:
        opened, over = await peer.begin(), await peer.begin()
        assert code(await peer.end(over, ABORT)) is None
        first.fail("killed")
    wall_ms = CLOCK.wall_ms
    monkeypatch.setattr(CLOCK, "wall_ms", lambda: wall_ms() + ahead_ms)
    async with running_coordinator(tmp_path, store) as second, transaction_peer(second) as peer:
        (row,) = await CoordinatorInspection(lambda: second).transactions(0, 0, 10)
        assert row["age_ms"] < TIMEOUT_S * 1000
        assert abs(CLOCK.wall_ms() - row["opened_ms"]) < TIMEOUT_S * 1000
        assert code(await peer.end(over)) == WireCode.INVALID_TXN_STATUS, "its outcome is known"
        assert code(await peer.end(opened)) is None


async def test_a_life_that_was_fenced_answers_nothing(tmp_path: Path) -> None:
    """Its claim is gone: the request in flight ends with the connection, and the life with it."""

    store = MemoryStore(CLOCK)
    async with (
        running_coordinator(tmp_path, store, claim_check_s=60) as coordinator,
        transaction_peer(coordinator) as peer,
    ):
        await peer.begin()
        (tmp_path / names.claim(coordinator.incarnation)).unlink()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await peer.new()
        async with asyncio.timeout(TIMEOUT_S):
            await coordinator.ended()


async def test_an_idle_life_learns_that_it_was_fenced(tmp_path: Path) -> None:
    """It looks for its claim without anything to write."""

    store = MemoryStore(CLOCK)
    async with running_coordinator(tmp_path, store, claim_check_s=0.05) as coordinator:
        (tmp_path / names.claim(coordinator.incarnation)).unlink()
        async with asyncio.timeout(TIMEOUT_S):
            await coordinator.ended()


async def test_wrong_requests_are_refused_with_a_reason(tmp_path: Path) -> None:
    """Another coordinator's number, names that are none, timeouts and limits; the connection
    goes on."""

    store = MemoryStore(CLOCK)
    async with (
        running_coordinator(
            tmp_path, store, transactions_open_max=1, transaction_timeout_max_s=100
        ) as coordinator,
        transaction_peer(coordinator) as peer,
    ):
        elsewhere = WireCode.TRANSACTION_COORDINATOR_NOT_FOUND
        assert code(await peer.connect(1)) == elsewhere
        assert code(await peer.end(TxnId(1, 0))) == elsewhere
        for nobodys in (16, (1 << 64) - 1):
            assert code(await peer.connect(nobodys)) == WireCode.NOT_ALLOWED
            assert code(await peer.end(TxnId(nobodys, 0))) == WireCode.NOT_ALLOWED
            assert code(await peer.join(TxnId(nobodys, 0), A)) == WireCode.NOT_ALLOWED
            assert code(await peer.acknowledge(TxnId(nobodys, 0), A, "s")) == WireCode.NOT_ALLOWED
        assert code(await peer.new(100_001)) == WireCode.METADATA
        txn = await peer.begin(timeout_ms=100_000)
        assert code(await peer.new()) == WireCode.TOO_MANY_REQUESTS
        assert code(await peer.join(txn, "a//b")) == WireCode.INVALID_TOPIC_NAME
        assert (
            code(await peer.join(txn, "non-persistent://public/default/a")) == WireCode.NOT_ALLOWED
        )
        assert (
            code(await peer.join(txn, f"{COORDINATOR_TOPIC}-partition-0")) == WireCode.NOT_ALLOWED
        ), "nobody would ever end it there"
        assert code(await peer.acknowledge(txn, A, "")) == WireCode.METADATA
        many = [f"persistent://public/default/{'x' * 900}{number}" for number in range(5000)]
        assert code(await peer.join(txn, *many)) == WireCode.TOO_MANY_REQUESTS
        assert code(await peer.end(txn)) is None


async def test_turned_off_again_the_log_stays_named(tmp_path: Path) -> None:
    """What was open then is open when transactions are switched on again."""

    store = MemoryStore(CLOCK)
    async with (
        running_coordinator(tmp_path, store) as coordinator,
        transaction_peer(coordinator) as peer,
    ):
        txn = await peer.begin()
        await coordinator.stop()
    before = await record_of(store)
    async with running_coordinator(tmp_path, store, enabled=0) as coordinator:
        record = await record_of(store)
        assert (record.chain, record.checkpoint, record.open_transactions) == (
            before.chain,
            before.checkpoint,
            1,
        )
        await coordinator.stop()
    async with (
        running_coordinator(tmp_path, store) as coordinator,
        transaction_peer(coordinator) as peer,
    ):
        assert code(await peer.end(txn)) is None


async def test_only_its_role_may_end_a_transaction(tmp_path: Path) -> None:
    """With security on: not another role, but a super user; a role that a proxy speaks for owns
    what is begun for it."""

    store = MemoryStore(CLOCK)
    security = authenticator(tmp_path / "security")
    await permit(store, "ann", "eve", "proxy")
    async with (
        running_coordinator(tmp_path / "storage", store, security=security) as coordinator,
        AsyncExitStack() as stack,
    ):

        async def peer_as(role: str, original: str = "") -> TransactionPeer:
            peer = await stack.enter_async_context(transaction_peer(coordinator, handshake=False))
            assert (
                await show(peer, token(role), original=original)
            ).type == api.BaseCommand.CONNECTED
            return peer

        ann, eve, admin, ann_by_proxy = (
            await peer_as("ann"),
            await peer_as("eve"),
            await peer_as("admin"),
            await peer_as("proxy", "ann"),
        )
        txn, by_proxy = await ann.begin(), await ann_by_proxy.begin()
        for other in (txn, by_proxy):
            assert code(await eve.end(other)) == WireCode.NOT_ALLOWED
            assert code(await eve.join(other, A)) == WireCode.NOT_ALLOWED
        assert code(await admin.end(txn, ABORT)) is None
        assert code(await ann.end(by_proxy)) is None
