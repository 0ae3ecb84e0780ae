"""A real Kubernetes with Magnetar on it.

Owns: the session-wide cluster (a local node, or the one that CONTEXT and IMAGE name), a clean
namespace of work, and traffic from the official Python client. Imports: dev.cluster, pulsar.
Everything runs on this machine or in pods of the given cluster; what a test makes it removes.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pulsar
import pytest

from dev import cluster

READY_S = 300.0
"""How long a node that is busy with other things may take for anything."""
POLL_S = 0.5
READ_MS = 120_000
CONNECT_ATTEMPTS = 6
UNREACHABLE = (
    "Unable to connect",
    "TLS handshake timeout",
    "connection refused",
    "i/o timeout",
    "etcdserver: request timed out",
)


class Node:
    """kubectl against the cluster under test."""

    def __init__(self, tools: cluster.Tools) -> None:
        self.tools = tools

    def run(self, *arguments: str, check: bool = True, given: str | None = None) -> str:
        """kubectl with these arguments; its standard output. A failure carries what kubectl said.

        An API server that a busy machine keeps from answering is asked again: that is not what
        these tests are about.
        """
        for attempt in range(CONNECT_ATTEMPTS):
            result = subprocess.run(
                [*self.tools.kubectl, *arguments],
                input=given,
                text=True,
                capture_output=True,
                check=False,
            )
            unreachable = result.returncode != 0 and any(
                word in result.stderr for word in UNREACHABLE
            )
            if not unreachable or attempt == CONNECT_ATTEMPTS - 1:
                break
            time.sleep(1.0 + attempt)
        if check and result.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {result.stderr or result.stdout}")
        return result.stdout

    def get(self, kind: str, name: str = "", *options: str) -> Any:
        """An object, or a list of objects, as Python values."""
        return json.loads(self.run("get", kind, *([name] if name else []), *options, "-o", "json"))

    def wait(self, what: str, condition: Callable[[], bool], timeout_s: float = READY_S) -> float:
        """Wait until `condition()`; seconds it took. On failure the state of the cluster is part
        of the message."""
        started = time.monotonic()
        while time.monotonic() - started < timeout_s:
            if condition():
                return time.monotonic() - started
            time.sleep(POLL_S)
        raise AssertionError(f"{what}: not within {timeout_s} s\n{self.report()}")

    def report(self) -> str:
        """What a person would look at first."""
        parts = [
            self.run("get", "magnetar,pods,pvc", "-o", "wide", check=False),
            self.run("describe", "brokercluster/main", check=False)[-3000:],
            self.run("get", "events", "--sort-by=.lastTimestamp", check=False)[-4000:],
            self.run(
                "logs",
                "-n",
                cluster.SYSTEM_NAMESPACE,
                "-l",
                "app.kubernetes.io/name=magnetar",
                "--tail=60",
                check=False,
            ),
        ]
        for pod in self.run("get", "pods", "-o", "name", check=False).split():
            parts += [
                f"--- {pod}",
                self.run("logs", pod, "--tail=40", "--all-containers", check=False),
            ]
        return "\n".join(parts)[-30_000:]

    def ready_brokers(self) -> int:
        status = self.get("brokercluster", "main").get("status", {})
        return int(status.get("readyReplicas") or 0)

    def uid(self, pod: str) -> str:
        """Of a pod; "" while there is none, as between a deletion and what takes its place."""
        found = self.run("get", "pod", pod, "--ignore-not-found", "-o", "json")
        return str(json.loads(found)["metadata"]["uid"]) if found.strip() else ""

    def condition(self, kind: str, name: str, condition: str) -> str:
        found = self.get(kind, name).get("status", {}).get("conditions", [])
        return next((entry["status"] for entry in found if entry["type"] == condition), "Unknown")

    def restrict(self, namespace: str) -> None:
        """Make the namespace if need be; from now on it takes only pods that pass the restricted
        security standard."""
        self.run("create", "namespace", namespace, check=False)
        self.run(
            "label",
            "namespace",
            namespace,
            "pod-security.kubernetes.io/enforce=restricted",
            "--overwrite",
        )

    def installed_images(self) -> tuple[str, str]:
        """Our image and etcd's, as they were given to the release."""
        command = [
            *self.tools.helm,
            "get",
            "values",
            cluster.RELEASE,
            "-n",
            cluster.SYSTEM_NAMESPACE,
            "-o",
            "json",
        ]
        values = json.loads(
            subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        )
        return f"{values['image']['repository']}:{values['image']['tag']}", values.get(
            "etcd", {}
        ).get("image", "")

    def service_url(self, cluster_name: str = "main", namespace: str = "default") -> str:
        return f"pulsar://{self.get('service', cluster_name, '-n', namespace)['spec']['clusterIP']}:6650"


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """The quickstart, Ready, one broker; no pod of ours may need more than the restricted
    security standard grants."""
    context, image = os.environ.get("CONTEXT", ""), os.environ.get("IMAGE", "")
    subprocess.run(
        [sys.executable, "-m", "dev.kube", "up", *(["--context", context] if context else [])],
        check=True,
    )
    found = Node(cluster.tools(context))
    for namespace in ("default", cluster.SYSTEM_NAMESPACE):
        found.restrict(namespace)
    cluster.up(context, image)
    yield found
    if not context and not os.environ.get("MAGNETAR_KEEP_CLUSTER"):
        subprocess.run(["python3", "-m", "dev.kube", "down", "--purge"], check=True)


