"""`python -m dev.differential.applications`: what an application of the official client sees.

Owns: `history(seed)`, the steps of an application; `Application`, which takes them through the
official Python client; comparing Apache Pulsar with Magnetar by them, and recording. Imports: pulsar,
servers, the testbed's oracle. Invariants: the same seed gives the same steps; a message is named by
the order of its publication, so that what is compared is what an application can tell; a difference
is one only if it is there again with the longest wait. Exit code: 1 if there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import queue
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pulsar

from dev.differential.recordings import Recording
from dev.differential.servers import (
    MAGNETAR_SETTINGS,
    ORACLE_SETTINGS,
    REST_TIMEOUT_S,
    TENANT,
    Server,
)
from dev.server_process import ServerProcess
from dev.testbed.oracle import Oracle, version

NAMESPACES = tuple(f"{TENANT}/differential-applications-{number}" for number in range(4))
"""Of histories that run one after another: an unload of a topic may disconnect its neighbours."""
DIRECTORY = Path("tests/differential/recorded_applications")
RECORDED_SEEDS = range(24)
QUIETS_MS = (300, 1200, 4000)
"""A consumer has received everything when nothing came for so long."""
ACKNOWLEDGED_S = 0.25
"""The client groups acknowledgements for 0.1 s."""
STEPS_MIN, STEPS_MAX = 6, 16
TYPES = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Shared": pulsar.ConsumerType.Shared,
    "Failover": pulsar.ConsumerType.Failover,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}
POSITIONS = {
    "Earliest": pulsar.InitialPosition.Earliest,
    "Latest": pulsar.InitialPosition.Latest,
}
ABSENT = "absent"
Step = list[Any]
Shown = dict[str, Any]
Item = TypeVar("Item")
Result = TypeVar("Result")


def history(seed: int) -> list[Step]:
    """What an application does: one producer at first, and consumers of one or two subscriptions,
    each with one consumer at a time, so that no server chooses among them. Single messages are
    acknowledged without batches only: docs/differences.md has what becomes of parts of batches."""
    chance = random.Random(f"application {seed}")
    kinds = {sub: chance.choice(sorted(TYPES)) for sub in ("s1", "s2")}
    batch = chance.choice([0, 0, 3])
    steps: list[Step] = [["producer", {"batch": batch}]]
    sent, subscribed = 0, set[str]()
    for _ in range(chance.randint(STEPS_MIN, STEPS_MAX)):
        sub = chance.choice(sorted(kinds))
        message = f"m{chance.randrange(max(1, sent))}"
        choice = chance.random()
        if choice < 0.25 or not sent:
            count = chance.randint(1, 6)
            key = chance.choice([None, None, "a", "b"])
            steps.append(["send", {"count": count, "key": key}])
            sent += count
        elif sub not in subscribed:
            position = chance.choice(sorted(POSITIONS))
            steps.append(["subscribe", sub, {"type": kinds[sub], "position": position}])
            subscribed.add(sub)
            if chance.random() < 0.7:
                steps.append(["receive", sub])
        elif choice < 0.45:
            steps.append(["receive", sub])
        elif choice < 0.58 and not batch:
            steps.append(["ack", sub, message])
        elif choice < 0.64 and kinds[sub] in ("Exclusive", "Failover"):
            steps.append(["ack_up_to", sub, message])
        elif choice < 0.70:
            steps.append(["nack", sub, message])
        elif choice < 0.76:
            # what is on its way would be received either before or again
            steps += [["receive", sub], ["redeliver", sub]]
        elif choice < 0.82:
            steps.append(["seek", sub, chance.choice(["earliest", "latest", message])])
        elif choice < 0.88:
            steps.append([chance.choice(["close", "close", "unsubscribe"]), sub])
            subscribed.discard(sub)
        elif choice < 0.93:
            steps.append(["rest", "PUT", "unload"])
        else:
            steps.append(["read", chance.choice(["earliest", message])])
    return [*steps, *(["receive", sub] for sub in sorted(subscribed)), ["read", "earliest"]]


class Application:
    """The clients of one history on one server."""

    def __init__(self, server: Server, topic: str, quiet_ms: int) -> None:
        self._topic = f"persistent://{topic}"
        self._http_url = server.http_url
        self._quiet_ms = quiet_ms
        self._client = pulsar.Client(
            f"pulsar://127.0.0.1:{server.broker_port}",
            operation_timeout_seconds=60,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        self._producer: pulsar.Producer | None = None
        self._consumers: dict[str, pulsar.Consumer] = {}
        self._kinds: dict[str, str] = {}
        self._received: dict[str, dict[str, pulsar.Message]] = {}
        self._ids: list[pulsar.MessageId] = []

    def play(self, steps: list[Step]) -> list[Shown]:
        """What every step showed; the topic is gone afterwards."""
        operations: dict[str, Callable[..., Any]] = {
            "producer": self._produce, "send": self._send, "subscribe": self._subscribe,
            "receive": self._receive, "ack": self._on_message("acknowledge"),
            "ack_up_to": self._on_message("acknowledge_cumulative"),
            "nack": self._on_message("negative_acknowledge"), "redeliver": self._redeliver,
            "seek": self._seek, "close": self._leaving("close"),
            "unsubscribe": self._leaving("unsubscribe"), "read": self._read,
            "rest": self._request,
        }  # fmt: skip
        shown = []
        try:
            for kind, *arguments in steps:
                try:
                    answer = operations[kind](*arguments)
                except pulsar.PulsarException as error:
                    answer = type(error).__name__
                shown.append({"step": [kind, *arguments], "answer": answer})
        finally:
            with contextlib.suppress(pulsar.PulsarException):
                self._client.close()
            self._request("DELETE", "?force=true")
        return shown

    # --- what an application does -----------------------------------------------------------------

    def _produce(self, options: dict[str, Any]) -> str:
        self._producer = self._client.create_producer(
            self._topic,
            batching_enabled=options["batch"] > 0,
            batching_max_messages=max(2, options["batch"]),
            batching_max_publish_delay_ms=60_000,
        )
        return "ok"

    def _send(self, options: dict[str, Any]) -> list[str]:
        assert self._producer is not None
        answers: list[tuple[str, pulsar.MessageId]] = []
        for number in range(options["count"]):
            self._producer.send_async(
                f"m{len(self._ids) + number}".encode(),
                lambda result, message_id: answers.append((str(result), message_id)),
                partition_key=options["key"],
                event_timestamp=1 + number,
            )
        self._producer.flush()
        while len(answers) < options["count"]:
            time.sleep(0.001)
        self._ids += [message_id for _, message_id in answers]
        return [result for result, _ in answers]

    def _subscribe(self, sub: str, options: dict[str, Any]) -> str:
        self._kinds[sub] = options["type"]
        self._consumers[sub] = self._client.subscribe(
            self._topic,
            sub,
            consumer_type=TYPES[options["type"]],
            initial_position=POSITIONS[options["position"]],
            negative_ack_redelivery_delay_ms=100,
            batch_index_ack_enabled=True,
        )
        self._received[sub] = {}
        return "ok"

    def _receive(self, sub: str) -> Any:
        """All that comes: in order, where the type has one."""
        consumer, found = self._consumers.get(sub), []
        if consumer is None:
            return ABSENT
        with contextlib.suppress(pulsar.Timeout):
            while True:
                message = consumer.receive(self._quiet_ms)
                self._received[sub][message.data().decode()] = message
                found.append(self._shown(message))
        return found if self._kinds[sub] in ("Exclusive", "Failover") else sorted(found)

    @staticmethod
    def _shown(message: pulsar.Message) -> str:
        parts = [message.data().decode(), message.partition_key(), str(message.event_timestamp())]
        if message.redelivery_count():
            parts.append(f"again {message.redelivery_count()}")
        return " ".join(part for part in parts if part)

    def _on_message(self, operation: str) -> Callable[[str, str], str]:
        """A step that gives a message that was received to that method of its consumer."""

        def step(sub: str, name: str) -> str:
            message = self._received.get(sub, {}).get(name)
            if message is None:
                return ABSENT
            getattr(self._consumers[sub], operation)(message)
            time.sleep(ACKNOWLEDGED_S)
            return "ok"

        return step

    def _redeliver(self, sub: str) -> str:
        if sub not in self._consumers:
            return ABSENT
        self._consumers[sub].redeliver_unacknowledged_messages()
        return "ok"

    def _seek(self, sub: str, target: str) -> str:
        if sub not in self._consumers or (place := self._place(target)) is None:
            return ABSENT
        self._consumers[sub].seek(place)
        self._received[sub].clear()
        return "ok"

    def _place(self, target: str) -> Any:
        if target in ("earliest", "latest"):
            return getattr(pulsar.MessageId, target)
        number = int(target[1:])
        return self._ids[number] if number < len(self._ids) else None

    def _leaving(self, operation: str) -> Callable[[str], str]:
        """A step that ends a consumer by that method of it."""

        def step(sub: str) -> str:
            if sub not in self._consumers:
                return ABSENT
            getattr(self._consumers.pop(sub), operation)()
            self._received.pop(sub)
            return "ok"

        return step

    def _read(self, start: str) -> Any:
        if (place := self._place(start)) is None:
            return ABSENT
        reader, found = self._client.create_reader(self._topic, place), []
        while reader.has_message_available():
            found.append(self._shown(reader.read_next(60_000)))
        reader.close()
        return found

    def _request(self, method: str, operation: str) -> int:
        path = f"persistent/{self._topic.partition('://')[2]}"
        path += operation if operation.startswith("?") else f"/{operation}"
        answer = httpx.request(
            method,
            f"{self._http_url}/admin/v2/{path}",
            timeout=REST_TIMEOUT_S,
            follow_redirects=True,
            trust_env=False,
        )
        return answer.status_code


class Servers:
    """Servers with the namespaces of histories; `each` runs as many beside each other as there
    are."""

    def __init__(self, *servers: Server) -> None:
        self._servers = servers
        self._free: queue.SimpleQueue[str] = queue.SimpleQueue()
        for namespace in NAMESPACES:
            self._free.put(namespace)
        asyncio.run(self._prepare())

    async def _prepare(self) -> None:
        for server in self._servers:
            for namespace in NAMESPACES:
                await server.prepare(namespace)
            await server.close()

    def play(self, steps: list[Step], quiet_ms: int) -> list[list[Shown]]:
        """What every server shows of a history, as JSON has it."""
        namespace = self._free.get()
        try:
            topic = f"{namespace}/history-{time.monotonic_ns()}"
            return [
                json.loads(json.dumps(Application(server, topic, quiet_ms).play(steps)))
                for server in self._servers
            ]
        finally:
            self._free.put(namespace)

    def each(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        with ThreadPoolExecutor(len(NAMESPACES)) as pool:
            return list(pool.map(work, items))


def compare(servers: Servers, seed: int) -> str:
    """The first difference, with the longest wait; "" = there is none."""
    text, steps = "", history(seed)
    for quiet_ms in QUIETS_MS:
        left, right = servers.play(steps, quiet_ms)
        text = next(
            (
                f"seed {seed}, step {index} {one['step']}:\n  Apache Pulsar {one['answer']}\n"
                f"  Magnetar      {other['answer']}"
                for index, (one, other) in enumerate(zip(left, right, strict=True))
                if one != other
            ),
            "",
        )
        if not text:
            break
    return text


def record(servers: Servers, seed: int) -> bool:
    """Keep what Apache Pulsar shows, if it is the same twice."""
    (first,), (second,) = (servers.play(history(seed), QUIETS_MS[1]) for _ in range(2))
    if first == second:
        Recording(f"history-{seed}", version(), first).write(DIRECTORY)
    return first == second


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m dev.differential.applications", description=__doc__
    )
    parser.add_argument("--histories", type=int, default=100, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--record", action="store_true", help="record Apache Pulsar's answers")
    parser.add_argument("--show", action="store_true", help="print the steps of --seed")
    options = parser.parse_args()
    if options.show:
        print("\n".join(map(json.dumps, history(options.seed))))
        return 0
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="magnetar-apps-") as scratch:
        oracle = stack.enter_context(Oracle(Path(scratch) / "pulsar", ORACLE_SETTINGS))
        left = Server("pulsar", oracle.broker_port, oracle.http_url)
        if options.record:
            recorder = Servers(left)
            kept = recorder.each(lambda seed: record(recorder, seed), RECORDED_SEEDS)
            print(f"{sum(kept)} of {len(kept)} recorded")
            return 0
        ours = stack.enter_context(
            ServerProcess(Path(scratch) / "magnetar", environment=MAGNETAR_SETTINGS)
        )
        both = Servers(left, Server("magnetar", ours.broker_port, ours.http_url))
        seeds = range(options.seed, options.seed + options.histories)
        found = [text for text in both.each(lambda seed: compare(both, seed), seeds) if text]
        print("\n".join(found) + f"\n{len(seeds)} histories, {len(found)} with a difference")
        return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
