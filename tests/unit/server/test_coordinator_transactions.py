"""A coordinator as its clients and its brokers see it: every answer behind its record, every decision carried out, whatever happens between."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from magnetar.clock import SystemClock
from magnetar.errors import TransactionCoordinatorNotFound, TransactionNotFound, WireCode
from magnetar.metadata import keys
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    CoordinatorRecord,
    CoordinatorSetRecord,
    CoordinatorState,
    NamespaceRecord,
    PartitionedTopicRecord,
)
from magnetar.names import BundleName, TopicName
from magnetar.server.coordinator import retired
from magnetar.server.coordinator.discovery import ASSIGN
from magnetar.server.coordinator.life import Coordinator
from magnetar.server.coordinator.retired import RetiredNumbers
from magnetar.server.topics.topic_registry import PLAIN_TOPIC
from magnetar.storage import names
from magnetar.transactions.coordinator import Limits
from magnetar.transactions.coordinator_events import Caller, EndRequested
from magnetar.transactions.ids import TxnId
from magnetar.transactions.records import Action
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.transactions import Refusal
from tests.unit.server.brokers import CLOCK, volume_in
from tests.unit.server.coordinators import TransactionPeer, running_coordinator, topic_server, transaction_peer, transaction_stage
from tests.unit.server.secured import authenticator, show, token

COMMIT, ABORT = Action.COMMIT, Action.ABORT
A, B = "persistent://public/default/a", "persistent://public/default/b"
OF_LOST = TopicName.parse("persistent://public/lost/a")
TIMEOUT_S = 120.0


class SetForward(SystemClock):
    """The machine's clock, `ahead_ms` ahead."""

    ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


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


