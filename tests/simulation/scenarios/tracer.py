"""Three real brokers and their clients on a bad day.

Owns: the scenario `run(seed)`. Brokers crash, pause, lose power, leases, store and network;
concurrently bundles are moved, brokers are stopped gracefully and cordoned, files roll, chains are
shortened, topics are created. Then everything heals: within two leases (and some slack) every topic
must take a message again (invariant 9); all topics are read back and invariants 1 to 4 are checked,
with receipts by incarnation. Imports: the kernel, the tracer's cluster and clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from magnetar.metadata.records import BundleState
from tests.simulation.kernel.checks import HistoryViolated
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.history import History
from tests.simulation.kernel.nemesis import Nemesis
from tests.simulation.kernel.world import Environment, Main
from tests.simulation.scenarios.stored import missing_files
from tests.simulation.scenarios.tracer_clients import (
    Reading,
    Seeker,
    client_of,
    consume,
    create_topics,
    drain_subscription,
    produce,
    publish_one,
    read_whole,
)
from tests.simulation.scenarios.tracer_cluster import BROKERS, Cluster, Evidence

TOPICS = tuple(f"persistent://public/default/topic-{number}" for number in range(3))
KINDS = ("Exclusive", "Shared", "Exclusive")
TROUBLE_S = 16.0
LEASES = 2
SLACK_S = 4.0
LOOK_S = 0.25
READ_BACK_S = 600.0
"""Long enough for every topic to be found unreadable, or every subscription to be found stuck."""

FAULTS = Faults.all().but(
    crash_every_s=9.0,
    pause_every_s=6.0,
    partition_every_s=9.0,
    store_partition_every_s=9.0,
    store_outage_every_s=25.0,
    lease_loss_every_s=12.0,
    reset_every_s=6.0,
    power_loss_every_s=30.0,
    wall_jump_every_s=20.0,
    down_s=(0.1, 4.0),
    pause_s=(0.1, 8.0),
    partition_s=(0.1, 6.0),
    outage_s=(0.1, 4.0),
    half_open_s=(1.0, 8.0),
)


Script = Callable[[Cluster, Environment], Coroutine[Any, Any, None]]


def run(seed: int, faults: Faults | None = None) -> History:
    """The scenario under one seed; raises on any violation."""
    return run_counted(seed, faults)[0]


def run_counted(
    seed: int, faults: Faults | None = None, *, slots: bool = False
) -> tuple[History, Evidence]:
    """As `run`, with what the run went through. `slots`: on a volume of objects."""
    history, reading, seeker = History(), Reading(), Seeker(TOPICS[2])
    with Cluster(seed, history, faults or FAULTS, exercise=True, slots=slots) as cluster:
        cluster.topics += TOPICS
        cluster.start_brokers()
        start_clients(cluster, reading, seeker)
        Nemesis(cluster, BROKERS).start(until_s=TROUBLE_S)
        cluster.script(cluster.cordon_now_and_then(TROUBLE_S - 1.0))
        cluster.run(TROUBLE_S)
        cluster.settle()
        finish(cluster, probe, read_back, partial(judge, history, reading))
        evidence = cluster.evidence
    evidence.counts["seek confirmed"] = seeker.confirmed
    evidence.counts["message"] = history.acknowledged
    evidence.counts["ack confirmed"] = sum(bool(ack.completed) for ack in history.acks)
    evidence.counts["reading"] = sum(len(seen) for _, seen in reading.runs)
    evidence.counts["late topic"] = len(cluster.topics) - len(TOPICS)
    return history, evidence


def counted(seed: int) -> dict[str, int]:
    """The counts of a run, for those who only want to know that it passed and what it met."""
    return dict(run_counted(seed)[1].counts)


def counted_on_slots(seed: int) -> dict[str, int]:
    """As `counted`, on a volume of objects."""
    return dict(run_counted(seed, slots=True)[1].counts)


def judge(history: History, reading: Reading) -> None:
    """Invariants 1 to 4, and what readers saw on the way. Raises AssertionError."""
    history.check(deduplicated=False)
    reading.check(history)


def start_clients(cluster: Cluster, reading: Reading, seeker: Seeker) -> None:
    """Every client is a process of its own, on a machine of its own."""
    history = cluster.history
    mains: dict[str, Main] = {
        f"producer-{number}": partial(produce, history, topic)
        for number, topic in enumerate(TOPICS)
    }
    mains |= {
        f"consumer-{number}": partial(consume, history, topic, KINDS[number])
        for number, topic in enumerate(TOPICS)
    }
    mains |= {
        "creator": partial(create_topics, history, cluster.topics),
        "seeker": seeker.run,
        "reader": partial(reading.run, cluster.topics),
    }
    for name, main in mains.items():
        cluster.node(name, main, on_volume=False)


def finish(
    cluster: Cluster,
    probe: Script,
    read_back: Script,
    judge: Callable[[], None],
    *,
    in_flight_s: float = 0.0,
) -> None:
    """From the moment everything heals: service is back in time, everything is read back, every
    subscription gets what it lacks.

    Before it is read back, what dead clients sent has `in_flight_s` to arrive. `judge` raises what
    the history shows. What took too long is raised last: it is a broken promise of its own (9), but
    what has broken it is seldom time, and the checks of the others say what has.
    """
    for name in cluster.names():
        if name not in BROKERS:
            cluster.crash(name)
    environment = cluster.outsider("prober")
    deadline = cluster.now + LEASES * cluster.settings.lease_ttl_s + SLACK_S
    late: list[Exception] = []
    try:
        cluster.complete(probe(cluster, environment), deadline - cluster.now)
    except TimeoutError as error:
        late.append(error)
    while found := homeless(cluster):
        if cluster.now >= deadline:
            late.append(
                AssertionError(f"{LEASES} leases and {SLACK_S} s after the last fault: {found}")
            )
            break
        cluster.run(LOOK_S)
    if in_flight_s:
        cluster.run(in_flight_s)
    if not cluster.on_slots and (
        missing := cluster.complete(missing_files(cluster, environment), READ_BACK_S)
    ):
        raise HistoryViolated(missing)
    cluster.complete(read_back(cluster, environment), READ_BACK_S)
    judge()
    if late:
        raise late[0]
    unexplained = cluster.evidence.unexplained()
    assert not unexplained, f"brokers ended themselves without a reason: {unexplained}"
    assert cluster.history.acknowledged > 0, "nothing was acknowledged: the run proves nothing"


async def probe(cluster: Cluster, environment: Environment) -> None:
    """One message to every topic, by a client that nobody knows yet."""
    client = client_of(environment)
    await asyncio.gather(
        *(
            publish_one(cluster.history, client, topic, "prober", environment)
            for topic in cluster.topics
        )
    )


def homeless(cluster: Cluster) -> list[str]:
    """What is not as it should be in a healthy cluster: brokers that are not registered, bundles
    without an owner whose claim stands."""
    registered = cluster.registered()
    found = [
        name
        for name in BROKERS
        if not any(incarnation.startswith(f"{name}.") for incarnation in registered)
    ]
    found += [
        incarnation for incarnation in registered if not cluster.stored(f"claims/{incarnation}")
    ]
    for name, record in cluster.bundle_records().items():
        if record.state is BundleState.DELETED:
            continue  # it was split or merged: others have its topics
        if record.state is not BundleState.OWNED or record.incarnation not in registered:
            found.append(f"{name}: {record.state} by {record.incarnation}")
    return found


async def read_back(cluster: Cluster, environment: Environment) -> None:
    """Everything that a reader finds, topic by topic, into the history; then what the
    subscriptions still owe."""
    client, history = client_of(environment), cluster.history
    for topic in cluster.topics:
        history.final_log(topic, await read_whole(environment, client, topic))
    for topic, kind in zip(TOPICS, KINDS, strict=True):
        await drain_subscription(history, client, topic, kind, environment)
