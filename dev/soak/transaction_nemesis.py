"""What hurts brokers and transaction coordinators under transactions.

Owns: the kinds of faults of coordinators, and which of the brokers' are drawn beside them. Imports:
nemesis, coordinators. Invariants: those of `nemesis`; a coordinator that was hurt answers again
before the next round begins.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection

from dev.soak.coordinators import Coordinators
from dev.soak.nemesis import DROPS_MAX, Nemesis
from dev.testbed.cluster import LEASE_S, Cluster

BROKER_KINDS = {
    "kill -9": 8,
    "kill -9 of all": 1,
    "SIGTERM": 2,
    "pause > lease": 2,
    "pause < lease": 1,
    "unload": 3,
    "split": 1,
    "connections dropped": 3,
}
COORDINATOR = "coordinator: "


class TransactionNemesis(Nemesis):
    """As `Nemesis`, for a cluster with coordinators."""

    def __init__(
        self,
        cluster: Cluster,
        coordinators: Coordinators,
        topics: list[str],
        seed: int,
        only: Collection[str] = (),
    ) -> None:
        super().__init__(cluster, topics, seed)
        self._coordinators = coordinators
        acts: dict[str, tuple[int, Callable[[str, random.Random], tuple[str, ...]]]] = {
            "kill -9": (6, self._kill_coordinator),
            "SIGTERM": (2, self._terminate_coordinator),
            "pause > lease": (2, self._pause_coordinator_long),
            "pause < lease": (1, self._pause_coordinator_short),
            "connections dropped": (3, self._drop_coordinator),
        }
        self._kinds = {
            kind: (weight, self._kinds[kind][1]) for kind, weight in BROKER_KINDS.items()
        }
        for kind, (weight, act) in acts.items():
            self._kinds[COORDINATOR + kind] = weight, self._at_one(act)
        if only:
            self._kinds = {kind: self._kinds[kind] for kind in only}

    @property
    def kills(self) -> int:
        """Processes that were killed with SIGKILL so far."""
        each = {
            "kill -9": 1,
            COORDINATOR + "kill -9": 1,
            "kill -9 of all": len(self._cluster.brokers),
        }
        return sum(each.get(fault.kind, 0) for fault in self.faults)

    def _at_one(
        self, act: Callable[[str, random.Random], tuple[str, ...]]
    ) -> Callable[[str, random.Random], tuple[str, ...]]:
        """The round names a broker; the coordinator is drawn here, and is nobody else's
        concurrently."""

        def hurt(_broker: str, chance: random.Random) -> tuple[str, ...]:
            name = chance.choice(list(self._coordinators.processes))
            with self._coordinators.locks[name]:
                return act(name, chance)

        return hurt

    def _start_coordinator(self, name: str) -> None:
        try:
            self._coordinators.processes[name].start()
        except RuntimeError as error:
            self.problems.append(f"{name} did not become ready: {str(error)[:300]}")

    def _kill_coordinator(self, name: str, chance: random.Random) -> tuple[str, ...]:
        self._coordinators.processes[name].kill()
        time.sleep(chance.uniform(0.0, LEASE_S))
        self._start_coordinator(name)
        return ()

    def _terminate_coordinator(self, name: str, chance: random.Random) -> tuple[str, ...]:
        return self._end_planned(
            self._coordinators.processes[name], chance, self._start_coordinator
        )

    def _stop_for(self, name: str, seconds: float) -> tuple[str, ...]:
        process = self._coordinators.processes[name]
        process.pause(seconds)
        process.wait_ready()
        return ()

    def _pause_coordinator_long(self, name: str, chance: random.Random) -> tuple[str, ...]:
        return self._stop_for(name, chance.uniform(LEASE_S + 0.5, 3 * LEASE_S))

    def _pause_coordinator_short(self, name: str, chance: random.Random) -> tuple[str, ...]:
        return self._stop_for(name, chance.uniform(0.2, LEASE_S - 0.5))

    def _drop_coordinator(self, name: str, chance: random.Random) -> tuple[str, ...]:
        dropped = 0
        for _ in range(chance.randint(1, DROPS_MAX)):
            dropped += self._coordinators.fronts[name].drop()
            time.sleep(chance.uniform(0.05, 1.0))
        return ("connections",) * dropped
