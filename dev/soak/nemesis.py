"""What hurts the cluster: faults drawn from a seed, one or two at a time, and the time it takes to
heal from each.

Owns: the kinds of faults, `Nemesis` and its record of what it did. Imports: the cluster of the
tests with real clients. Invariants: the same seed draws the same faults in the same order (moments
and outcomes are the machine's); every fault ends, and the cluster is healthy again, before the next
one begins; two faults at once never hit the same process.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import quote

import grpc  # type: ignore[import-untyped]

from dev.server_process import ServerProcess
from dev.testbed.cluster import LEASE_S, Cluster, request, wait_for
from dev.testbed.etcd_admin import EtcdAdmin
from magnetar.metadata import keys

TWICE = 0.4
"""Share of rounds with two faults at once."""
CALM_S_MIN, CALM_S_MAX = 0.0, 3.0
HEAL_S_MAX = 60.0
"""Not a promise but the end of patience; the promise is judged at the end of the run."""
REST_TIMEOUT_S = 30.0
LOOKUP_TIMEOUT_S = 25.0
UNLOADS_MAX = 4
DROPS_MAX = 5
BUNDLES_MAX = 24


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that was done to the cluster. Times are those of the monotonic clock."""

    kind: str
    target: str
    began: float
    healthy: float
    """When the cluster was healthy again."""
    healed_s: float
    """How long that was after the fault, and the one beside it, were over."""
    outcomes: tuple[str, ...] = ()
    """What came of it where that differs from one time to the next."""


