"""The stage of DataJobs: one job, whose drivers are played by hand.

Owns: `Jobs`, and `SetClock`, which moves the operator's wall clock.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from magnetar.clock import SystemClock
from tests.apiserver.stage import Brokers, Scene, until

TOPIC = "persistent://public/default/prices"


HOUR_MS, MINUTE_MS = 3_600_000, 60_000


class SetClock:
    """How far the wall clock is ahead of the machine's, and a time of every hour that is half an
    hour away: no hour ends by itself while a test runs."""

    def __init__(self) -> None:
        self.ahead_ms = 0
        self._minute = (self.now_ms() // MINUTE_MS + 30) % 60

    @property
    def schedule(self) -> str:
        """Once an hour."""
        return f"{self._minute} * * * *"

    def now_ms(self) -> int:
        return SystemClock().wall_ms()

    def to_next_time(self) -> str:
        """Go to a moment after the next time of the schedule; the name of its run."""
        past_ms = self._minute * MINUTE_MS
        due_ms = ((self.now_ms() - past_ms) // HOUR_MS + 1) * HOUR_MS + past_ms
        self.ahead_ms += due_ms + 1000 - self.now_ms()
        return datetime.fromtimestamp(due_ms / 1000, UTC).strftime("%Y%m%d-%H%M")


class Jobs:
    """The job `prices` and its drivers."""

    def __init__(self, scene: Scene, brokers: Brokers) -> None:
        self._scene, self._brokers = scene, brokers
        self.path = scene.path("datajobs", "prices")

    async def make(self) -> str:
        """Create the job, and the topic before it; the job's uid."""
        await self._brokers.enter(TOPIC)
        return self.create()

    def create(self, topic: str = TOPIC, **spec: Any) -> str:
        spec = {"clusterRef": {"name": "main"}, "compaction": {"topic": topic}, **spec}
        return str(self._scene.create("DataJob", "prices", spec)["metadata"]["uid"])

    def driver(self, attempt: int = 1, run: str = "") -> dict[str, Any] | None:
        """Of the run of that token, or of any."""
        items = self._scene.plane.must(
            "GET", f"{self._scene.core('pods')}?labelSelector=magnetar.io/job=prices"
        )["items"]
        return next(
            (
                pod
                for pod in items
                if (labels := pod["metadata"]["labels"]).get("magnetar.io/attempt") == str(attempt)
                and labels.get("magnetar.io/run", "").startswith(run)
            ),
            None,
        )

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = (self._scene.get(self.path) or {}).get("status", {})
        return found

    def history(self) -> list[tuple[str, str]]:
        """Tokens and states of runs, the latest first."""
        return [
            (entry["run"].rpartition("-")[0], entry["state"])
            for entry in self.status().get("history", [])
        ]

    def end(self, pod: dict[str, Any], ended: dict[str, Any]) -> None:
        """A driver ends by itself."""
        container = {
            "name": "driver",
            "image": "x",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
        }
        state = {"terminated": {"finishedAt": "2020-01-01T00:00:00Z", **ended}}
        status = {"phase": "Failed", "containerStatuses": [{**container, "state": state}]}
        self._scene.merge(
            f"{self._scene.core('pods', pod['metadata']['name'])}/status", {"status": status}
        )

    def report(self, pod: str, phase: str, *conditions: dict[str, Any], **more: Any) -> None:
        """What a kubelet or the scheduler says of a pod."""
        status = {"phase": phase, "conditions": list(conditions), **more}
        self._scene.merge(f"{self._scene.core('pods', pod)}/status", {"status": status})

    def executors(self) -> dict[str, dict[str, Any]]:
        """By name."""
        selector = "magnetar.io/job=prices,app.kubernetes.io/component=executor"
        items = self._scene.plane.must(
            "GET", f"{self._scene.core('pods')}?labelSelector={selector}"
        )["items"]
        return {pod["metadata"]["name"]: pod for pod in items}

    async def says(self, reason: str, kind: str = "Degraded") -> str:
        """Wait for a condition that is True for this reason; its message."""

        def found() -> str | None:
            condition = self._scene.condition(self.path, kind)
            return (
                condition["message"]
                if (condition.get("status"), condition.get("reason")) == ("True", reason)
                else None
            )

        return str(await until(f"{kind} for {reason}", found))
