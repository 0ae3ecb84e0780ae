"""Index and broker time of messages as the official clients show them, over restarts and moves,
and clients that know nothing of them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pulsar
import pytest

from dev.server_process import ServerProcess
from dev.testbed.foreign import Driver
from tests.clients.conftest import QUIET
from tests.clients.restarts import restart

pytestmark = [pytest.mark.slow, pytest.mark.java]
ON = {
    "MAGNETAR_BROKER_ENTRY_INDEX": "1",
    "MAGNETAR_BROKER_ENTRY_TIMESTAMP": "1",
    "MAGNETAR_BROKER_ENTRY_METADATA_TO_CLIENTS": "1",
}
RECEIVE_MS = 120_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that numbers messages."""
    with ServerProcess(tmp_path_factory.mktemp("numbering"), environment=ON) as process:
        yield process


def test_java_and_go_show_index_and_broker_time(
    server: ServerProcess, driver: Driver, topic: str
) -> None:
    """Alone and in batches, as they come and read again from storage behind a SIGKILL; numbers
    go on behind it."""
    foreign = driver.client(server.service_url)
    begun_ms = int(time.time() * 1000)
    foreign.producer(topic).send_all([b"one"] * 5)
    batches = foreign.producer(
        topic, batching=True, batching_max_messages=10, batching_delay_ms=200
    )
    batches.send_all([b"many"] * 20)
    live = foreign.consumer(topic, "live", position="Earliest").receive(25, ack=True)
    assert [message.index for message in live] == list(range(25))
    assert max(message.id.batch_index for message in live) > 0
    times = [message.broker_publish_time_ms or 0 for message in live]
    assert begun_ms <= times[0] <= times[-1] <= int(time.time() * 1000)
    assert times == sorted(times)
    restart(server)
    foreign.producer(topic).send_all([b"later"] * 3)
    again = foreign.consumer(topic, "again", position="Earliest").receive(28, ack=True)
    assert [message.index for message in again] == list(range(28))
    assert [message.broker_publish_time_ms for message in again][:25] == times
    foreign.close()


def test_the_python_client_reads_what_it_always_did(server: ServerProcess, topic: str) -> None:
    """It says that it knows of the metadata and shows nothing of it: payloads, batches and
    checksums are as without."""
    client = pulsar.Client(server.service_url, operation_timeout_seconds=60, logger=QUIET)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=50
    )
    values = [b"%d" % number * 100 for number in range(50)]
    for value in values:
        producer.send_async(value, None)
    producer.flush()
    assert [consumer.receive(RECEIVE_MS).data() for _ in values] == values
    restart(server)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(RECEIVE_MS).data() for _ in values] == values
    client.close()