def test_switched_off_nothing_is_written(tmp_path: Path) -> None:
    """No log, no checkpoint, and the record that components without logs of coordinators read."""

    async def scenario() -> None:
        store = MemoryStore(CLOCK)
        async with running_coordinator(tmp_path, store, enabled=0) as coordinator:
            item = await store.get(keys.coordinator(0))
            assert item is not None
            assert b'"schema":1' in item.value
            await coordinator.stop()
        left = [path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*") if path.is_file()]
        assert not {names.LOGS, names.COORDINATORS, names.CLAIMS} & set(left)

    asyncio.run(scenario())


def test_the_course_of_a_transaction(tmp_path: Path) -> None:
    """Its participants hear of the decision before the client does; the end can be asked for again, its opposite is told the outcome."""

    async def scenario() -> None:
        async with transaction_stage(tmp_path, transaction_end_patience_s=30) as (broker, _, peer):
            assert code(await peer.connect()) is None
            txn = await peer.begin(A)
            assert txn == TxnId(0, 0)
            assert code(await peer.acknowledge(txn, B, "shop")) is None
            answer = await peer.end(txn)
            assert (code(answer), answer.txnid_most_bits, answer.txnid_least_bits) == (None, 0, 0)
            told = {broker.told.get_nowait() for _ in range(broker.told.qsize())}
            assert told == {(A, txn, COMMIT), (f"{B}/shop", txn, COMMIT)}
            assert code(await peer.end(txn)) is None
            answer = await peer.end(txn, ABORT)
            assert code(answer) == WireCode.INVALID_TXN_STATUS
            assert "COMMITTED" in answer.message
            assert code(await peer.join(txn, A)) == WireCode.INVALID_TXN_STATUS
            assert code(await peer.end(TxnId(0, 7))) == WireCode.TRANSACTION_NOT_FOUND
            second = await peer.begin(A)
            assert code(await peer.end(second, ABORT)) is None
            assert broker.told.get_nowait() == (A, second, ABORT)
            assert broker.low_watermarks == [-1, -1, 0]

    asyncio.run(scenario())


def test_a_client_does_not_wait_for_a_broker_that_is_away(tmp_path: Path) -> None:
    """The answer comes after the patience; the broker is asked again until it answers."""

    async def scenario() -> None:
        async with transaction_stage(tmp_path, transaction_end_patience_s=0.05, transaction_participant_timeout_s=0.5) as (
            broker,
            _,
            peer,
        ):
            broker.silent = True
            txn = await peer.begin(A)
            assert code(await peer.end(txn)) is None
            assert await asyncio.wait_for(broker.told.get(), TIMEOUT_S) == (A, txn, COMMIT)
            assert await asyncio.wait_for(broker.told.get(), TIMEOUT_S) == (A, txn, COMMIT)
            broker.silent = False
            assert await asyncio.wait_for(broker.told.get(), TIMEOUT_S) == (A, txn, COMMIT)

    asyncio.run(scenario())


@pytest.mark.parametrize("gone", [WireCode.TOPIC_NOT_FOUND, WireCode.SUBSCRIPTION_NOT_FOUND, WireCode.INVALID_TXN_STATUS])
def test_what_does_not_exist_any_more_has_ended(tmp_path: Path, gone: WireCode) -> None:
    """So has what ended the other way there, for good. Whatever else a broker refuses with is tried again."""

    async def scenario() -> None:
        store = MemoryStore(CLOCK)
        verdicts = [Refusal(WireCode.SERVICE_NOT_READY, "moving"), Refusal(WireCode.NOT_ALLOWED, "not yet"), Refusal(gone, "gone")]
        async with (
            topic_server(store) as broker,
            running_coordinator(tmp_path, store, transaction_end_patience_s=60) as coordinator,
            transaction_peer(coordinator) as peer,
        ):
            broker.verdict = lambda _command: verdicts.pop(0)
            assert code(await peer.end(await peer.begin(A))) is None
            assert verdicts == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (keys.partitioned_topic(OF_LOST), PLAIN_TOPIC),
        (keys.bundle(BundleName(OF_LOST.namespace_name, 0, 1 << 31)), BundleRecord(BundleState.OWNED, 1, "broker-0.1").encode()),
        (keys.namespace(OF_LOST.namespace_name), NamespaceRecord((0, 1 << 31), {}).encode()),
    ],
    ids=["a topic is entered", "bundles are recorded", "it was put back meanwhile"],
)
def test_a_namespace_whose_record_was_lost_has_not_ended_its_topics(tmp_path: Path, key: str, value: bytes) -> None:
    """No broker finds it for a while. What the store knows of it says that a topic may be there: it is asked when it is found again."""

    async def scenario() -> None:
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
            told = {broker.told.get_nowait() for _ in range(broker.told.qsize())}
            assert told == {(topic, txn, COMMIT), (f"{topic}/shop", txn, COMMIT)}
            assert broker.lookups == []

    asyncio.run(scenario())


def test_a_namespace_that_was_deleted_has_ended_its_topics(tmp_path: Path) -> None:
    """Nothing in the store says that one of them may come back: the entry of that name is a partitioned topic's, the bundle was split."""

    async def scenario() -> None:
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
            assert (broker.lookups, broker.told.qsize()) == ([], 0)

    asyncio.run(scenario())


def test_a_transaction_that_is_forgotten_by_its_client_is_aborted(tmp_path: Path) -> None:
    """At its timeout; a commit that comes later is told so."""

    async def scenario() -> None:
        async with transaction_stage(tmp_path) as (broker, _, peer):
            txn = await peer.begin(timeout_ms=1000)
            slow = await peer.begin(A, timeout_ms=2000)
            assert await asyncio.wait_for(broker.told.get(), TIMEOUT_S) == (A, slow, ABORT)
            answer = await peer.end(txn)
            assert code(answer) == WireCode.INVALID_TXN_STATUS
            assert "ABORTED" in answer.message

    asyncio.run(scenario())


