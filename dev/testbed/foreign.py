"""The official Java and Go clients as seen by a test.

Owns: `Driver` (the foreign program, line-JSON over its standard streams) and what it offers:
`Client`, `Producer`, `Consumer`, `Reader`, `Table`, `Transaction`. Imports: foreign_build,
foreign_messages, the name of a transaction. Invariants: every answer reaches the caller of its
request, whatever the order; a program that dies fails all that wait, with the end of its log; every
wait has a deadline. Options and operations have the same names in both languages; absent ones are
the client's defaults, but producers do not batch unless asked to, and acknowledgements are sent at
once and wait for the server's word.
"""

from __future__ import annotations

import base64
import itertools
import json
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from dev.testbed import foreign_build
from dev.testbed.foreign_messages import Id, Received, StreamAnswer
from magnetar.transactions.ids import TxnId

ANSWER_S = 240.0
MOVED_S_MAX, RETRY_S = 120.0, 0.05
RECEIVE_S = 120.0
QUIET_S = 0.4
"""How long nothing must come to be taken for nothing."""
LOG_TAIL_BYTES = 6000


class ForeignError(Exception):
    """What the foreign client raised: the name of its class (Java) or result (Go) and its
    message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


def schema(kind: str, definition: str = "") -> dict[str, str]:
    """The option `schema` of a client's parts: what is announced to the broker; values stay bytes
    unless they are to be decoded. Java has every type, Go no AUTO_CONSUME: without a schema it
    decodes as well."""
    return {"type": kind, "definition": _encoded(definition.encode())}


def _handle(txn: Transaction | None) -> int | None:
    return txn.handle if txn is not None else None


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


class Driver:
    """One foreign program; shared by tests, each with clients of its own."""

    def __init__(self, language: str, directory: Path) -> None:
        self.language = language
        self.log_path = directory / f"{language}-driver.log"
        self._log = self.log_path.open("ab")
        self._process = subprocess.Popen(
            foreign_build.BUILDERS[language](),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._ended = False
        self._reader = threading.Thread(target=self._read, name=f"{language}-answers", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._lock:
                future = self._waiting.pop(answer["id"])
            if "error" in answer:
                future.set_exception(
                    ForeignError(answer["error"]["type"], answer["error"]["message"])
                )
            else:
                future.set_result(answer["ok"])
        with self._lock:
            self._ended = True
            left, self._waiting = list(self._waiting.values()), {}
        for future in left:
            future.set_exception(
                RuntimeError(f"the {self.language} driver ended:\n{self.log_tail()}")
            )

    def begin(self, operation: str, **fields: Any) -> Future[Any]:
        """Send a request; its answer comes later."""
        future: Future[Any] = Future()
        number = next(self._numbers)
        present = {name: value for name, value in fields.items() if value is not None}
        line = json.dumps({"id": number, "op": operation, **present}).encode() + b"\n"
        with self._lock:
            if self._ended:
                raise RuntimeError(f"the {self.language} driver has ended:\n{self.log_tail()}")
            self._waiting[number] = future
            assert self._process.stdin is not None
            self._process.stdin.write(line)
            self._process.stdin.flush()
        return future

    def call(self, operation: str, **fields: Any) -> Any:
        """Send a request and wait for its answer. Raises ForeignError, TimeoutError."""
        return self.begin(operation, **fields).result(ANSWER_S)

    def client(self, url: str, **options: Any) -> Client:
        """A client of its own connections."""
        return Client(self, self.call("client.create", url=url, **options))

    def typed_kinds(self) -> list[str]:
        """Types of schemas with which the client itself encodes and decodes values."""
        return list(self.call("typed.kinds"))

    def log_tail(self) -> str:
        """The end of the foreign client's own log."""
        return self.log_path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")

    def close(self) -> None:
        """End of input ends the program."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()


class _Remote:
    """An object in the foreign program, by its handle."""

    kind = ""

    def __init__(self, driver: Driver, handle: int) -> None:
        self.driver, self.handle = driver, handle

    def call(self, operation: str, **fields: Any) -> Any:
        return self.begin(operation, **fields).result(ANSWER_S)

    def begin(self, operation: str, **fields: Any) -> Future[Any]:
        return self.driver.begin(f"{self.kind}.{operation}", handle=self.handle, **fields)

    def close(self) -> None:
        self.call("close")


class Client(_Remote):
    """A connected client."""

    kind = "client"

    def begin_producer(self, topic: str, **options: Any) -> Future[Any]:
        """Ask for a producer without waiting: `producer_of` the answer."""
        return self.driver.begin("producer.create", handle=self.handle, topic=topic, **options)

    def producer_of(self, answer: Future[Any]) -> Producer:
        """The producer that `begin_producer` asked for, once there."""
        return self._producer(answer.result(ANSWER_S))

    def producer(self, topic: str, **options: Any) -> Producer:
        return self._producer(self._made("producer", topic=topic, **options))

    def _producer(self, made: dict[str, Any]) -> Producer:
        return Producer(self.driver, made["handle"], made)

    def consumer(self, topic: str | None, subscription: str, **options: Any) -> Consumer:
        """Subscribe to `topic`, or to what the options say (topics, pattern)."""
        chosen = {"ack_receipt": True, **options}
        made = self._made("consumer", topic=topic, subscription=subscription, **chosen)
        return Consumer(self.driver, made["handle"], made["name"])

    def transaction(self, timeout_s: float = 240.0) -> Transaction:
        """Begin a transaction; the client must have been made with `transactions=True`."""
        made = self.driver.call(
            "transaction.begin", handle=self.handle, timeout_ms=int(timeout_s * 1000)
        )
        return Transaction(self, made["handle"], TxnId(made["most"], made["least"]))

    def reader(self, topic: str, start: str | Id = "earliest", **options: Any) -> Reader:
        where = start.raw if isinstance(start, Id) else start
        return Reader(self.driver, self._made("reader", topic=topic, start=where, **options))

    def table(self, topic: str, **options: Any) -> Table:
        return Table(self.driver, self._made("table", topic=topic, **options))

    def _made(self, kind: str, **options: Any) -> Any:
        """A part of the client."""
        return self._patiently(f"{kind}.create", **options)

    def _patiently(self, operation: str, **options: Any) -> Any:
        """What begins by making a part of the client. A topic may move just then: Go's client gives
        up at the first answer that asks it to look the topic up again."""
        deadline = time.monotonic() + MOVED_S_MAX
        while True:
            try:
                return self.driver.call(operation, handle=self.handle, **options)
            except ForeignError as error:
                if "is being unloaded" not in error.message or time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_S)

    def partitions(self, topic: str) -> list[str]:
        return list(self.call("partitions", topic=topic))

    # Values of the client's own encoders, as texts: see `typed_kinds`.

    def publish_typed(self, topic: str, kind: str, *, batching: bool = False) -> list[str]:
        """Publish some values of a kind with the client's own schema; which."""
        return self._typed("publish", topic=topic, kind=kind, batching=batching)

    def read_typed(self, topic: str, kind: str, count: int) -> list[str]:
        """The first values of a topic, decoded by that schema."""
        return self._typed("read", topic=topic, kind=kind, **_patient(count))

    def read_any(self, topic: str, count: int) -> list[str]:
        """The same, decoded by the schema that the topic has (Java)."""
        return self._typed("any", topic=topic, **_patient(count))

    def copy_any(self, topic: str, count: int) -> None:
        """Publish the payloads of the first messages again, by whatever schema the topic has
        (Java)."""
        assert (
            self.driver.call("typed.copy", handle=self.handle, topic=topic, **_patient(count))
            == count
        )

    def _typed(self, operation: str, **fields: Any) -> list[str]:
        return list(self._patiently(f"typed.{operation}", **fields))


