"""Numbers of coordinators that retire or are gone: who begins for them, who answers for them,
and for how long."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from magnetar.clock import SystemClock
from magnetar.coordinator import retired
from magnetar.coordinator.incarnation import Coordinator
from magnetar.coordinator.retired import RetiredNumbers
from magnetar.errors import TransactionNotFound, WireCode
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import CoordinatorRecord, CoordinatorSetRecord, CoordinatorState
from magnetar.transactions.coordinator.events import Caller, EndRequested
from magnetar.transactions.coordinator.usage import Limits
from magnetar.transactions.ids import TxnId
from magnetar.transactions.records import Action
from magnetar.wire import pulsar_api_pb2 as api
from tests.support.brokers import CLOCK, volume_in
from tests.support.coordinators import (
    TransactionPeer,
    code,
    running_coordinator,
    topic_server,
    transaction_peer,
)
from tests.support.secured import authenticator, permit, show, token

COMMIT, ABORT = Action.COMMIT, Action.ABORT
A = "persistent://public/default/a"
TIMEOUT_S = 120.0


class SetForward(SystemClock):
    """The machine's clocks; `ahead_s` have passed besides, and the wall's was set a year ahead."""

    ahead_s = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + 365 * 86_400_000

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


async def test_of_numbers_that_are_gone_only_some_are_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last ones that were asked about; any other is read again, and what is served again is
    let go of."""
    monkeypatch.setattr(retired, "READ_MAX", 1)

    store = MemoryStore(CLOCK)
    async with running_coordinator(tmp_path, store) as first, transaction_peer(first) as peer:
        ended = []
        for tcid in (1, 2):
            async with (
                running_coordinator(tmp_path, store, tcid=tcid) as other,
                transaction_peer(other) as at_other,
            ):
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


async def test_outcomes_of_a_number_that_is_gone_are_forgotten_when_it_would_forget_them(
    tmp_path: Path,
) -> None:
    """Also while what the number has left stays in memory: else participants that ask would
    permanently be answered that the end is under way."""

    store, clock = MemoryStore(CLOCK), SetForward()
    async with (
        running_coordinator(tmp_path, store, tcid=1) as other,
        transaction_peer(other) as peer,
    ):
        txn, left_open = await peer.begin(tcid=1), await peer.begin(tcid=1)
        assert code(await peer.end(txn)) is None
        await other.stop()
    asked = EndRequested(None, txn.least, COMMIT, Caller(), 0)
    async with volume_in(tmp_path) as volume:
        known = RetiredNumbers(store, volume, clock, Limits(outcome_kept_ms=1_000_000))
        await known.ask(1, asked)
        core = await known.core_of(1)
        clock.ahead_s = 900
        await known.ask(1, asked)
        clock.ahead_s = 2_000
        with pytest.raises(TransactionNotFound, match="ended so long ago"):
            await known.ask(1, asked)
        assert await known.core_of(1) is core, "it was not read again"
        assert core.status(left_open.least) == "OPEN", "only its own coordinator may end it"


async def test_a_retiring_number_begins_nothing_and_says_when_it_is_empty(tmp_path: Path) -> None:
    """It ends what it has; the record reports this to the operator."""

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

    await scenario()


async def test_what_a_retiring_number_has_another_one_begin_is_its_clients(tmp_path: Path) -> None:
    """With security on: the role that asked the retiring number owns the transaction, and
    neither another role nor the coordinator does."""

    store = MemoryStore(CLOCK)
    security = authenticator(tmp_path / "security")
    await permit(store, "ann", "eve")
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


async def test_a_retiring_number_has_another_one_begin(tmp_path: Path) -> None:
    """A client that knows only the retiring one gets a transaction of the other, and ends it
    there; a transaction of its own ends here."""

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


@pytest.mark.parametrize("gives_back", [True, False], ids=["given back", "died while retiring"])
def test_the_first_number_answers_for_one_that_is_gone(tmp_path: Path, gives_back: bool) -> None:
    """Outcomes of what has ended there, and new transactions of its own; nothing while the
    number is held, or announced."""

    async def scenario() -> None:
        store = MemoryStore(CLOCK)
        elsewhere = WireCode.TRANSACTION_COORDINATOR_NOT_FOUND
        async with running_coordinator(tmp_path, store) as first, transaction_peer(first) as peer:
            async with running_coordinator(tmp_path, store, tcid=1) as second:
                async with transaction_peer(second) as at_second:
                    committed, aborted, left_open = [
                        await at_second.begin(tcid=1) for _ in range(3)
                    ]
                    assert code(await at_second.end(committed)) is None
                    assert code(await at_second.end(aborted, ABORT)) is None
                assert code(await peer.connect(1)) == elsewhere
                assert code(await peer.end(committed)) == elsewhere
                await store.put(
                    keys.COORDINATOR_SET, CoordinatorSetRecord(1, 1, "test/tx").encode()
                )
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
            assert code(await peer.end(left_open)) == elsewhere, (
                "only its own coordinator may end it"
            )
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