def test_metrics_tell_how_transactions_end_and_how_long_it_takes(tmp_path: Path) -> None:
    """One committed at a participant, one aborted, one whose time was over: counted by outcome, and timed until they have ended everywhere."""

    async def scenario() -> None:
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
            name, outcomes = "magnetar_coordinator_transactions_decided_total", ("committed", "aborted", "timed_out")
            async with asyncio.timeout(TIMEOUT_S):
                while [sample(name, {"outcome": outcome}) for outcome in outcomes] != [1, 1, 1]:
                    await asyncio.sleep(0.01)
                while sample("magnetar_coordinator_settle_seconds_count", {"outcome": "committed"}) != 1:
                    await asyncio.sleep(0.01)
            assert sample("magnetar_coordinator_transactions_begun_total") == 3
            assert sample("magnetar_coordinator_request_seconds_count", {"command": "end_txn"}) == 2
            assert sample("magnetar_coordinator_request_seconds_sum", {"command": "new_txn"}) > 0

    asyncio.run(scenario())


def test_whoever_waits_when_a_life_ends_is_told_and_its_gauges_end_with_it(tmp_path: Path) -> None:
    """Not left to its own timeout: the next life knows what was decided. On connections that go on, as a standalone server's do."""

    async def scenario() -> None:
        store = MemoryStore(CLOCK)
        gauges = "held", "epoch", "transactions", "oldest_transaction_seconds"

        async def told(coordinator: Coordinator) -> list[float | None]:
            return [coordinator.metrics.registry.get_sample_value(f"magnetar_coordinator_{name}") for name in gauges]

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
                await broker.told.get()
            assert (await told(coordinator))[:3] == [1, 1, 1]
            coordinator.fail("a test")
            assert await told(coordinator) == [0, 0, 0, 0]
            await coordinator.close()
            with pytest.raises(TransactionCoordinatorNotFound, match="look it up again"):
                await asyncio.wait_for(waiting, TIMEOUT_S)
            with pytest.raises(TransactionCoordinatorNotFound):
                await transactions.end(txn.least, COMMIT, Caller())
            assert await told(coordinator) == [0, 0, 0, 0]

    asyncio.run(scenario())


