"""Transaction coordinators as clients find them: real processes, a real broker, a real etcd; by raw
wire and with the official clients.

Without coordinators, and where transactions are switched off, everything is answered as Apache
Pulsar does then, and nothing is met with silence.
"""

from __future__ import annotations

import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from dev.testbed.cluster import request, wait_for
from dev.testbed.foreign import Driver, ForeignError
from magnetar.errors import WireCode
from magnetar.metadata import keys
from magnetar.metadata.records import CoordinatorState
from magnetar.wire import pulsar_api_pb2 as api
from tests.clients.coordinators import ANSWER_S, CHANGE_S, Stage, Wire

pytestmark = [pytest.mark.slow, pytest.mark.etcd]

Type = api.BaseCommand.Type
COORDINATOR_TOPIC = "persistent://pulsar/system/transaction_coordinator_assign"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("coordinators"), {"MAGNETAR_TRANSACTIONS_ENABLED": "0"})
    try:
        stage.start()
        yield stage
    finally:
        stage.stop()


@pytest.fixture
def stage(running: Stage) -> Stage:
    """Both coordinators ready and announced, whatever the test before did."""
    for coordinator in running.coordinators:
        if not coordinator.running:
            coordinator.start(wait=False)
    running.limit(16)
    for coordinator in running.coordinators:
        coordinator.wait_ready()
    wait_for("both are announced", lambda: running.announced() == 2, CHANGE_S)
    return running


@pytest.fixture
def wire(stage: Stage) -> Iterator[Wire]:
    client = Wire(stage.broker.broker_port)
    client.connect()
    yield client
    client.close()


