"""kill -9 of one of three brokers while the official Java, Go and Python clients publish, with
deduplication on.

What clients of each language saw of it is printed: the bar is one lease and a second until every
topic can be written again; clients come back at moments of their own. MAGNETAR_KILLS sets how many
brokers are killed (default 1).
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator

import pulsar
import pytest

from dev.soak.history import TopicHistory, violations
from dev.testbed.cluster import Cluster, wait_for
from dev.testbed.foreign import Client, Driver, Stream
from dev.testbed.rest import Admin
from magnetar.names import DEFAULT_BUNDLES, TopicName, bundle_of, initial_boundaries
from tests.clients.load import Load, read_all

pytestmark = [pytest.mark.slow, pytest.mark.etcd, pytest.mark.java]

KILLS = int(os.environ.get("MAGNETAR_KILLS", "1"))
INTERVAL_MS, PADDING = 10, 1000
SEND_TIMEOUT_MS = 120_000


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("kill"))
    try:
        cluster.start()
        Admin(cluster.brokers[cluster.entry]).call(
            "POST", "namespaces/public/default/deduplication", True
        )
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Driver]]:
    """Java and Go at once."""
    directory = tmp_path_factory.mktemp("drivers")
    started = {language: Driver(language, directory) for language in ("java", "go")}
    yield started
    for driver in started.values():
        driver.close()


def topics_in_all_bundles(language: str) -> list[str]:
    """One topic in each bundle, so that whichever broker dies serves some of every language's."""
    boundaries, found = initial_boundaries(DEFAULT_BUNDLES), dict[str, str]()
    for number in itertools.count():
        name = TopicName.parse(f"persistent://public/default/{language}-{number}")
        found.setdefault(
            str(bundle_of(name.namespace_name, boundaries, name.hash)), f"{language}-{number}"
        )
        if len(found) == DEFAULT_BUNDLES:
            return list(found.values())
    raise AssertionError


class ForeignLoad:
    """Streams of one language, one per topic."""

    def __init__(self, client: Client, language: str) -> None:
        self.language = language
        self.topics = topics_in_all_bundles(language)
        made = {
            topic: client.producer(topic, name=language, send_timeout_ms=SEND_TIMEOUT_MS)
            for topic in self.topics
        }
        self._streams: dict[str, Stream] = {
            topic: producer.stream(language, interval_ms=INTERVAL_MS, padding=PADDING)
            for topic, producer in made.items()
        }
        self.histories: list[TopicHistory] = []

    def silent(self, since: float) -> list[str]:
        """Topics without a receipt after `since` (`time.time()`)."""
        return [
            topic for topic, stream in self._streams.items() if stream.last_receipt_at() <= since
        ]

    def end(self) -> None:
        """Wait for the outcome of every send."""
        for topic, stream in self._streams.items():
            history = TopicHistory(topic, deduplicated=True)
            history.sent[self.language], answers = stream.end()
            for answer in answers:
                if answer.id is None:
                    history.failed.append(f"{answer.number}: {answer.error}")
                else:
                    # nothing is batched; the Go client says 0 then
                    place = (answer.id.ledger, answer.id.entry, -1)
                    history.receipt((self.language, answer.number), (-1, place), answer.at)
            self.histories.append(history)

    def judge(self, client: pulsar.Client) -> None:
        """Everything acknowledged is where its receipt says, once, in order."""
        for history in self.histories:
            history.stored[-1] = [
                (place, (self.language, number)) for place, number in read_all(client, history.name)
            ]
        assert [str(violation) for violation in violations(self.histories)] == []
        assert all(history.receipts for history in self.histories)


def test_kill_9_under_java_go_and_python_load(cluster: Cluster, drivers: dict[str, Driver]) -> None:
    """Every topic can be written again, nothing acknowledged is lost, nothing is stored twice,
    order is kept."""
    loads = [
        ForeignLoad(driver.client(cluster.service_url), language)
        for language, driver in drivers.items()
    ]
    python = Load(
        cluster.service_url, topics_in_all_bundles("python"), cluster.directory / "client.log"
    )
    outages: list[tuple[float, float]] = []
    with python:
        _all_writable(python, loads)
        for number in range(KILLS):
            # never the one in the service URL of clients
            victim = list(cluster.brokers)[number % (len(cluster.brokers) - 1)]
            wait_for(f"{victim} serves something", lambda name=victim: bool(cluster.owned_by(name)))  # type: ignore[misc]
            killed = time.time()
            cluster.brokers[victim].kill()
            _all_writable(python, loads)
            outages.append((killed, time.time()))
            cluster.brokers[victim].start()
            cluster.wait_healthy()
        for load in loads:
            load.end()
    offset = time.monotonic() - time.time()
    for since, until in outages:
        gaps = {
            load.language: max(history.longest_gap(since, until) for history in load.histories)
            for load in loads
        }
        gaps["python"] = python.gap(python.topics, since + offset, until + offset)
        print(
            "  publish gap around kill -9: "
            + ", ".join(f"{name} {gap:.2f} s" for name, gap in gaps.items()),
            flush=True,
        )
    reader = pulsar.Client(
        cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    for load in loads:
        load.judge(reader)
    reader.close()
    python.verify()


def _all_writable(python: Load, loads: list[ForeignLoad]) -> None:
    """Until every topic has a receipt from a moment after now on."""
    time.sleep(0.2)  # what was on its way when a broker died does not count
    wall, monotonic = time.time(), time.monotonic()
    wait_for(
        "every topic writable",
        lambda: not any(load.silent(wall) for load in loads) and not python.silent(monotonic),
    )
