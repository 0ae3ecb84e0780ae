"""`python -m dev.soak --minutes 10 --seed 1`: three brokers and etcd, traffic of four clients,
faults at random, and a history check.

The clients are the official ones of Python, Java and Go, and our own. Owns: the run from the start
of the cluster to the verdict. Imports: the cluster of the tests with real clients, dev.soak
siblings. Invariants: exit code 0 only if no promise was broken, every process did as planned,
and all bundles were owned within two leases of the last fault; the brokers' logs are kept, with the
seed, when it is another; everything that was started is stopped.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dev.soak import life_traffic
from dev.soak.foreign import ForeignTraffic
from dev.soak.history import TopicHistory, violations
from dev.soak.life_traffic import LifeTraffic
from dev.soak.namespaces import create_namespace
from dev.soak.nemesis import Nemesis
from dev.soak.report import fault_table, progress_line, summary
from dev.soak.run_directory import parser_of, run_in_directory
from dev.soak.traffic import NAMESPACES, OfficialTraffic, OwnTraffic, plan_topics
from dev.testbed.cluster import LEASE_S, Cluster
from dev.testbed.rest import Admin

PROGRESS_S = 10.0
WARM_UP_S = 3.0
RATE = 10.0
LEASES = 2
SLACK_S = 4.0
"""On top of the leases: registering, recovering, and a machine that does other things as well."""
ANSWERED_S = 60.0
CAUGHT_UP_S = 120.0
POLL_S = 0.1
ENVIRONMENT = {"MAGNETAR_EXPIRY_CHECK_S": "2"}


def create_namespaces(cluster: Cluster) -> None:
    """The namespaces of the soak."""
    for name, deduplicated in NAMESPACES.items():
        create_namespace(
            cluster.brokers[cluster.entry], f"public/{name}", deduplicated=deduplicated
        )
    for name, policies in life_traffic.NAMESPACES.items():
        create_namespace(
            cluster.brokers[cluster.entry], f"public/{name}", deduplicated=True, **policies
        )


def create_partitioned(cluster: Cluster, topics: list[TopicHistory]) -> None:
    admin = Admin(cluster.brokers[cluster.entry])
    for topic in topics:
        if len(topic.partitions) > 1:
            admin.topic("PUT", topic.name, "partitions", len(topic.partitions))


def wait(what: str, reached: Callable[[], bool], timeout_s: float) -> str:
    """Wait until `reached`; "" or, after the time, a sentence."""
    deadline = time.monotonic() + timeout_s
    while not reached():
        if time.monotonic() > deadline:
            return f"{what}: not within {timeout_s:.0f} s"
        time.sleep(POLL_S)
    return ""


class Soak:
    """One run."""

    def __init__(
        self,
        directory: Path,
        minutes: float,
        seed: int,
        rate: float,
        languages: Sequence[str],
        only: Sequence[str],
    ) -> None:
        self._until_s, self._seed = minutes * 60, seed
        self.cluster = Cluster(
            directory / "cluster", gated=True, fronted=True, environment=ENVIRONMENT
        )
        self._directory = directory
        self._plans = plan_topics(languages)
        self.topics = [plan.history for plan in self._plans]
        self._rate, self._languages = rate, languages
        self.nemesis = Nemesis(self.cluster, [topic.name for topic in self.topics], seed, only)
        self._began = time.monotonic()
        self._over = threading.Event()
        self.problems: list[str] = []
        self._life: list[TopicHistory] = []

    @property
    def _all_topics(self) -> list[TopicHistory]:
        """Those of the incarnation of messages as well; their gaps say nothing, for they are
        slow by intent."""
        return [*self.topics, *self._life]

    def run(self) -> int:
        """The exit code."""
        self.cluster.start()
        create_namespaces(self.cluster)
        create_partitioned(self.cluster, self.topics)
        service_url = "pulsar://" + ",".join(
            broker.service_url.removeprefix("pulsar://") for broker in self.cluster.brokers.values()
        )
        official = OfficialTraffic(
            service_url, self._plans, self._rate, self._directory / "client.log"
        )
        own = OwnTraffic(service_url, self._plans, self._rate, self._seed)
        foreign = [
            ForeignTraffic(name, service_url, self._plans, self._rate, self._directory)
            for name in self._languages
        ]
        life = LifeTraffic(service_url, self._rate)
        self._life = life.topics
        traffics: list[OfficialTraffic | OwnTraffic | ForeignTraffic | LifeTraffic] = [
            official,
            own,
            *foreign,
            life,
        ]
        try:
            for traffic in (official, own):
                traffic.subscribe()
            official.publish()
            own.publish()
            for strange in foreign:
                strange.publish()
            life.start()
            print(
                f"{len(self.topics)} topics, {self._rate:g} messages a second each; logs in "
                f"{self._directory}",
                flush=True,
            )
            self._began = time.monotonic()
            threading.Thread(target=self._show_progress, daemon=True).start()
            self._hurt()
            self._judge(official, own, foreign, life)
        finally:
            self._over.set()
            for ended in reversed(traffics):
                ended.close()
        return self._verdict()

    def _show_progress(self) -> None:
        while not self._over.wait(PROGRESS_S):
            line = progress_line(
                time.monotonic() - self._began,
                self.topics,
                len(self.nemesis.faults),
                self.nemesis.under_way,
            )
            print(line, flush=True)

    def _hurt(self) -> None:
        time.sleep(WARM_UP_S)
        while time.monotonic() - self._began < self._until_s:
            try:
                self.nemesis.round()
            except AssertionError as error:
                self.problems.append(f"the cluster did not heal: {error}")
                break

    def _judge(
        self,
        official: OfficialTraffic,
        own: OwnTraffic,
        foreign: list[ForeignTraffic],
        life: LifeTraffic,
    ) -> None:
        """Heal, let everything arrive, read everything back."""
        bound_s = LEASES * LEASE_S + SLACK_S
        try:
            self.cluster.repair()
            print(
                "the last fault is over: all bundles owned after "
                f"{self.nemesis.wait_serving(bound_s):.2f} s",
                flush=True,
            )
        except AssertionError as error:
            self.problems.append(str(error))
        for traffic in (official, own, life):
            traffic.stop_publishing()
        for strange in foreign:
            strange.finish()
        self.problems.append(
            wait(
                "every send answered",
                lambda: not any(t.unanswered() for t in self._all_topics),
                ANSWERED_S,
            )
        )
        print("reading everything back", flush=True)
        for topic in self._all_topics:
            official.read_back(topic)
        self.problems.append(
            wait("every subscription has got everything", self._caught_up, CAUGHT_UP_S)
        )
        self.problems += life.finish()
        print(f"{len(life.letters)} dead letters, {life.expired} messages expired", flush=True)
        own.stop_consuming()
        own.look_again()
        self.problems += self.nemesis.problems

    def _caught_up(self) -> bool:
        for topic in self._all_topics:
            stored = {message for entries in topic.stored.values() for _, message in entries}
            if any(not stored <= subscription.distinct for subscription in topic.subscriptions):
                return False
        return True

    def _verdict(self) -> int:
        found = violations(self._all_topics)
        problems = [problem for problem in self.problems if problem]
        print(
            f"\nseed {self._seed}, {len(self.nemesis.faults)} faults, {self.nemesis.restarts} "
            "restarts of brokers"
        )
        print(
            "\n".join(
                [
                    *fault_table(self.nemesis.faults, self.topics),
                    *summary(self._all_topics, found, problems),
                ]
            )
        )
        acknowledged = sum(len(topic.receipts) for topic in self.topics)
        good = not found and not problems and acknowledged > 0 and self.nemesis.faults
        print("No promise was broken." if good else "FAILED", flush=True)
        return 0 if good else 1


def main() -> None:
    parser = parser_of(
        "Hurt a cluster at random under load, then check its history.", 10.0, "the faults"
    )
    parser.add_argument("--rate", type=float, default=RATE, help="messages a second per topic")
    parser.add_argument(
        "--languages", default="java,go", help="more official clients that publish; empty for none"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="FAULT",
        help="draw from these kinds of faults only",
    )
    chosen = parser.parse_args()
    languages = [language for language in chosen.languages.split(",") if language]

    def run(directory: Path) -> int:
        soak = Soak(
            directory, chosen.minutes, int(chosen.seed), chosen.rate, languages, chosen.only
        )
        try:
            return soak.run()
        finally:
            soak.cluster.stop()

    repeat = f"make soak MINUTES={chosen.minutes:g} SEED={chosen.seed}"
    sys.exit(run_in_directory("soak", chosen, run, repeat, "own-client.log"))


if __name__ == "__main__":
    main()