class Nemesis:
    """Hurts `cluster` with each call of `round`. `topics`: full names, for moves."""

    def __init__(
        self, cluster: Cluster, topics: list[str], seed: int, only: Collection[str] = ()
    ) -> None:
        """`only`: the kinds of faults to draw from, all if none is named. Raises KeyError for
        one that does not exist."""
        self._cluster, self._topics = cluster, topics
        self._chance = random.Random(f"{seed}/faults")
        self._lock = threading.Lock()
        self.faults: list[Fault] = []
        self.under_way: Counter[str] = Counter()
        self.restarts = 0
        self.problems: list[str] = []
        self._kinds: dict[str, tuple[int, Callable[[str, random.Random], tuple[str, ...]]]] = {
            "kill -9": (5, self._kill),
            "SIGTERM": (3, self._terminate),
            "pause > lease": (3, self._pause_long),
            "pause < lease": (2, self._pause_short),
            "kill -9 of all": (1, self._kill_all),
            "unload": (6, self._unload),
            "split": (1, self._split),
            "connections dropped": (4, self._drop),
            "lease revoked": (2, self._revoke),
            "etcd cut off one": (2, self._cut_one),
            "etcd restart": (3, self._restart_etcd),
            "etcd stopped": (2, self._stop_etcd),
            "etcd slow": (2, self._slow_etcd),
            "etcd unreachable": (2, self._cut_all),
            "etcd compacted": (2, self._compact),
            "etcd out of space": (1, self._use_up_space),
        }
        if only:
            self._kinds = {kind: self._kinds[kind] for kind in only}

    def round(self) -> None:
        """One or two faults, then wait for health. Raises AssertionError if it does not come."""
        chance = self._chance
        brokers, kinds, weights = (
            list(self._cluster.brokers),
            list(self._kinds),
            [weight for weight, _ in self._kinds.values()],
        )
        chosen = chance.choices(kinds, weights, k=2 if chance.random() < TWICE else 1)
        if all(kind.startswith("etcd") for kind in chosen) or "kill -9 of all" in chosen:
            # one thing at a time with etcd; and what hits all brokers needs no other
            chosen = chosen[:1]
        targets = chance.sample(brokers, len(chosen))
        seeds = [chance.random() for _ in chosen]
        calm_s = chance.uniform(CALM_S_MIN, CALM_S_MAX)
        with ThreadPoolExecutor(len(chosen)) as pool:
            done = list(pool.map(self._do, chosen, targets, seeds))
        self._heal_everything()
        healed_s = self._cluster.wait_healthy(HEAL_S_MAX)
        healthy = time.monotonic()
        self.faults += [
            Fault(kind, target, began, healthy, healed_s, outcomes)
            for kind, target, began, outcomes in done
        ]
        time.sleep(calm_s)

    def _do(self, kind: str, target: str, seed: float) -> tuple[str, str, float, tuple[str, ...]]:
        with self._lock:
            self.under_way[kind] += 1
        began = time.monotonic()
        try:
            outcomes = self._kinds[kind][1](target, random.Random(seed))
        finally:
            with self._lock:
                self.under_way -= Counter([kind])
        return kind, target, began, outcomes

    def _heal_everything(self) -> None:
        for gate in self._cluster.gates.values():
            gate.heal()

    # --- brokers ----------------------------------------------------------------------------------

    def _start(self, target: str) -> None:
        """As Kubernetes would: again and again, because a broker may exit while etcd is
        unavailable."""
        broker = self._cluster.brokers[target]
        for _ in range(5):
            try:
                broker.start()
                break
            except RuntimeError as error:
                if broker.running:
                    self.problems.append(f"{target} did not become ready: {str(error)[:300]}")
                    return
        with self._lock:
            self.restarts += 1

    def _kill(self, target: str, chance: random.Random) -> tuple[str, ...]:
        self._cluster.brokers[target].kill()
        time.sleep(chance.uniform(0.0, 2 * LEASE_S))
        self._start(target)
        return ()

    def _kill_all(self, _target: str, chance: random.Random) -> tuple[str, ...]:
        """A power failure of all brokers: everybody recovers from the volume alone."""
        for broker in self._cluster.brokers.values():
            broker.kill()
        time.sleep(chance.uniform(0.0, LEASE_S))
        with ThreadPoolExecutor(len(self._cluster.brokers)) as pool:
            list(pool.map(self._start, self._cluster.brokers))
        return ()

    def _terminate(self, target: str, chance: random.Random) -> tuple[str, ...]:
        return self._end_planned(self._cluster.brokers[target], chance, self._start)

    def _end_planned(
        self, process: ServerProcess, chance: random.Random, start: Callable[[str], None]
    ) -> tuple[str, ...]:
        """SIGTERM, on which it must exit with 0; `start` starts it again, by its name."""
        code = process.stop()
        time.sleep(chance.uniform(0.0, LEASE_S))
        start(process.name)
        if code != 0:
            self.problems.append(f"{process.name} exited with {code} after SIGTERM")
        return (f"exit {code}",)

    def _pause(self, target: str, seconds: float) -> tuple[str, ...]:
        self._cluster.brokers[target].pause(seconds)
        return ()

    def _pause_long(self, target: str, chance: random.Random) -> tuple[str, ...]:
        return self._pause(target, chance.uniform(LEASE_S + 0.5, 3 * LEASE_S))

    def _pause_short(self, target: str, chance: random.Random) -> tuple[str, ...]:
        return self._pause(target, chance.uniform(0.2, LEASE_S - 0.5))

    def _drop(self, target: str, chance: random.Random) -> tuple[str, ...]:
        """Connections of clients break, again and again."""
        times = chance.randint(1, DROPS_MAX)
        dropped = 0
        for _ in range(times):
            dropped += sum(front.drop() for front in self._cluster.fronts[target])
            time.sleep(chance.uniform(0.05, 1.0))
        return ("connections",) * dropped

    # --- bundles ----------------------------------------------------------------------------------

    def _owner(self, topic: str) -> str:
        """Name of the broker that serves the topic, by asking any that answers; "" if none does."""
        path = quote(topic.removeprefix("persistent://"))
        for broker in self._cluster.brokers.values():
            try:
                status, body = request(
                    "GET", f"{broker.http_url}/lookup/v2/topic/persistent/{path}", LOOKUP_TIMEOUT_S
                )
            except OSError:
                continue
            if status == 200:
                return next(
                    (
                        name
                        for name, other in self._cluster.brokers.items()
                        if other.service_url == body["nativeUrl"]
                    ),
                    "",
                )
        return ""

    def _unload(self, _target: str, chance: random.Random) -> tuple[str, ...]:
        """A wave of planned moves, some of them to a named broker."""
        outcomes = []
        most = min(UNLOADS_MAX, len(self._topics))
        for topic in chance.sample(self._topics, chance.randint(1, most)):
            destination = chance.choice(["", "", *self._cluster.brokers])
            owner = self._owner(topic)
            if not owner or owner == destination:
                outcomes.append("skipped")
                continue
            path = quote(topic.removeprefix("persistent://"))
            query = f"?destinationBroker={destination}" if destination else ""
            url = (
                f"{self._cluster.brokers[owner].http_url}/admin/v2/persistent/{path}/unload{query}"
            )
            try:
                status, _ = request("PUT", url, REST_TIMEOUT_S)
                outcomes.append(str(status))
            except OSError:
                outcomes.append("no answer")
        return tuple(outcomes)

    def _split(self, _target: str, chance: random.Random) -> tuple[str, ...]:
        """One bundle of the soak's namespaces becomes two, as long as there are not too many."""
        http = next(iter(self._cluster.brokers.values())).http_url
        spaces = sorted(
            {topic.removeprefix("persistent://").rpartition("/")[0] for topic in self._topics}
        )
        try:
            code, status = request("GET", f"{http}/magnetar/v1/status", REST_TIMEOUT_S)
            if code != 200:
                return ("no answer",)
            bundles = [
                row
                for row in status["bundles"]
                if row["bundle"].rpartition("/")[0] in spaces and row["state"] == "Owned"
            ]
            if not bundles or len(bundles) >= BUNDLES_MAX:
                return ("skipped",)
            row = chance.choice(bundles)
            owner = self._cluster.brokers[row["owner"].rpartition(".")[0]]
            code, _ = request(
                "PUT", f"{owner.http_url}/admin/v2/namespaces/{row['bundle']}/split", REST_TIMEOUT_S
            )
        except OSError:
            return ("no answer",)
        return (str(code),)

    # --- etcd -------------------------------------------------------------------------------------

    def _revoke(self, target: str, _chance: random.Random) -> tuple[str, ...]:
        """The lease of a broker ends under it."""
        with EtcdAdmin(self._cluster.etcd.endpoint) as etcd:
            try:
                leases = [
                    etcd.lease_of(keys.incarnation(claim)) for claim in self._cluster.claims(target)
                ]
                for lease in filter(None, leases):
                    etcd.revoke(lease)
            except grpc.RpcError:
                return ("no answer",)
        return ("revoked",) * sum(map(bool, leases))

    def _compact(self, target: str, chance: random.Random) -> tuple[str, ...]:
        """All history goes while one broker receives nothing."""
        gate = self._cluster.gates[target]
        gate.stall()
        time.sleep(chance.uniform(0.5, 2 * LEASE_S))
        with EtcdAdmin(self._cluster.etcd.endpoint) as etcd:
            etcd.compact()
        gate.heal()
        return ()

    def _use_up_space(self, _target: str, chance: random.Random) -> tuple[str, ...]:
        with EtcdAdmin(self._cluster.etcd.endpoint) as etcd:
            etcd.raise_space_alarm()
            time.sleep(chance.uniform(1.0, 3 * LEASE_S))
            etcd.end_space_alarm()
        return ()

    def _cut_one(self, target: str, chance: random.Random) -> tuple[str, ...]:
        gate = self._cluster.gates[target]
        silent = chance.random() < 0.5
        gate.stall() if silent else gate.cut()
        time.sleep(chance.uniform(0.5, 3 * LEASE_S))
        gate.heal()
        return ("silent" if silent else "refused",)

    def _cut_all(self, _target: str, chance: random.Random) -> tuple[str, ...]:
        silent, seconds = chance.random() < 0.5, chance.uniform(0.5, 3 * LEASE_S)
        for gate in self._cluster.gates.values():
            gate.stall() if silent else gate.cut()
        time.sleep(seconds)
        self._heal_everything()
        return ("silent" if silent else "refused",)

    def _restart_etcd(self, _target: str, chance: random.Random) -> tuple[str, ...]:
        seconds = chance.uniform(0.0, 2 * LEASE_S)
        self._cluster.etcd.kill()
        time.sleep(seconds)
        self._cluster.etcd.start()
        return ()

    def _stop_etcd(self, _target: str, chance: random.Random) -> tuple[str, ...]:
        seconds = chance.uniform(0.5, 2 * LEASE_S)
        self._cluster.etcd.freeze()
        try:
            time.sleep(seconds)
        finally:
            self._cluster.etcd.thaw()
        return ()

    def _slow_etcd(self, _target: str, chance: random.Random) -> tuple[str, ...]:
        delay_s = chance.uniform(0.1, 0.8)
        for gate in self._cluster.gates.values():
            gate.slow(delay_s)
        time.sleep(chance.uniform(2.0, 8.0))
        self._heal_everything()
        return ()

    def wait_serving(self, bound_s: float) -> float:
        """After the last fault: the seconds until all bundles are owned by live brokers. Raises
        AssertionError after `bound_s`."""
        return wait_for("every bundle owned", self._cluster.healthy, bound_s)
