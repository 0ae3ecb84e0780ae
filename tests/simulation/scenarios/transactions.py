"""Transactions from end to end on a bad day: coordinators, topics and subscriptions, and the
client.

Owns: the scenario `run(seed)`. Movers consume (by subscriptions of all types), transform and
produce in transactions, some of it delayed or in chunks, some of it from a topic whose messages
expire, over three brokers and two coordinators that crash (at any append above all), pause, lose
power, leases, store and network, while bundles move and split, logs roll, chains are shortened,
topics are trimmed, and clients end silently and begin again. Then everything heals, every
transaction ends, all is read back, and the history of it is judged: no anomaly. Imports: the
kernel, the cluster with coordinators, the clients of transactions, dev.histories.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial

from dev.histories.anomalies import Anomaly, anomalies
from dev.histories.transactions import Fate, History
from magnetar.broker.replay import topic_transactions
from tests.simulation.kernel.checks import HistoryViolated, check_identity
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.history import History as PlainHistory
from tests.simulation.kernel.nemesis import Nemesis
from tests.simulation.kernel.world import Environment, Main
from tests.simulation.scenarios.coordinator_cluster import COORDINATORS, LOOK_S, CoordinatorCluster
from tests.simulation.scenarios.coordinators import FAULTS as COORDINATOR_FAULTS
from tests.simulation.scenarios.durable_clients import subscribe_once
from tests.simulation.scenarios.tracer import LEASES, SLACK_S, homeless
from tests.simulation.scenarios.tracer_clients import client_of, until_done
from tests.simulation.scenarios.tracer_cluster import BROKERS, WITHOUT_LIMIT, Evidence
from tests.simulation.scenarios.transaction_clients import (
    IN_CHUNKS,
    TIMEOUT_S,
    Reached,
    RecordingClient,
    Route,
    feed,
    feed_mixed,
    move_by_hand,
    move_once,
    read_all,
    read_along,
    read_cursor,
)

INPUT = "persistent://public/once/input"
OUTPUT = "persistent://public/kept/output"
SECOND = "persistent://public/kept/second"
HANDED = "persistent://public/trimmed/handed"
MIXED = "persistent://public/once/mixed"
MORTAL = "persistent://public/mortal/input"
TOPICS = (INPUT, OUTPUT, SECOND, HANDED, MIXED, MORTAL)
TRIMMED = (INPUT, HANDED, MIXED)
"""What every subscription of theirs is rid of goes at once."""
TTL_S = 5
NAMESPACES = {
    "once": {"deduplicationEnabled": True},
    "kept": {"retention_policies": WITHOUT_LIMIT},
    "trimmed": {},
    "mortal": {
        "deduplicationEnabled": True,
        "retention_policies": WITHOUT_LIMIT,
        "message_ttl_in_seconds": TTL_S,
    },
}
ROUTES = (
    Route(INPUT, "once", "Shared", (OUTPUT, SECOND)),
    Route(INPUT, "shared", "Shared", (SECOND, HANDED)),
    Route(INPUT, "cumulative", "Exclusive", (OUTPUT,)),
    Route(HANDED, "downstream", "Shared", (OUTPUT,)),
    Route(MIXED, "keyed", "Key_Shared", (OUTPUT, HANDED)),
    Route(MIXED, "failover", "Failover", (SECOND,)),
    Route(MORTAL, "mortal", "Shared", (SECOND,)),
)
BUNDLES = 2
HELD_MAX = 1000
INQUIRE_S = 2.0
EXPIRY_CHECK_S = 0.5
SUBSCRIBED_S = 20.0
CLIENT_ENDS_EVERY_S = (1.0, 6.0)
TROUBLE_S = 14.0
END_S = TIMEOUT_S[1] + 20.0
READ_BACK_S = 600.0
FAULTS = COORDINATOR_FAULTS.but(append_crash_probability=0.006, wall_jump_s=(-3.0, 3.0))
"""Clocks jump by seconds: a delayed message names the wall's time at which it is due, and a
broker whose clock is a year behind waits."""


class AnomaliesFound(AssertionError):
    """The history contradicts itself."""

    def __init__(self, found: list[Anomaly]) -> None:
        super().__init__("\n".join(map(str, [f"{len(found)} anomalies", *found])))


def run(seed: int, faults: Faults | None = None) -> History:
    """The scenario under one seed; raises on any anomaly."""
    return run_counted(seed, faults)[0]


def counted(seed: int) -> dict[str, int]:
    """The counts of a run, for those who only want to know that it passed and what it met."""
    return dict(run_counted(seed)[1].counts)


def run_counted(seed: int, faults: Faults | None = None) -> tuple[History, Evidence]:
    """As `run`, with what the run went through."""
    history = History()
    history.trimmed.update(TRIMMED)
    history.expiring.add(MORTAL)
    with CoordinatorCluster(
        seed,
        PlainHistory(),
        faults or FAULTS,
        txn_inquire_s=INQUIRE_S,
        expiry_check_s=EXPIRY_CHECK_S,
    ) as cluster:
        # As many as the default sizes of records let it be: here they are so small that a name of
        # the longest kind would not fit.
        cluster.patch.setattr(topic_transactions, "held_max_of", lambda _bytes: HELD_MAX)
        cluster.make_namespaces(NAMESPACES, BUNDLES)
        cluster.start_all()
        cluster.complete(_subscribe(cluster.outsider("subscriber")), SUBSCRIBED_S)
        trouble_until_s = cluster.now + TROUBLE_S
        mains = _mains(history)
        for name, main in mains.items():
            cluster.node(name, main, on_volume=False, restarts=True)
        Nemesis(cluster, (*BROKERS, *COORDINATORS)).start(until_s=trouble_until_s)
        cluster.script(cluster.scale_now_and_then(trouble_until_s - 1.0))
        cluster.script(cluster.outlive_leases(trouble_until_s))
        cluster.script(_end_clients(cluster, sorted(mains), trouble_until_s))
        cluster.run(TROUBLE_S)
        cluster.settle()
        cluster.keep_down(mains)
        _finish(cluster, history)
        evidence = cluster.evidence
    _count(evidence, history)
    return history, evidence


def _count(evidence: Evidence, history: History) -> None:
    """What a run must have met to prove anything."""
    for txn in history.transactions:
        evidence.counts[txn.fate.value] += 1
        evidence.counts["acknowledged, outcome unknown"] += txn.fate is Fate.UNKNOWN and any(
            acknowledged.confirmed_at is not None for acknowledged in txn.acknowledgements
        )
    evidence.counts["moved"] = sum(
        len(entries) for topic, entries in history.stored.items() if topic != INPUT
    )
    evidence.counts["output in chunks"] = sum(
        entry.value.endswith(IN_CHUNKS)
        for topic in (OUTPUT, SECOND)
        for entry in history.stored[topic]
    )
    acknowledged = Counter(
        ack.input.subscription
        for txn in history.transactions
        if txn.fate is Fate.COMMITTED
        for ack in txn.acknowledgements
        if ack.confirmed_at is not None
    )
    for route in ROUTES:
        evidence.counts[f"moved: {route.subscription}"] = acknowledged[route.subscription]
    kept = {*history.remaining[MORTAL, "mortal"]}
    left = {
        ack.input.value
        for txn in history.transactions
        for ack in txn.acknowledgements
        if ack.input.topic == MORTAL
    }
    evidence.counts["expired"] = len(
        {entry.value for entry in history.stored[MORTAL]} - kept - left
    )
    for topic in TRIMMED:
        received = {
            value
            for session in history.sessions
            if session.topic == topic
            for _, _, value in session.received
        }
        evidence.counts[f"trimmed: {topic}"] = len(
            received - {entry.value for entry in history.stored[topic]}
        )


def _mains(history: History) -> dict[str, Main]:
    """Every client is a process of its own, on a machine of its own."""
    reached = Reached()
    return {
        "feeder": partial(feed, history, INPUT),
        "publisher": partial(feed, history, OUTPUT),
        "reader": partial(read_along, history, (OUTPUT, SECOND)),
        "once-a": partial(move_once, history, ROUTES[0]),
        "once-b": partial(move_once, history, ROUTES[0]),
        "hand-a": partial(move_by_hand, history, ROUTES[1]),
        "hand-b": partial(move_by_hand, history, ROUTES[1]),
        "cumulative": partial(move_by_hand, history, ROUTES[2], reached=reached),
        "downstream": partial(move_once, history, ROUTES[3]),
        "mixed": partial(feed_mixed, history, MIXED),
        "keyed-a": partial(move_by_hand, history, ROUTES[4]),
        "keyed-b": partial(move_by_hand, history, ROUTES[4]),
        "failover-a": partial(move_by_hand, history, ROUTES[5]),
        "failover-b": partial(move_by_hand, history, ROUTES[5]),
        "mortal": partial(feed, history, MORTAL),
        "mortal-a": partial(move_by_hand, history, ROUTES[6]),
    }


async def _subscribe(environment: Environment) -> None:
    """Have every subscription there: what nobody has subscribed to may be trimmed unseen."""
    client = client_of(environment)
    for route in ROUTES:
        await until_done(
            environment,
            partial(subscribe_once, client, route.source, route.subscription, route.kind),
        )


async def _end_clients(cluster: CoordinatorCluster, names: Sequence[str], until_s: float) -> None:
    """One after the other, at any moment: what it has open is nobody's then, and what it has
    asked for is answered to nobody."""
    chance = random.Random(f"{cluster.seed}/clients")
    while True:
        await asyncio.sleep(chance.uniform(*CLIENT_ENDS_EVERY_S))
        if cluster.now >= until_s:
            return
        name = chance.choice(names)
        cluster.evidence.counts["client ended"] += cluster.alive(name)
        cluster.crash(name)


def _finish(cluster: CoordinatorCluster, history: History) -> None:
    """From the moment everything heals: all answer again in time, every transaction ends, all is
    read back and judged."""
    deadline = cluster.now + LEASES * cluster.settings.lease_ttl_s + SLACK_S
    late: list[Exception] = []  # raised last: what the history shows says why
    while found := [*cluster.unready(), *homeless(cluster)]:
        if cluster.now >= deadline:
            late.append(
                AssertionError(f"{LEASES} leases and {SLACK_S} s after the last fault: {found}")
            )
            break
        cluster.run(LOOK_S)
    try:
        # A number whose holder has ended in between reports nothing: what it has open is not over.
        cluster.run_until(lambda: not cluster.unready() and not cluster.open_transactions(), END_S)
    except TimeoutError as error:
        late.append(error)
    cluster.complete(_read_back(history, cluster.outsider("auditor")), READ_BACK_S)
    if shared := check_identity(cluster.history):
        raise HistoryViolated(shared)
    if contradictions := anomalies(history):
        raise AnomaliesFound(contradictions)
    if late:
        raise late[0]
    cluster.check_endings()


async def _read_back(history: History, environment: Environment) -> None:
    client = RecordingClient(history, environment)
    for topic in TOPICS:
        await read_all(history, client, topic, environment)
    await asyncio.gather(*(read_cursor(history, client, route, environment) for route in ROUTES))