def _patient(count: int) -> dict[str, int]:
    return {"count": count, "timeout_ms": int(RECEIVE_S * 1000)}


class Transaction(_Remote):
    """A transaction that the client has begun."""

    kind = "transaction"

    def __init__(self, client: Client, handle: int, txn_id: TxnId) -> None:
        super().__init__(client.driver, handle)
        self.client, self.id = client, txn_id

    @property
    def state(self) -> str:
        """What the client takes it for: OPEN, COMMITTING, COMMITTED, ABORTING, ABORTED, TIMEOUT,
        ERROR."""
        return str(self.call("state"))

    def commit(self) -> None:
        self.call("commit")

    def abort(self) -> None:
        self.call("abort")

    def end_again(self, *, commit: bool) -> None:
        """END_TXN once more, whatever the client takes it for (Java)."""
        self.call("end_again", client=self.client.handle, commit=commit)


class Producer(_Remote):
    """A producer and what the broker said when it was made."""

    kind = "producer"

    def __init__(self, driver: Driver, handle: int, made: dict[str, Any]) -> None:
        super().__init__(driver, handle)
        self.name: str = made["name"]
        self.last_sequence_id: int = made["last_sequence_id"]

    def begin_send(
        self,
        messages: Iterable[dict[str, Any]],
        txn: Transaction | None = None,
        schema: dict[str, str] | None = None,
    ) -> Future[Any]:
        """Publish all without waiting in between, with a schema of their own if one is given; the
        answers are for `ids`."""
        listed = [{**message, "value": _encoded(message["value"])} for message in messages]
        return self.begin("send", messages=listed, transaction=_handle(txn), schema=schema)

    def send_all(
        self,
        values: Sequence[bytes],
        txn: Transaction | None = None,
        schema: dict[str, str] | None = None,
        **fields: Any,
    ) -> list[Id]:
        """Publish all without waiting in between, then wait for every receipt. Raises
        ForeignError for the first refused one."""
        return ids(self.begin_send(({"value": value, **fields} for value in values), txn, schema))

    def send(self, value: bytes, txn: Transaction | None = None, **fields: Any) -> Id:
        """Publish one message and wait for its receipt. Raises ForeignError."""
        return self.send_all([value], txn, **fields)[0]

    def stream(self, prefix: str, *, interval_ms: int, padding: int) -> Stream:
        """Publish "<prefix> <number><padding>" without end, one message every `interval_ms`."""
        return Stream(
            self.driver,
            self.call("stream", prefix=prefix, interval_ms=interval_ms, padding=padding),
        )

    def info(self) -> dict[str, Any]:
        return dict(self.call("info"))


