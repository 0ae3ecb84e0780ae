"""The official Java and Go clients' part of the traffic.

Owns: `ForeignTraffic`: one producer per topic in a program of each language, and what became of its
messages, reported when it ends. Imports: the drivers of the tests with foreign clients, history,
traffic.
"""

from __future__ import annotations

import time
from pathlib import Path

from dev.soak.traffic import PADDING, Plan, producer_name
from dev.testbed.foreign import Driver, Stream

SEND_TIMEOUT_MS = 600_000
"""Longer than any trouble: a send that fails is a violation."""


class ForeignTraffic:
    """Publishes to the topics that were planned for `language`."""

    def __init__(
        self, language: str, service_url: str, plans: list[Plan], rate: float, directory: Path
    ) -> None:
        self._plans = [plan for plan in plans if plan.history.client == language]
        self._interval_ms = int(1000 / rate)
        self._driver = Driver(language, directory)
        self._client = self._driver.client(service_url)
        self._streams: list[Stream] = []

    def publish(self) -> None:
        for plan in self._plans:
            name = producer_name(plan)
            producer = self._client.producer(
                plan.history.name, name=name, send_timeout_ms=SEND_TIMEOUT_MS
            )
            self._streams.append(
                producer.stream(name, interval_ms=self._interval_ms, padding=len(PADDING))
            )

    def finish(self) -> None:
        """Send nothing more; wait for every outcome and note it. Raises TimeoutError."""
        offset = time.monotonic() - time.time()
        for plan, stream in zip(self._plans, self._streams, strict=True):
            history, name = plan.history, producer_name(plan)
            history.sent[name], answers = stream.end()
            for answer in answers:
                if answer.id is None:
                    history.failed.append(f"{name} {answer.number}: {answer.error}")
                else:
                    # Nothing is batched and the topics are plain; the Go client says 0 for both.
                    history.receipt(
                        (name, answer.number),
                        (-1, (answer.id.ledger, answer.id.entry, -1)),
                        answer.at + offset,
                    )

    def close(self) -> None:
        self._driver.close()
