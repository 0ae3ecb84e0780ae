"""Transactions with real processes: a coordinator that is killed or stopped, an etcd, our
client; what was reported stays true."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest

from dev.testbed.cluster import wait_for
from magnetar.client import Client
from magnetar.errors import InvalidTxnStatus
from magnetar.metadata.records import CoordinatorState
from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from tests.clients.coordinators import Stage, Type, Wire, outcomes_survive

pytestmark = [pytest.mark.slow, pytest.mark.etcd]

TIMEOUT_S = 240.0


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A broker and one coordinator."""
    stage = Stage(tmp_path_factory.mktemp("transactions"))
    try:
        stage.start()
        stage.coordinators[0].start()
        yield stage
    finally:
        stage.stop()


async def test_outcomes_and_open_transactions_survive_the_loss_of_the_process(stage: Stage) -> None:
    """SIGKILL between commits: outcomes are reported again, an open transaction is committed by the
    same client, ids go on."""

    def lose() -> None:
        stage.coordinators[0].kill()
        stage.coordinators[0].start()

    await outcomes_survive(stage.broker.service_url, lose)


async def test_a_planned_restart_fails_no_transaction(stage: Stage) -> None:
    """SIGTERM and another process under a client that begins and commits all the while: every
    commit succeeds, every id is new."""

    async with asyncio.timeout(TIMEOUT_S), Client(stage.broker.service_url) as client:
        ids: list[TxnId] = []
        warm, restarted = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            while not restarted.is_set() or len(ids) < 50:
                async with client.transaction() as txn:
                    ids.append(txn.id)
                if len(ids) >= 20:
                    warm.set()

        async def restart() -> None:
            await warm.wait()
            assert await asyncio.to_thread(stage.coordinators[0].stop) == 0
            await asyncio.to_thread(stage.coordinators[0].start)
            restarted.set()

        await asyncio.gather(work(), restart())
        assert len(set(ids)) == len(ids)
        assert ids == sorted(ids)


@pytest.mark.parametrize("planned", [True, False], ids=["given back", "killed while retiring"])
def test_a_client_goes_on_while_there_are_fewer_coordinators(stage: Stage, planned: bool) -> None:
    """From two to one under a client that knows both: no transaction fails, and the first
    coordinator reports outcomes of the other."""

    async def scenario() -> None:
        async with asyncio.timeout(2 * TIMEOUT_S), Client(stage.broker.service_url) as client:
            ids: list[TxnId] = []
            shrunk = asyncio.Event()

            async def work() -> None:
                after = 0
                while after < 20:
                    async with client.transaction() as txn:
                        ids.append(txn.id)
                    after += shrunk.is_set()

            async def shrink() -> None:
                while not any(txn.most == 1 for txn in ids):
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(stage.limit, 1)
                await asyncio.to_thread(
                    wait_for, "nothing is open at number 1", lambda: _retired(stage), TIMEOUT_S
                )
                if planned:
                    assert await asyncio.to_thread(stage.coordinators[1].stop) == 0
                else:
                    await asyncio.to_thread(stage.coordinators[1].kill)
                shrunk.set()

            await asyncio.gather(work(), shrink())
            assert len(set(ids)) == len(ids)
            assert {txn.most for txn in ids[-20:]} == {0}
            of_retired = next(txn for txn in ids if txn.most == 1)
            again = client._coordinators
            (await again.commit(of_retired, TIMEOUT_S)).accepted()
            with pytest.raises(InvalidTxnStatus, match="is COMMITTED"):
                (await again.abort(of_retired)).accepted()

    stage.limit(2)
    for coordinator in stage.coordinators:
        if not coordinator.running:
            coordinator.start()
    wait_for("both are announced", lambda: stage.announced() == 2, TIMEOUT_S)
    asyncio.run(scenario())


def _retired(stage: Stage) -> bool:
    record = stage.record(1)
    return (
        record is not None
        and record.state is CoordinatorState.RETIRING
        and not record.open_transactions
    )


def test_a_coordinator_that_wakes_up_after_a_takeover_answers_nothing(stage: Stage) -> None:
    """SIGSTOP for longer than the lease; another process takes the number; after SIGCONT no
    transaction begins or ends at the former one."""
    client = Wire(stage.coordinators[0].broker_port)
    second = stage.coordinator(0)
    try:
        client.connect()
        before = client.ask(Type.NEW_TXN, api.CommandNewTxn(txn_ttl_seconds=600_000, tc_id=0))
        assert not before.HasField("error")
        stage.coordinators[0].signal(signal.SIGSTOP)
        second.start()
        record = stage.record(0)
        assert record is not None
        assert record.state is CoordinatorState.SERVING
        stage.coordinators[0].signal(signal.SIGCONT)
        with pytest.raises(ConnectionError):  # the connection ends instead of an answer
            client.ask(Type.NEW_TXN, api.CommandNewTxn(txn_ttl_seconds=600_000, tc_id=0))
        wire = Wire(second.broker_port)
        try:
            wire.connect()
            ended = wire.ask(
                Type.END_TXN,
                api.CommandEndTxn(
                    txnid_most_bits=0, txnid_least_bits=before.txnid_least_bits, txn_action=0
                ),
            )
            assert not ended.HasField("error"), ended
            after = wire.ask(Type.NEW_TXN, api.CommandNewTxn(txn_ttl_seconds=600_000, tc_id=0))
            assert after.txnid_least_bits > before.txnid_least_bits
        finally:
            wire.close()
    finally:
        client.close()
        stage.coordinators[0].kill()
        if second.running:
            second.stop()