def test_of_numbers_that_are_gone_only_some_are_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ones that were asked about; any other is read again, and what is served again is let go of."""
    monkeypatch.setattr(retired, "READ_MAX", 1)

    async def scenario() -> None:
        store = MemoryStore(CLOCK)
        async with running_coordinator(tmp_path, store) as first, transaction_peer(first) as peer:
            ended = []
            for tcid in (1, 2):
                async with running_coordinator(tmp_path, store, tcid=tcid) as other, transaction_peer(other) as at_other:
                    ended.append(await at_other.begin(tcid=tcid))
                    assert code(await at_other.end(ended[-1])) is None
                    await other.stop()
            await store.put(keys.COORDINATOR_SET, CoordinatorSetRecord(1, 1, "test/tx").encode())
            known = first.service._retired
            assert known is not None
            for txn in (*ended, *ended):
                assert code(await peer.end(txn)) is None
                assert [*known._read] == [txn.most]
            await store.put(keys.COORDINATOR_SET, CoordinatorSetRecord(3, 3, "test/tx").encode())
            assert code(await peer.end(ended[1])) == WireCode.TRANSACTION_COORDINATOR_NOT_FOUND
            assert not known._read

    asyncio.run(scenario())


def test_outcomes_of_a_number_that_is_gone_are_forgotten_when_it_would_forget_them(tmp_path: Path) -> None:
    """Also while what the number has left stays in memory: else participants that ask would be told for ever that the end is under way."""

    async def scenario() -> None:
        store, clock = MemoryStore(CLOCK), SetForward()
        async with running_coordinator(tmp_path, store, tcid=1) as other, transaction_peer(other) as peer:
            txn, left_open = await peer.begin(tcid=1), await peer.begin(tcid=1)
            assert code(await peer.end(txn)) is None
            await other.stop()
        asked = EndRequested(None, txn.least, COMMIT, Caller(), 0)
        async with volume_in(tmp_path) as volume:
            known = RetiredNumbers(store, volume, clock, Limits(outcome_kept_ms=1_000_000))
            await known.ask(1, asked)
            core = await known.core_of(1)
            clock.ahead_ms = 900_000
            await known.ask(1, asked)
            clock.ahead_ms = 2_000_000
            with pytest.raises(TransactionNotFound, match="ended so long ago"):
                await known.ask(1, asked)
            assert await known.core_of(1) is core, "it was not read again"
            assert core.status(left_open.least) == "OPEN", "only its own coordinator may end it"

    asyncio.run(scenario())


def test_the_next_life_carries_on(tmp_path: Path) -> None:
    """After a crash: decisions are carried out, open transactions stay open, outcomes are known, ids are new."""

    async def scenario() -> None:
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
            while not broker.told.empty():
                broker.told.get_nowait()
            async with running_coordinator(tmp_path, store) as second, transaction_peer(second) as peer:
                assert await asyncio.wait_for(broker.told.get(), TIMEOUT_S) == (A, decided, COMMIT)
                assert code(await peer.end(decided)) is None
                assert code(await peer.end(over)) == WireCode.INVALID_TXN_STATUS
                assert code(await peer.end(opened)) is None
                assert await asyncio.wait_for(broker.told.get(), TIMEOUT_S) == (B, opened, COMMIT)
                assert await peer.begin() == TxnId(0, 3)
                await second.stop()
            assert (await record_of(store)).open_transactions == 1

    asyncio.run(scenario())


def test_a_life_that_was_fenced_answers_nothing(tmp_path: Path) -> None:
    """Its claim is gone: the request in flight ends with the connection, and the life with it."""

    async def scenario() -> None:
        store = MemoryStore(CLOCK)
        async with running_coordinator(tmp_path, store, claim_check_s=60) as coordinator, transaction_peer(coordinator) as peer:
            await peer.begin()
            (tmp_path / names.claim(coordinator.incarnation)).unlink()
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await peer.new()
            async with asyncio.timeout(TIMEOUT_S):
                await coordinator.ended()

    asyncio.run(scenario())


def test_an_idle_life_learns_that_it_was_fenced(tmp_path: Path) -> None:
    """It looks for its claim without anything to write."""

    async def scenario() -> None:
        store = MemoryStore(CLOCK)
        async with running_coordinator(tmp_path, store, claim_check_s=0.05) as coordinator:
            (tmp_path / names.claim(coordinator.incarnation)).unlink()
            async with asyncio.timeout(TIMEOUT_S):
                await coordinator.ended()

    asyncio.run(scenario())


def test_a_retiring_number_begins_nothing_and_says_when_it_is_empty(tmp_path: Path) -> None:
    """It ends what it has; the record tells the operator."""

    async def until(store: MemoryStore, wanted: tuple[CoordinatorState, int]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            revision = 0
            while True:
                found = await store.range(keys.coordinator(0))
                record = CoordinatorRecord.decode(found.items[0].value)
                if (record.state, record.open_transactions) == wanted:
                    return
                revision = found.revision
                async for _ in store.watch(keys.coordinator(0), revision + 1):
                    break

    async def scenario() -> None:
        store = MemoryStore(CLOCK)
        async with (
            topic_server(store),
            running_coordinator(tmp_path, store) as coordinator,
            transaction_peer(coordinator) as peer,
        ):
            txn = await peer.begin(A)
            await store.put(keys.COORDINATOR_SET, CoordinatorSetRecord(0, 1, "test/tx").encode())
            await until(store, (CoordinatorState.RETIRING, 1))
            answer = await peer.new()
            assert code(answer) == WireCode.TRANSACTION_COORDINATOR_NOT_FOUND
            assert "retiring" in answer.message, "there is no other coordinator to begin it"
            assert code(await peer.end(txn)) is None
            await until(store, (CoordinatorState.RETIRING, 0))
            await store.put(keys.COORDINATOR_SET, CoordinatorSetRecord(1, 1, "test/tx").encode())
            await until(store, (CoordinatorState.SERVING, 0))
            assert await peer.begin() == TxnId(0, 1)

    asyncio.run(scenario())


def test_requests_that_are_wrong_are_told_why(tmp_path: Path) -> None:
    """Another coordinator's number, names that are none, timeouts and limits; the connection goes on."""

    async def scenario() -> None:
        store = MemoryStore(CLOCK)
        async with (
            running_coordinator(tmp_path, store, transactions_open_max=1, transaction_timeout_max_s=100) as coordinator,
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
            assert code(await peer.join(txn, "non-persistent://public/default/a")) == WireCode.NOT_ALLOWED
            assert code(await peer.join(txn, f"{ASSIGN}-partition-0")) == WireCode.NOT_ALLOWED, "nobody would ever end it there"
            assert code(await peer.acknowledge(txn, A, "")) == WireCode.METADATA
            many = [f"persistent://public/default/{'x' * 900}{number}" for number in range(5000)]
            assert code(await peer.join(txn, *many)) == WireCode.TOO_MANY_REQUESTS
            assert code(await peer.end(txn)) is None

    asyncio.run(scenario())


def test_turned_off_again_the_log_stays_named(tmp_path: Path) -> None:
    """What was open then is open when transactions are switched on again."""

    async def scenario() -> None:
        store = MemoryStore(CLOCK)
        async with running_coordinator(tmp_path, store) as coordinator, transaction_peer(coordinator) as peer:
            txn = await peer.begin()
            await coordinator.stop()
        before = await record_of(store)
        async with running_coordinator(tmp_path, store, enabled=0) as coordinator:
            record = await record_of(store)
            assert (record.chain, record.checkpoint, record.open_transactions) == (before.chain, before.checkpoint, 1)
            await coordinator.stop()
        async with running_coordinator(tmp_path, store) as coordinator, transaction_peer(coordinator) as peer:
            assert code(await peer.end(txn)) is None

    asyncio.run(scenario())


def test_only_its_role_may_end_a_transaction(tmp_path: Path) -> None:
    """With security on: not another role, but a super user; a role that a proxy speaks for owns what is begun for it."""

    async def scenario() -> None:
        store = MemoryStore(CLOCK)
        security = authenticator(tmp_path / "security")
        async with running_coordinator(tmp_path / "storage", store, security=security) as coordinator, AsyncExitStack() as stack:

            async def peer_as(role: str, original: str = "") -> TransactionPeer:
                peer = await stack.enter_async_context(transaction_peer(coordinator, handshake=False))
                assert (await show(peer, token(role), original=original)).type == api.BaseCommand.CONNECTED
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

    asyncio.run(scenario())


def test_what_a_retiring_number_has_another_one_begin_is_its_clients(tmp_path: Path) -> None:
    """With security on: the role that asked the retiring number owns the transaction, and neither another role nor the coordinator does."""

    async def scenario() -> None:
        store = MemoryStore(CLOCK)
        security = authenticator(tmp_path / "security")
        async with (
            running_coordinator(tmp_path / "storage", store, security=security) as first,
            running_coordinator(tmp_path / "storage", store, tcid=1, security=security) as second,
            AsyncExitStack() as stack,
        ):

            async def peer_as(role: str, coordinator: Coordinator) -> TransactionPeer:
                peer = await stack.enter_async_context(transaction_peer(coordinator, handshake=False))
                assert (await show(peer, token(role))).type == api.BaseCommand.CONNECTED
                return peer

            await store.put(keys.COORDINATOR_SET, CoordinatorSetRecord(1, 1, "test/tx").encode())
            ann, eve = await peer_as("ann", second), await peer_as("eve", second)
            async with asyncio.timeout(TIMEOUT_S):
                while (of_ann := await ann.begin(tcid=1)).most == 1:
                    pass
            of_eve = await eve.begin(tcid=1)
            assert (of_ann.most, of_eve.most) == (0, 0)
            ann_at_first, eve_at_first = await peer_as("ann", first), await peer_as("eve", first)
            assert code(await eve_at_first.end(of_ann)) == WireCode.NOT_ALLOWED
            assert code(await ann_at_first.end(of_eve)) == WireCode.NOT_ALLOWED
            assert code(await ann_at_first.end(of_ann)) is None
            assert code(await eve_at_first.end(of_eve)) is None

    asyncio.run(scenario())


def test_a_retiring_number_has_another_one_begin(tmp_path: Path) -> None:
    """A client that knows only the retiring one gets a transaction of the other, and ends it there; a transaction of its own ends here."""

    async def scenario() -> None:
        store = MemoryStore(CLOCK)
        async with (
            running_coordinator(tmp_path, store) as first,
            running_coordinator(tmp_path, store, tcid=1) as second,
            transaction_peer(first) as peer,
            transaction_peer(second) as at_second,
        ):
            own = await at_second.begin(tcid=1)
            assert own == TxnId(1, 0)
            await store.put(keys.COORDINATOR_SET, CoordinatorSetRecord(1, 1, "test/tx").encode())
            async with asyncio.timeout(TIMEOUT_S):
                while (found := await at_second.begin(tcid=1)).most == 1:
                    pass
            assert found == TxnId(0, 0)
            assert code(await at_second.end(found)) == WireCode.TRANSACTION_COORDINATOR_NOT_FOUND
            assert code(await peer.end(found)) is None
            assert code(await at_second.end(own)) is None

    asyncio.run(scenario())


@pytest.mark.parametrize("gives_back", [True, False], ids=["given back", "died while retiring"])
def test_the_first_number_answers_for_one_that_is_gone(tmp_path: Path, gives_back: bool) -> None:
    """Outcomes of what has ended there, and new transactions of its own; nothing while the number is held, or announced."""

    async def scenario() -> None:
        store = MemoryStore(CLOCK)
        elsewhere = WireCode.TRANSACTION_COORDINATOR_NOT_FOUND
        async with running_coordinator(tmp_path, store) as first, transaction_peer(first) as peer:
            async with running_coordinator(tmp_path, store, tcid=1) as second:
                async with transaction_peer(second) as at_second:
                    committed, aborted, left_open = [await at_second.begin(tcid=1) for _ in range(3)]
                    assert code(await at_second.end(committed)) is None
                    assert code(await at_second.end(aborted, ABORT)) is None
                assert code(await peer.connect(1)) == elsewhere
                assert code(await peer.end(committed)) == elsewhere
                await store.put(keys.COORDINATOR_SET, CoordinatorSetRecord(1, 1, "test/tx").encode())
                if gives_back:
                    await second.stop()
                else:
                    async with asyncio.timeout(TIMEOUT_S):
                        while await _state_of(store, 1) is not CoordinatorState.RETIRING:
                            await asyncio.sleep(0.01)
            expected = CoordinatorState.RELEASED if gives_back else CoordinatorState.RETIRING
            assert await _state_of(store, 1) is expected
            files = await _files(tmp_path)
            assert code(await peer.connect(1)) is None
            assert code(await peer.end(committed)) is None
            answer = await peer.end(committed, ABORT)
            assert code(answer) == WireCode.INVALID_TXN_STATUS
            assert "(1,0) is COMMITTED" in answer.message
            assert code(await peer.end(aborted)) == WireCode.INVALID_TXN_STATUS
            assert code(await peer.join(aborted, A)) == WireCode.INVALID_TXN_STATUS
            assert code(await peer.end(TxnId(1, 99))) == WireCode.TRANSACTION_NOT_FOUND
            assert code(await peer.end(left_open)) == elsewhere, "only its own coordinator may end it"
            assert code(await peer.end(TxnId(2, 0))) == elsewhere
            assert (await peer.begin(tcid=1)).most == 0
            assert files <= await _files(tmp_path), "reading removes nothing"
            await store.put(keys.COORDINATOR_SET, CoordinatorSetRecord(2, 2, "test/tx").encode())
            assert code(await peer.end(committed)) == elsewhere

    async def _state_of(store: MemoryStore, tcid: int) -> CoordinatorState:
        item = await store.get(keys.coordinator(tcid))
        assert item is not None
        return CoordinatorRecord.decode(item.value).state

    async def _files(directory: Path) -> set[Path]:
        return {path for path in directory.rglob("*") if path.is_file() and path.name != "claim"}

    asyncio.run(scenario())
