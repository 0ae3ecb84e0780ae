"""Every type of schema, encoded and decoded by the official Java and Go clients themselves, from the
first message to a restored metadata store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pulsar
import pytest

from dev.testbed.cluster import STILL, Cluster
from dev.testbed.foreign import Client, Driver
from tests.clients.conftest import QUIET
from tests.clients.lost_metadata import destroy_etcd, metadata, places_of

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.etcd, pytest.mark.timeout(900)]

UNKNOWN_TO_JAVA = {"PROTOBUF"}
"""Java's AUTO_CONSUME refuses them, whatever the broker."""


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"), brokers=2, environment=STILL)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def disturbed(cluster: Cluster, topics: list[str]) -> Iterator[None]:
    """For a loop whose body runs on new topics, after moves, after crashes, and with a metadata
    store that was made again from storage alone."""
    yield
    for topic in topics:
        cluster.unload(topic)
    yield
    for broker in cluster.brokers.values():
        broker.kill()
    cluster.repair()
    yield
    destroy_etcd(cluster)
    printed = metadata("rebuild", "--without-copy", *places_of(cluster))
    assert "PROBLEM" not in printed
    cluster.repair()
    yield


def keep(cluster: Cluster, topics: list[str]) -> None:
    """Have what is published stay."""
    client = pulsar.Client(cluster.service_url, operation_timeout_seconds=60, logger=QUIET)
    for topic in topics:
        client.subscribe(topic, "keeps", initial_position=pulsar.InitialPosition.Earliest).close()
    client.close()


def assert_read(client: Client, topic: str, kind: str, expected: list[str]) -> None:
    assert client.read_typed(topic, kind, len(expected)) == expected
    if client.driver.language == "java" and kind not in UNKNOWN_TO_JAVA:
        assert client.read_any(topic, len(expected)) == expected


def test_values_of_every_type_stay_what_they_were(brokers: Cluster, driver: Driver) -> None:
    """Each is read by its own type, and by Java as what its topic says; producers of the same type
    come back, with batches and without."""
    topics = {kind: f"{driver.language}-{kind.lower()}" for kind in driver.typed_kinds()}
    assert len(topics) >= 10
    published: dict[str, list[str]] = {kind: [] for kind in topics}
    keep(brokers, list(topics.values()))
    for stage, _ in enumerate(disturbed(brokers, list(topics.values()))):
        with closing(driver.client(brokers.service_url)) as client:
            for kind, topic in topics.items():
                if stage:
                    assert_read(client, topic, kind, published[kind])
                published[kind] += client.publish_typed(topic, kind, batching=stage % 2 == 1)
                assert_read(client, topic, kind, published[kind])


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with closing(Driver("java", tmp_path_factory.mktemp("java"))) as made:
        yield made


def test_payloads_of_every_type_are_published_as_what_the_topic_says(
    brokers: Cluster, java: Driver
) -> None:
    """AUTO_PRODUCE_BYTES: the producer asks for the topic's schema, and checks payloads by it."""
    kinds = [kind for kind in java.typed_kinds() if kind not in UNKNOWN_TO_JAVA]
    topics = {kind: f"copied-{kind.lower()}" for kind in kinds}
    keep(brokers, list(topics.values()))
    with closing(java.client(brokers.service_url)) as client:
        for kind, topic in topics.items():
            published = client.publish_typed(topic, kind)
            client.copy_any(topic, len(published))
            assert client.read_typed(topic, kind, 2 * len(published)) == 2 * published