class Traffic:
    """The official Python client producing and consuming all the while, with a record of
    every answer and message."""

    def __init__(self, service_url: str, topics: list[str], **shown: Any) -> None:
        """`shown`: more arguments of the official client, as for TLS and tokens."""
        self._connect: Callable[[], pulsar.Client] = partial(
            pulsar.Client,
            service_url,
            operation_timeout_seconds=120,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            **shown,
        )
        self._client = self._connect()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.acknowledged: dict[str, list[int]] = {topic: [] for topic in topics}
        self.failed: list[str] = []
        self.received: dict[str, list[int]] = {topic: [] for topic in topics}
        self._latencies_s: list[float] = []
        self._last_receipt: dict[str, float] = {}
        self.longest_gap_s = 0.0
        self._threads = [threading.Thread(target=self._produce, args=(topic,)) for topic in topics]
        self._threads += [threading.Thread(target=self._consume, args=(topic,)) for topic in topics]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(READY_S)
        self._client.close()

    def pause_s(self, _topic: str, /) -> float:
        """Between two times ten messages of a topic."""
        return 0.02

    def total(self) -> int:
        with self._lock:
            return sum(map(len, self.acknowledged.values()))

    def counts(self) -> dict[str, int]:
        """How many were acknowledged, by topic."""
        with self._lock:
            return {topic: len(numbers) for topic, numbers in self.acknowledged.items()}

    def reset_measurements(self) -> None:
        """Forget the pauses and latencies seen so far."""
        with self._lock:
            self.longest_gap_s = 0.0
            self._latencies_s.clear()

    def latency_ms(self, share: float) -> float:
        """The latency that this share of the sends since `reset_measurements` did not exceed."""
        with self._lock:
            ordered = sorted(self._latencies_s)
        return (
            ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)] * 1000
            if ordered
            else math.nan
        )

    def _produce(self, topic: str) -> None:
        producer = self._client.create_producer(
            topic,
            producer_name=f"{topic}-producer",
            send_timeout_millis=120_000,
            block_if_queue_full=True,
        )
        number = 0
        while not self._stop.is_set():
            for _ in range(10):
                sent = time.monotonic()
                producer.send_async(
                    str(number).encode(),
                    lambda result, _id, n=number, sent=sent: self._receipt(topic, n, result, sent),
                )
                number += 1
            self._stop.wait(self.pause_s(topic))
        producer.flush()
        producer.close()

    def _receipt(self, topic: str, number: int, result: pulsar.Result, sent: float) -> None:
        now = time.monotonic()
        with self._lock:
            if result != pulsar.Result.Ok:
                self.failed.append(f"{topic} {number}: {result}")
                return
            self.acknowledged[topic].append(number)
            self._latencies_s.append(now - sent)
            self.longest_gap_s = max(self.longest_gap_s, now - self._last_receipt.get(topic, now))
            self._last_receipt[topic] = now

    def _consume(self, topic: str) -> None:
        consumer = self._client.subscribe(
            topic, "traffic", initial_position=pulsar.InitialPosition.Earliest
        )
        while not self._stop.is_set():
            try:
                message = consumer.receive(500)
            except pulsar.Timeout:
                continue
            with self._lock:
                self.received[topic].append(int(message.data()))
            consumer.acknowledge(message)
        consumer.close()

    def verify(self) -> None:
        """Read every topic back: nothing acknowledged is missing, and first occurrences are in
        order."""
        client = self._connect()
        with self._lock:
            # traffic goes on while we read
            acknowledged = {topic: list(numbers) for topic, numbers in self.acknowledged.items()}
        for topic, numbers in acknowledged.items():
            assert numbers, f"nothing was acknowledged on {topic}: the test proves nothing"
            reader = client.create_reader(topic, pulsar.MessageId.earliest)
            stored: dict[int, None] = {}
            missing = set(numbers)
            # Not until there is no more: producers may be as fast as this is, and a question for
            # the last message fails when the topic moves, where a read goes on.
            with contextlib.suppress(pulsar.Timeout):
                while missing:
                    number = int(reader.read_next(READ_MS).data())
                    stored.setdefault(number)
                    missing.discard(number)
            assert not missing, (
                f"{topic}: {len(missing)} acknowledged messages are missing, "
                f"first {sorted(missing)[:5]}"
            )
            assert list(stored) == sorted(stored), f"{topic}: the producer's order is not kept"
        client.close()


@pytest.fixture
def traffic(node: Node) -> Iterator[Traffic]:
    """Six topics under traffic; they spread over bundles by their names."""
    stamp = time.monotonic_ns() // 1_000_000
    with Traffic(
        node.service_url(),
        [f"persistent://public/default/load-{stamp}-{number}" for number in range(6)],
    ) as running:
        node.wait("traffic flows", lambda: running.total() > 100)
        yield running