class Stream(_Remote):
    """A producer that publishes by itself."""

    kind = "stream"

    def last_receipt_at(self) -> float:
        """When the newest receipt came (`time.time()`), 0 if none has."""
        return float(self.call("progress")["last_receipt_ms"]) / 1000

    def end(self) -> tuple[int, list[StreamAnswer]]:
        """Send nothing more; how many messages there were, and what became of each, in the order
        in which it was known."""
        ended = self.call("end")
        return ended["sent"], [StreamAnswer.of(answer) for answer in ended["answers"]]


def ids(answer: Future[Any]) -> list[Id]:
    """The ids of what `begin_send` published. Raises ForeignError for the first refused one."""
    receipts = answer.result(ANSWER_S)
    for receipt in receipts:
        if "error" in receipt:
            raise ForeignError(receipt["error"]["type"], receipt["error"]["message"])
    return [Id.of(receipt["id"]) for receipt in receipts]


class _Seekable(_Remote):
    def seek(self, to: Id | str) -> None:
        """To an id, "earliest" or "latest"."""
        self.call("seek", to=to.raw if isinstance(to, Id) else to)

    def seek_time(self, time_ms: int) -> None:
        self.call("seek", time_ms=time_ms)


class Consumer(_Seekable):
    """A consumer."""

    kind = "consumer"

    def __init__(self, driver: Driver, handle: int, name: str) -> None:
        super().__init__(driver, handle)
        self.name = name

    def receive(
        self, count: int, *, ack: bool = False, decode: bool = False, timeout_s: float = RECEIVE_S
    ) -> list[Received]:
        """Exactly `count` messages. Raises AssertionError naming what came if there are fewer in
        time."""
        got = self.receive_up_to(count, ack=ack, decode=decode, timeout_s=timeout_s)
        assert len(got) == count, (
            f"{len(got)} of {count} messages within {timeout_s} s: "
            f"{[message.value[:20] for message in got]}"
        )
        return got

    def receive_up_to(
        self, count: int, *, ack: bool = False, decode: bool = False, timeout_s: float = RECEIVE_S
    ) -> list[Received]:
        """What comes before the time is up, at most `count`."""
        answer = self.call(
            "receive", count=count, ack=ack, decode=decode, timeout_ms=int(timeout_s * 1000)
        )
        return [Received.of(message) for message in answer]

    def values(self, count: int, *, ack: bool = True) -> list[bytes]:
        """The values of the next `count` messages, which are acknowledged."""
        return [message.value for message in self.receive(count, ack=ack)]

    def distinct_values(self, count: int) -> list[bytes]:
        """The values of the next `count` different messages, acknowledged: over a restart or a move
        one may come twice, since the client keeps what it has fetched. Published twice, it is
        two."""
        found: dict[tuple[str, Id], bytes] = {}
        while len(found) < count:
            for message in self.receive(count - len(found), ack=True):
                found.setdefault((message.topic, message.id), message.value)
        return list(found.values())

    def expect_nothing(self) -> None:
        """Nothing comes for a while."""
        got = self.receive_up_to(1, timeout_s=QUIET_S)
        assert got == [], f"unexpected {got}"

    def ack(self, *messages: Received, txn: Transaction | None = None) -> None:
        self.call("ack", handles=[message.handle for message in messages], transaction=_handle(txn))

    def ack_cumulative(self, message: Received, txn: Transaction | None = None) -> None:
        """In a transaction only Java's client does that."""
        self.call("ack_cumulative", handles=[message.handle], transaction=_handle(txn))

    def nack(self, *messages: Received) -> None:
        self.call("nack", handles=[message.handle for message in messages])

    def reconsume(self, message: Received, delay_ms: int) -> None:
        """Send it to the retry topic, to come back after a while."""
        self.call("reconsume", handles=[message.handle], delay_ms=delay_ms)

    def unsubscribe(self, *, force: bool = False) -> None:
        self.call("unsubscribe", force=force)

    def last_ids(self) -> list[Id]:
        return [Id.of(answer) for answer in self.call("last_ids")]

    def await_active(self, active: bool = True, partition: int = -1) -> None:
        """Until the client was notified that it is (or is no longer) the active consumer."""
        notified = self.call(
            "await_active", active=active, partition=partition, timeout_ms=int(RECEIVE_S * 1000)
        )
        assert notified, f"{self.name} was not notified: active={active}"

    def forget_active(self) -> None:
        """Notifications so far do not count for `await_active`."""
        self.call("forget_active")

    def await_end(self) -> None:
        """Until the client was notified that the topic has ended."""
        assert self.call("await_end", timeout_ms=int(RECEIVE_S * 1000)), (
            f"{self.name} was not notified of the topic's end"
        )