def status_of(url: str) -> int:
    """Status of a page without JSON."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def partitions(wire: Wire) -> Any:
    body = api.CommandPartitionedTopicMetadata(
        topic=COORDINATOR_TOPIC, metadata_auto_creation_enabled=False
    )
    return wire.ask(Type.PARTITIONED_METADATA, body)


def lookup(wire: Wire, tcid: int) -> Any:
    body = api.CommandLookupTopic(
        topic=f"{COORDINATOR_TOPIC}-partition-{tcid}", authoritative=False
    )
    return wire.ask(Type.LOOKUP, body)


def test_without_coordinators_the_topic_is_one_like_any_other(running: Stage) -> None:
    """As with Apache Pulsar that has transactions switched off: not found, or nothing to look
    up. Runs before any coordinator does."""
    assert not any(coordinator.running for coordinator in running.coordinators)
    client = Wire(running.broker.broker_port)
    try:
        client.connect()
        answer = partitions(client)
        assert (answer.error, answer.partitions) == (api.TopicNotFound, 0)
        request_body = api.CommandTcClientConnectRequest(tc_id=0)
        refused = client.ask(Type.TC_CLIENT_CONNECT_REQUEST, request_body)
        assert (int(refused.error), refused.message) == (
            int(WireCode.NOT_ALLOWED),
            "Transactions are not enabled.",
        )
    finally:
        client.close()


def test_brokers_tell_how_many_there_are_and_where(stage: Stage, wire: Wire) -> None:
    """By the binary protocol and by REST alike."""
    assert partitions(wire).partitions == 2
    for tcid, coordinator in enumerate(stage.coordinators):
        found = lookup(wire, tcid)
        assert found.response == api.CommandLookupTopicResponse.Connect
        assert found.brokerServiceUrl == coordinator.service_url
    topic = "persistent/pulsar/system/transaction_coordinator_assign"
    status, body = request("GET", f"{stage.broker.http_url}/admin/v2/{topic}/partitions")
    assert (status, body) == (200, {"partitions": 2, "deleted": False})
    status, body = request("GET", f"{stage.broker.http_url}/lookup/v2/topic/{topic}-partition-1")
    assert (status, body["nativeUrl"]) == (200, stage.coordinators[1].service_url)


def test_every_request_about_transactions_gets_pulsars_refusal(stage: Stage) -> None:
    """A coordinator completes the handshake and answers; what is for brokers it refuses in
    words."""
    client = Wire(stage.coordinators[1].broker_port)
    try:
        assert client.connect().type == Type.CONNECTED
        subscription = api.Subscription(topic="t", subscription="s")
        attached = client.ask(
            Type.TC_CLIENT_CONNECT_REQUEST, api.CommandTcClientConnectRequest(tc_id=1)
        )
        assert (int(attached.error), attached.message) == (
            int(WireCode.TOPIC_NOT_FOUND),
            "Transactions are not enabled.",
        )
        requests = [
            (Type.NEW_TXN, api.CommandNewTxn(txn_ttl_seconds=1000, tc_id=1)),
            (
                Type.ADD_PARTITION_TO_TXN,
                api.CommandAddPartitionToTxn(
                    txnid_least_bits=0, txnid_most_bits=1, partitions=["t"]
                ),
            ),
            (
                Type.ADD_SUBSCRIPTION_TO_TXN,
                api.CommandAddSubscriptionToTxn(
                    txnid_least_bits=0, txnid_most_bits=1, subscription=[subscription]
                ),
            ),
            (
                Type.END_TXN,
                api.CommandEndTxn(txnid_least_bits=0, txnid_most_bits=1, txn_action=api.COMMIT),
            ),
        ]
        for kind, body in requests:
            refused = client.ask(kind, body)
            assert isinstance(refused, api.CommandError), kind
            assert (int(refused.error), refused.message) == (
                int(WireCode.NOT_ALLOWED),
                "Transactions are not enabled.",
            )
        other = client.ask(Type.PRODUCER, api.CommandProducer(topic="t", producer_id=1))
        assert "this is transaction coordinator 1" in other.message
    finally:
        client.close()
    with urllib.request.urlopen(f"{stage.coordinators[1].http_url}/metrics") as answer:
        text = answer.read().decode()
    assert 'magnetar_coordinator_requests_total{command="new_txn",outcome="not_enabled"}' in text
    assert "magnetar_coordinator_held 1.0" in text


def test_a_killed_coordinator_comes_back_under_a_higher_epoch(stage: Stage, wire: Wire) -> None:
    """Its number is held for the lease; then the next process of that name has it, and clients
    are led there."""
    before = stage.record(0)
    assert before is not None
    stage.coordinators[0].kill()
    stage.coordinators[0].start()
    after = stage.record(0)
    assert after is not None
    assert (after.epoch, after.state) == (before.epoch + 1, CoordinatorState.SERVING)
    assert after.incarnation != before.incarnation
    assert lookup(wire, 0).brokerServiceUrl == stage.coordinators[0].service_url


def test_a_second_process_of_a_number_waits_and_takes_over(stage: Stage) -> None:
    """While the first lives the second is alive and not ready; SIGTERM of the first gives the
    number over at once."""
    second = stage.coordinator(0)

    def waits() -> int:
        """How often processes of this number have said that they wait: they write into one file."""
        return second.log_path.read_text().count("coordinator.waits")

    said = waits()
    try:
        second.start(wait=False)
        held = stage.record(0)
        wait_for("the second one says that it waits", lambda: waits() > said, CHANGE_S)
        assert status_of(f"{second.http_url}/live") == 200
        assert status_of(f"{second.http_url}/ready") == 503
        assert stage.record(0) == held
        assert stage.coordinators[0].stop() == 0
        second.wait_ready()
        now = stage.record(0)
        assert held is not None
        assert now is not None
        assert now.epoch == held.epoch + 1
    finally:
        assert second.stop() == 0
    left = stage.record(0)
    assert left is not None
    assert left.state is CoordinatorState.RELEASED


def test_a_number_that_nobody_holds_is_waited_for_and_then_refused_to_be_tried_again(
    stage: Stage, wire: Wire
) -> None:
    """A restart is met by waiting; only after the park timeout the client has to come back."""
    stage.coordinators[1].stop()
    refused = lookup(wire, 1)
    assert (refused.response, int(refused.error)) == (
        api.CommandLookupTopicResponse.Failed,
        int(WireCode.SERVICE_NOT_READY),
    )
    assert "transaction coordinator 1 of 2 is not there" in refused.message


def test_a_lowered_limit_retires_a_number_and_its_clients_are_led_to_the_first(
    stage: Stage, wire: Wire
) -> None:
    """The coordinator confirms, is announced no more and, once gone, number 0 is named
    instead; raising the limit brings it back."""
    stage.limit(1)
    wait_for(
        "it retires",
        lambda: (found := stage.record(1)) is not None and found.state is CoordinatorState.RETIRING,
        CHANGE_S,
    )
    assert partitions(wire).partitions == 1
    assert lookup(wire, 1).brokerServiceUrl == stage.coordinators[1].service_url, (
        "its open transactions still end there"
    )
    stage.limit(2)
    wait_for("it serves again", lambda: stage.announced() == 2, CHANGE_S)
    stage.limit(1)
    wait_for(
        "it retires",
        lambda: (found := stage.record(1)) is not None and found.state is CoordinatorState.RETIRING,
        CHANGE_S,
    )
    assert stage.coordinators[1].stop() == 0
    assert lookup(wire, 1).brokerServiceUrl == stage.coordinators[0].service_url


def test_a_coordinator_that_is_stopped_for_longer_than_its_lease_begins_a_new_life(
    stage: Stage,
) -> None:
    """SIGSTOP and SIGCONT: the old life answers nothing any more, the new one has a higher
    epoch."""
    before = stage.record(0)
    assert before is not None
    client = Wire(stage.coordinators[0].broker_port)
    try:
        client.connect()
        stage.coordinators[0].signal(signal.SIGSTOP)
        try:
            wait_for(
                "its claim ends", lambda: stage._get(keys.coordinator_claim(0)) is None, CHANGE_S
            )
        finally:
            stage.coordinators[0].signal(signal.SIGCONT)
        wait_for(
            "a new incarnation",
            lambda: (found := stage.record(0)) is not None and found.epoch > before.epoch,
            CHANGE_S,
        )
        with pytest.raises(ConnectionError):
            client.ask(Type.NEW_TXN, api.CommandNewTxn(txn_ttl_seconds=1, tc_id=0))
    finally:
        client.close()


def test_the_official_clients_get_pulsars_error(stage: Stage, driver: Driver) -> None:
    """A client that enables transactions fails at once, by the error that Apache Pulsar gives
    with transactions switched off."""
    with pytest.raises(ForeignError) as refused:
        driver.client(stage.broker.service_url, transactions=True)
    assert "Transactions are not enabled" in f"{refused.value} {driver.log_tail()}"
