"""The official Java and Go clients in transactions, on a standalone server and on brokers with coordinators."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from magnetar.errors import WireCode
from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from tests.clients.coordinators import Type, Wire
from tests.clients.foreign import Client, Driver
from tests.clients.places import KINDS, Place

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.etcd]

COMMIT, ABORT = 0, 1


@pytest.fixture(scope="module")
def places() -> Iterator[dict[str, Place]]:
    """Those that were asked for so far; they stay up, whatever the order of the tests."""
    started: dict[str, Place] = {}
    yield started
    for place in started.values():
        place.stop()


@pytest.fixture(params=["standalone", "cluster"])
def place(request: pytest.FixtureRequest, places: dict[str, Place], tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A place that serves transactions."""
    name: str = request.param
    if name not in places:
        places[name] = KINDS[name](tmp_path_factory.mktemp(name))
        places[name].start()
    return places[name]


@pytest.fixture
def app(place: Place, driver: Driver) -> Iterator[Client]:
    """The official client with transactions enabled."""
    connected = driver.client(place.service_url, transactions=True)
    yield connected
    connected.close()


def _ended(place: Place, txn: TxnId, action: int) -> api.CommandEndTxnResponse:
    """What END_TXN answers to anybody who sends it again, by the bare protocol."""
    wire = Wire(place.coordinator_ports[txn.most])
    try:
        wire.connect()
        wire.ask(Type.TC_CLIENT_CONNECT_REQUEST, api.CommandTcClientConnectRequest(tc_id=txn.most))
        body = api.CommandEndTxn(txnid_most_bits=txn.most, txnid_least_bits=txn.least, txn_action=action)  # type: ignore[arg-type]
        answer: api.CommandEndTxnResponse = wire.ask(Type.END_TXN, body)
        return answer
    finally:
        wire.close()


def test_outcomes_outlive_a_crash(place: Place, app: Client) -> None:
    """Committed, aborted, and open under a SIGKILL: the open one goes on, each keeps its outcome, and no id is used again."""
    committed, aborted, left_open = [app.transaction() for _ in range(3)]
    committed.commit()
    aborted.abort()
    place.restart()
    left_open.commit()
    assert [txn.state for txn in (committed, aborted, left_open)] == ["COMMITTED", "ABORTED", "COMMITTED"]
    for txn, right in ((committed, COMMIT), (aborted, ABORT), (left_open, COMMIT)):
        assert not _ended(place, txn.id, right).HasField("error")
        assert _ended(place, txn.id, 1 - right).error == WireCode.INVALID_TXN_STATUS
    used = {txn.id for txn in (committed, aborted, left_open)}
    assert not used & {app.transaction().id for _ in range(4)}
