"""Traffic of the official Python client, and the proof that none of it was lost.

Owns: publishers in threads with their receipts, Shared and Exclusive consumers beside them, the
comparison with what is read back in the end. Imports: pulsar. Invariants: a message counts as
acknowledged only by its receipt; every receipt's id must name exactly its message.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import pulsar

SEND_TIMEOUT_MS = 120_000
PENDING_MAX = 500
INTERVAL_S = 0.005
PADDING = b" " * 2000
"""Makes the traffic large enough for log files to roll and for recovery chains to need
checkpoints."""
READ_TIMEOUT_MS = 60_000
CATCH_UP_S = 120.0
Identifier = tuple[int, int, int]


def identifier_of(identifier: pulsar.MessageId) -> Identifier:
    """(ledger, entry, batch index)."""
    return identifier.ledger_id(), identifier.entry_id(), identifier.batch_index()


@dataclass(slots=True)
class Receipt:
    """A message that the broker confirmed, when, and under which id."""

    number: int
    at: float
    identifier: Identifier


class Publisher(threading.Thread):
    """Publishes numbered messages to one topic at a steady pace until stopped."""

    def __init__(self, client: pulsar.Client, topic: str, batching: bool) -> None:
        super().__init__(name=f"publisher {topic}", daemon=True)
        self.topic = topic
        self.receipts: list[Receipt] = []
        self.failed: list[str] = []
        self.sent = 0
        self._stopping = threading.Event()
        self._producer = client.create_producer(
            topic,
            send_timeout_millis=SEND_TIMEOUT_MS,
            block_if_queue_full=True,
            max_pending_messages=PENDING_MAX,
            batching_enabled=batching,
            batching_max_publish_delay_ms=5,
        )

    def run(self) -> None:
        while not self._stopping.is_set():
            number, self.sent = self.sent, self.sent + 1
            self._producer.send_async(
                f"{self.topic} {number}".encode() + PADDING,
                lambda result, identifier, n=number: self._receipt(n, result, identifier),
            )
            self._stopping.wait(INTERVAL_S)

    def _receipt(self, number: int, result: pulsar.Result, identifier: pulsar.MessageId) -> None:
        if result == pulsar.Result.Ok:
            self.receipts.append(Receipt(number, time.monotonic(), identifier_of(identifier)))
        else:
            self.failed.append(f"{number}: {result}")

    def stop(self) -> None:
        """Send nothing more."""
        self._stopping.set()

    def finish(self) -> None:
        """Stop, and wait until every message has its receipt or its error."""
        self.stop()
        self.join(SEND_TIMEOUT_MS / 1000 + 5)
        assert not self.is_alive(), f"{self.name} hangs in a send"
        self._producer.flush()
        self._producer.close()

    def gap(self, since: float, until: float) -> float:
        """The longest time without a receipt that overlaps [since, until], in seconds."""
        times = [receipt.at for receipt in list(self.receipts)]
        pairs = zip([since, *times], [*times, until], strict=True)
        return max(
            (after - before for before, after in pairs if after >= since and before <= until),
            default=until - since,
        )


@dataclass(slots=True)
class Received:
    """What one subscription of one topic got, in order of arrival."""

    numbers: list[int] = field(default_factory=list)
    acknowledge_errors: list[str] = field(default_factory=list)

    def take(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        """Note and acknowledge one message (a message listener)."""
        self.numbers.append(number_of(message))
        try:
            consumer.acknowledge(message)
        except pulsar.PulsarException as error:
            self.acknowledge_errors.append(repr(error))


def number_of(message: pulsar.Message) -> int:
    return int(message.data().split()[1])


class Load:
    """A publisher, two Shared consumers and an Exclusive one per topic, for as long as the `with`
    block lasts.

    Afterwards `verify` compares.
    """

    def __init__(self, service_url: str, topics: list[str], client_log: Path) -> None:
        # its reconnects are expected: kept apart
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(client_log))
        self._client = pulsar.Client(service_url, operation_timeout_seconds=120, logger=logger)
        self.topics = topics
        self.shared = {topic: Received() for topic in topics}
        self.exclusive = {topic: Received() for topic in topics}
        self._consumers: list[pulsar.Consumer] = []
        for topic in topics:
            self._consume(topic, "shared", pulsar.ConsumerType.Shared, self.shared[topic])
            self._consume(topic, "shared", pulsar.ConsumerType.Shared, self.shared[topic])
            self._consume(topic, "exclusive", pulsar.ConsumerType.Exclusive, self.exclusive[topic])
        self.publishers = {
            topic: Publisher(self._client, topic, batching=number % 2 == 1)
            for number, topic in enumerate(topics)
        }

    def _consume(
        self, topic: str, subscription: str, kind: pulsar.ConsumerType, received: Received
    ) -> None:
        consumer = self._client.subscribe(
            topic,
            subscription,
            consumer_type=kind,
            initial_position=pulsar.InitialPosition.Earliest,
            message_listener=received.take,
        )
        self._consumers.append(consumer)

    def __enter__(self) -> Load:
        for publisher in self.publishers.values():
            publisher.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:  # the test has failed: show why, do not wait for receipts
            for publisher in self.publishers.values():
                publisher.stop()
            self._client.shutdown()
            for publisher in self.publishers.values():
                publisher.join(CATCH_UP_S)

    def acknowledged(self) -> int:
        """Receipts of all publishers so far."""
        return sum(len(publisher.receipts) for publisher in self.publishers.values())

    def silent(self, since: float) -> list[str]:
        """Topics without a receipt after `since`."""
        return [
            t
            for t, publisher in self.publishers.items()
            if not publisher.receipts or publisher.receipts[-1].at <= since
        ]

    def gap(self, topics: list[str], since: float, until: float) -> float:
        """The longest time without a receipt of any of `topics`, in seconds."""
        return max(self.publishers[topic].gap(since, until) for topic in topics)

    def verify(self, duplicates_max: int = 0) -> None:
        """Stop the traffic, then compare: no failed send, nothing lost, order kept, ids true,
        everything consumed.

        `duplicates_max` bounds the messages of one topic that are stored twice: after a kill a
        client repeats what had no receipt. With deduplication (0) the receipt of such a repetition
        says only that the message is stored: its id is (-1, -1).
        """
        try:
            for publisher in self.publishers.values():
                publisher.finish()
            for publisher in self.publishers.values():
                assert not publisher.failed, (publisher.topic, publisher.failed[:5])
                assert len(publisher.receipts) == publisher.sent, publisher.topic
                self._compare_stored(publisher, duplicates_max)
            self._compare_consumed()
        finally:
            self._client.shutdown()

    def _compare_stored(self, publisher: Publisher, duplicates_max: int) -> None:
        stored = read_all(self._client, publisher.topic)
        by_identifier = dict(stored)
        assert len(by_identifier) == len(stored), f"{publisher.topic}: an id names two messages"
        assert list(by_identifier) == sorted(by_identifier), (
            f"{publisher.topic}: ids do not increase"
        )
        confirmed = [
            receipt
            for receipt in publisher.receipts
            if receipt.identifier[0] >= 0 or duplicates_max > 0
        ]
        wrong = [
            receipt
            for receipt in confirmed
            if by_identifier.get(receipt.identifier) != receipt.number
        ]
        assert not wrong, (
            f"{publisher.topic}: {len(wrong)} acknowledged messages are not where their receipts "
            f"say: {wrong[:3]}"
        )
        check_order(publisher.topic, [number for _, number in stored], duplicates_max)

    def _compare_consumed(self) -> None:
        deadline = time.monotonic() + CATCH_UP_S
        for topic, publisher in self.publishers.items():
            expected = set(range(publisher.sent))
            for name, received in (
                ("shared", self.shared[topic]),
                ("exclusive", self.exclusive[topic]),
            ):
                while not expected.issubset(received.numbers) and time.monotonic() < deadline:
                    time.sleep(0.05)
                missing = sorted(expected.difference(received.numbers))
                assert not missing, (
                    f"{topic}: subscription {name} did not get {len(missing)} messages: "
                    f"{missing[:5]}"
                )
                assert not received.acknowledge_errors, (
                    topic,
                    name,
                    received.acknowledge_errors[:3],
                )
            first = list(dict.fromkeys(self.exclusive[topic].numbers))
            assert first == sorted(first), (
                f"{topic}: the Exclusive consumer got messages out of order"
            )


def check_order(topic: str, numbers: list[int], duplicates_max: int) -> None:
    """First occurrences are in order and without holes; at most `duplicates_max` repetitions,
    each an exact run again."""
    first = list(dict.fromkeys(numbers))
    assert first == list(range(len(first))), (
        f"{topic}: order or a message is lost near {next_break(first)}"
    )
    duplicates = len(numbers) - len(first)
    assert duplicates <= duplicates_max, (
        f"{topic}: {duplicates} messages are stored twice, at most {duplicates_max} may be"
    )


def next_break(numbers: list[int]) -> list[int]:
    """The numbers around the first one that is not where it should be."""
    at = next((index for index, number in enumerate(numbers) if number != index), len(numbers))
    return numbers[max(0, at - 2) : at + 3]


def read_all(client: pulsar.Client, topic: str) -> list[tuple[Identifier, int]]:
    """Everything a topic holds, by a reader from the beginning."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        message = reader.read_next(READ_TIMEOUT_MS)
        found.append((identifier_of(message.message_id()), number_of(message)))
    reader.close()
    return found
