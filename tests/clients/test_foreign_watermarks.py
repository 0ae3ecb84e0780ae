"""The official Python, Java and Go clients on topics with watermarks: they see what they would see
without, and assert by a property of their messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pulsar
import pytest

from dev.server_process import ServerProcess
from dev.testbed.cluster import wait_for
from dev.testbed.foreign import Client, Consumer, Driver, Producer
from dev.testbed.rest import Admin
from magnetar.client import Client as OwnClient
from magnetar.wire.watermarks import IDLE, PROPERTY
from tests.clients.conftest import QUIET

pytestmark = [pytest.mark.slow, pytest.mark.java]

MESSAGES, FIRST, ACKNOWLEDGED, QUEUE = 30, 12, (0, 1, 2, 5), 20
SUBSCRIPTION, PRODUCER = "s", "official"
WAIT_S = 120
VOLATILE = frozenset(
    {"address", "clientVersion", "connectedSince", "consumerName", "activeConsumerName"}
)
TIMES = ("Timestamp", "TimeStamp", "ConsumedTime", "AckedTime", "MessageAgeSeconds")
"""What two clients of one kind do not share."""
Entry = tuple[int, bytes]


class Session(Protocol):
    """A producer and a consumer of one official client, on one topic."""

    def send(self, values: Sequence[bytes]) -> list[int]:
        """Publish; the entry ids of the receipts."""

    def receive(self, count: int) -> list[Entry]:
        """Entry ids and values of the next messages."""

    def acknowledge(self, indices: Sequence[int]) -> None:
        """Those of the messages received so far."""

    def last_entry(self) -> int: ...
    def close(self) -> None: ...


class ForeignSession:
    """By the Java or Go program."""

    def __init__(self, client: Client, topic: str) -> None:
        self._consumer: Consumer = client.consumer(topic, SUBSCRIPTION, type="Shared", queue=QUEUE)
        self._producer: Producer = client.producer(topic, name=PRODUCER)
        self._received: list[Any] = []

    def send(self, values: Sequence[bytes]) -> list[int]:
        return [sent.entry for sent in self._producer.send_all(values)]

    def receive(self, count: int) -> list[Entry]:
        got = self._consumer.receive(count)
        self._received += got
        return [(message.id.entry, message.value) for message in got]

    def acknowledge(self, indices: Sequence[int]) -> None:
        self._consumer.ack(*(self._received[index] for index in indices))

    def last_entry(self) -> int:
        (found,) = self._consumer.last_ids()
        return found.entry

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()


class PythonSession:
    """By the official Python client."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self._consumer = client.subscribe(
            topic,
            SUBSCRIPTION,
            consumer_type=pulsar.ConsumerType.Shared,
            receiver_queue_size=QUEUE,
        )
        self._producer = client.create_producer(
            topic, producer_name=PRODUCER, batching_enabled=False
        )
        self._received: list[pulsar.Message] = []

    def send(self, values: Sequence[bytes]) -> list[int]:
        return [self._producer.send(value).entry_id() for value in values]

    def receive(self, count: int) -> list[Entry]:
        got = [self._consumer.receive(WAIT_S * 1000) for _ in range(count)]
        self._received += got
        return [(message.message_id().entry_id(), message.data()) for message in got]

    def acknowledge(self, indices: Sequence[int]) -> None:
        for index in indices:
            self._consumer.acknowledge(self._received[index])

    def last_entry(self) -> int:
        return int(self._consumer.get_last_message_id().entry_id())

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()


Begin = Callable[[str], Session]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Driver]]:
    """The Java or Go program, started when it is asked for."""
    started: dict[str, Driver] = {}

    def find(language: str) -> Driver:
        if language not in started:
            started[language] = Driver(language, tmp_path_factory.mktemp(language))
        return started[language]

    yield find
    for program in started.values():
        program.close()


@pytest.fixture(params=["python", "java", "go"])
def begin(
    request: pytest.FixtureRequest,
    shared_server: ServerProcess,
    programs: Callable[[str], Driver],
) -> Iterator[Begin]:
    """Sessions of each official client."""
    url = shared_server.service_url
    if request.param == "python":
        client = pulsar.Client(url, operation_timeout_seconds=60, logger=QUIET)
        yield lambda topic: PythonSession(client, topic)
        client.close()
        return
    foreign = programs(request.param).client(url)
    yield lambda topic: ForeignSession(foreign, topic)
    foreign.close()


def mark(admin: Admin, topic: str) -> None:
    """Make a topic with the policy, so that brokers read properties as well."""
    admin.topic("PUT", topic)
    admin.topic("POST", topic, "watermarks", {"enabled": True, "idleTimeout": 0})


async def assert_between(server: ServerProcess, topic: str, send: Callable[[int], None]) -> None:
    """Our producer, which sends nothing, asserts behind each message of another one."""
    async with asyncio.timeout(WAIT_S), OwnClient(server.service_url) as client:
        producer = await client.create_producer(topic)
        for number in range(MESSAGES):
            await producer.watermark(10 * number)
            await asyncio.to_thread(send, number)
        await producer.watermark(10 * MESSAGES)


