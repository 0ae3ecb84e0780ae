"""The example of event-time windows while its topic moves between three brokers: its owner is
killed, its bundle is split, and it is transferred. Real processes, a real etcd, one volume.

What its consumer closes by watermarks has to be what an offline computation finds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dev.testbed.cluster import STILL, Cluster, request, wait_for
from tests.clients.coordinators import CHANGE_S, Stage
from tests.clients.splits import PATH, split

pytestmark = [pytest.mark.slow, pytest.mark.etcd, pytest.mark.timeout(600)]

MESSAGES = 2_000
"""Enough for the test to move the topic twice before they are all published, though it looks at
it late."""
END_MS = MESSAGES * 20
LATE = 3
FINISHED_S = 300


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Three brokers and a coordinator; only the test moves bundles."""
    made = Stage(tmp_path_factory.mktemp("windows"), STILL, brokers=3)
    try:
        made.start()
        made.coordinators[0].start()
        wait_for("the coordinator is announced", lambda: made.announced() == 1, CHANGE_S)
        yield made
    finally:
        made.stop()


@pytest.fixture
def cluster(stage: Stage) -> Cluster:
    """All brokers run."""
    stage.cluster.repair()
    return stage.cluster


class Example:
    """The example as its reader runs it, on a topic that it has just made."""

    def __init__(self, cluster: Cluster, log: Path) -> None:
        self._cluster, known = cluster, _topics(cluster)
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            [
                sys.executable,
                "examples/event_time_windows.py",
                "--service-url",
                cluster.service_url,
                "--messages",
                str(MESSAGES),
                "--json",
            ],
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        wait_for("the example has a topic", lambda: bool(_topics(cluster) - known))
        (self.topic,) = _topics(cluster) - known

    def __enter__(self) -> Example:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()
        self._log.close()

    def watermark_ms(self) -> int:
        """Of its subscription, as the owner reports; -1 while there is none."""
        owner = self._cluster.brokers[self._cluster.owner(self.topic)]
        try:
            status, body = request(
                "GET", f"{owner.http_url}/magnetar/v1/watermarks/public/default/{self.topic}"
            )
        except OSError:
            return -1
        found = body.get("windows", {}).get("watermark") if status == 200 else None
        return -1 if found is None else int(found)

    def wait_beyond(self, event_ms: int) -> int:
        """Until the watermark has passed a time, with work left to do; the watermark."""
        seen: list[int] = []

        def passed() -> bool:
            assert self._process.poll() is None, "the example ended before its topic had moved"
            seen.append(self.watermark_ms())
            return seen[-1] > event_ms

        wait_for(f"the watermark is beyond {event_ms}", passed)
        assert seen[-1] < END_MS, "nothing is left to happen"
        return seen[-1]

    def result(self) -> dict[str, Any]:
        """What it prints at its end."""
        printed, _ = self._process.communicate(timeout=FINISHED_S)
        self._log.flush()
        complaint = Path(self._log.name).read_text(errors="replace")[-4000:]
        assert self._process.returncode == 0, complaint or printed[-4000:]
        return dict(json.loads(printed))


def _topics(cluster: Cluster) -> set[str]:
    """Short names of the topics that examples have made."""
    status, body = request("GET", f"{cluster.brokers[cluster.entry].http_url}{PATH}/topics")
    assert status == 200, (status, body)
    return {found.rpartition("/")[2] for found in body if "/windows-" in found}


def _check(found: dict[str, Any]) -> None:
    assert found["windows"] == found["offline"]
    assert sum(found["windows"].values()) == 2 * MESSAGES
    assert found["late"] == LATE


def _others(cluster: Cluster, owner: str) -> list[str]:
    """Brokers that may be hurt and do not serve the topic."""
    return [name for name in cluster.brokers if name not in (owner, cluster.entry)]


def test_windows_survive_a_killed_owner_and_a_split(cluster: Cluster, tmp_path: Path) -> None:
    """The owner gets SIGKILL midway, and the bundle is split at the next one; no reading is
    missing, counted twice or late for it."""
    with Example(cluster, tmp_path / "example.log") as example:
        victim = cluster.owner(example.topic)
        if victim == cluster.entry:
            victim = cluster.unload(example.topic, _others(cluster, victim)[0])
        before = example.wait_beyond(END_MS // 8)
        cluster.brokers[victim].kill()
        after_kill = example.wait_beyond(before)
        assert cluster.owner(example.topic) != victim
        split(cluster, example.topic)
        example.wait_beyond(after_kill)
        _check(example.result())


def test_windows_survive_planned_transfers(cluster: Cluster, tmp_path: Path) -> None:
    """The topic is unloaded to a named broker midway, and back."""
    with Example(cluster, tmp_path / "example.log") as example:
        seen, first = example.wait_beyond(END_MS // 8), cluster.owner(example.topic)
        for destination in (_others(cluster, first)[0], first):
            assert cluster.unload(example.topic, destination) == destination
            seen = example.wait_beyond(seen)
        _check(example.result())