class Reader(_Seekable):
    """A reader."""

    kind = "reader"

    def read(self, count: int, *, decode: bool = False) -> list[Received]:
        """Exactly `count` messages."""
        answer = self.call("read", count=count, decode=decode, timeout_ms=int(RECEIVE_S * 1000))
        got = [Received.of(message) for message in answer]
        assert len(got) == count, (
            f"{len(got)} of {count} messages: {[message.value[:20] for message in got]}"
        )
        return got

    def values(self, count: int) -> list[bytes]:
        return [message.value for message in self.read(count)]

    def has_next(self) -> bool:
        return bool(self.call("has_next"))

    def last_id(self) -> Id:
        return Id.of(self.call("last_id"))


class Table(_Remote):
    """A table view. With a schema Go's decodes, and shows a record as JSON; Java's values are
    bytes."""

    kind = "table"

    def entries(self) -> dict[str, bytes]:
        return {key: base64.b64decode(value) for key, value in self.call("entries").items()}

    def await_entry(self, key: str, value: bytes) -> dict[str, bytes]:
        """All entries once `key` has `value`."""
        answer = self.call(
            "await", key=key, value=_encoded(value), timeout_ms=int(RECEIVE_S * 1000)
        )
        entries = {name: base64.b64decode(found) for name, found in answer.items()}
        assert entries.get(key) == value, f"{key} is {entries.get(key)!r}"
        return entries


def schema_of_tables(client: Client) -> dict[str, str] | None:
    """What producers announce so that a table is let in: Go's announces bytes, and then all must."""
    return schema("NONE") if client.driver.language == "go" else None


def rest_is_empty(consumer: Consumer, client: Client, topic: str) -> None:
    """A message sent now is the next one to come: nothing that was sent before is left."""
    client.producer(topic).send(b"last", key="last")
    assert consumer.values(1) == [b"last"]