def statistics(admin: Admin, topic: str) -> dict[str, Any]:
    """All of a topic's statistics but what any two clients differ in, rates, and the size of the
    backlog, which is an estimate between two moments."""
    found: dict[str, Any] = admin.topic("GET", topic, "stats")
    found = {name: value for name, value in found.items() if "Rate" not in name}
    found.pop("publishers")
    return dict(_stable(found))


def _stable(found: Any) -> Any:
    if isinstance(found, dict):
        return {
            name: _stable(value)
            for name, value in found.items()
            if name not in VOLATILE and not name.startswith(("msgRate", "msgThroughput"))
            if name not in ("messageAckRate", "backlogSize") and not name.endswith(TIMES)
        }
    return [_stable(value) for value in found] if isinstance(found, list) else found


def course(session: Session, send: Callable[[Callable[[int], None]], None]) -> list[Any]:
    """What a client sees while `send` publishes, and how it leaves its topic."""
    sent: list[int] = []
    send(lambda number: sent.extend(session.send([b"%d" % number])))
    seen: list[Any] = [sent, session.receive(FIRST), session.last_entry()]
    session.acknowledge(ACKNOWLEDGED)
    return seen


def distinct(session: Session, count: int) -> dict[int, bytes]:
    """The next so many messages; over a restart one may come twice."""
    found: dict[int, bytes] = {}
    while len(found) < count:
        found |= dict(session.receive(1))
    return found


def test_they_see_what_they_would_without(
    shared_server: ServerProcess, begin: Begin, admin: Admin, topic: str
) -> None:
    """Ids, order, backlog, permits and all other statistics; and what is left over a restart."""
    plain, marked = f"{topic}-plain", f"{topic}-marked"
    mark(admin, marked)
    sessions = {name: begin(name) for name in (plain, marked)}

    def unmarked(send: Callable[[int], None]) -> None:
        for number in range(MESSAGES):
            send(number)

    def between(send: Callable[[int], None]) -> None:
        asyncio.run(assert_between(shared_server, marked, send))

    seen = {
        plain: course(sessions[plain], unmarked),
        marked: course(sessions[marked], between),
    }
    assert seen[marked] == seen[plain]
    assert seen[plain][0] == list(range(MESSAGES))
    path = f"subscription/{SUBSCRIPTION}/watermark"
    wait_for(
        "the watermark is that behind the acknowledged beginning, three messages",
        lambda: admin.topic("GET", marked, path)["watermark"] == 30,
        WAIT_S,
    )
    left = MESSAGES - len(ACKNOWLEDGED)
    wait_for(
        "acknowledgements have arrived at the other topic, too",
        lambda: statistics(admin, plain)["subscriptions"][SUBSCRIPTION]["msgBacklog"] == left,
        WAIT_S,
    )
    deadline = time.monotonic() + WAIT_S
    while (expected := statistics(admin, plain)) != (found := statistics(admin, marked)):
        assert time.monotonic() < deadline, (expected, found)
        time.sleep(0.05)
    assert expected["subscriptions"][SUBSCRIPTION]["msgBacklog"] == left
    assert expected["storageSize"] == expected["bytesInCounter"]
    shared_server.stop()  # which writes acknowledgements that nobody waits for
    shared_server.start()
    again = {name: distinct(session, left) for name, session in sessions.items()}
    assert again[marked] == again[plain]
    for session in sessions.values():
        session.close()


@pytest.mark.parametrize("batched", [False, True])
def test_java_and_go_assert_by_a_property(
    shared_server: ServerProcess, foreign: Client, admin: Admin, topic: str, batched: bool
) -> None:
    """Our consumer gets the watermark behind their messages, once it has acknowledged them; a
    producer that says that it is idle bounds nothing."""
    mark(admin, topic)
    options: dict[str, Any] = (
        {"batching": True, "batching_max_messages": 1, "batching_delay_ms": 1} if batched else {}
    )
    fast, slow = (foreign.producer(topic, **options) for _ in range(2))

    async def check() -> None:
        async with asyncio.timeout(WAIT_S), OwnClient(shared_server.service_url) as client:
            consumer = await client.subscribe(topic, "ours", watermarks=True)
            for producer, value in ((slow, "40"), (fast, "100"), (slow, IDLE)):
                sent = await asyncio.to_thread(
                    producer.send, b"m", properties={PROPERTY: value}, event_time_ms=40
                )
                message = await consumer.receive()
                assert (message.id.entry, message.event_time_ms) == (sent.entry, 40)
                await consumer.acknowledge(message)
            seen = []
            async for change in consumer.watermarks():
                seen.append(change.event_ms)
                if change.event_ms == 100:
                    break
            assert seen in ([40, 100], [100])
            assert consumer.late_messages == 0

    asyncio.run(check())
