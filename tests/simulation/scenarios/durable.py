"""The whole feature set of a durable broker on a bad day.

Owns: the scenario `run(seed)`. The same faults, moves and stops as in the tracer, over topics that
each need another promise: deduplication (no message twice, whatever is resent), producers that take
over by force (none goes on after its successor), Key_Shared and Failover (order of first
deliveries), delayed delivery (late, never lost), and a topic without retention (what is gone has
been acknowledged). Imports: the kernel, the tracer's cluster and clients, the clients of this
scenario. Invariants: after the last fault every topic takes a message within two leases, every
subscription gets what it lacks, and invariants 1 to 4 hold.
"""

from __future__ import annotations

import asyncio
from functools import partial

from tests.simulation.kernel.checks import HistoryViolated, Violation, duplicates
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.history import History
from tests.simulation.kernel.nemesis import Nemesis
from tests.simulation.kernel.world import Environment, Main
from tests.simulation.scenarios.durable_clients import (
    Sharing,
    key_of,
    number_of,
    produce_by_force,
    produce_delayed,
    produce_keyed,
    produce_once,
    produce_subscribed,
    publish_exclusively,
    subscribe_once,
)
from tests.simulation.scenarios.tracer import FAULTS as TRACER_FAULTS
from tests.simulation.scenarios.tracer import TROUBLE_S, finish
from tests.simulation.scenarios.tracer_clients import (
    client_of,
    drain_subscription,
    publish_one,
    read_whole,
    until_done,
)
from tests.simulation.scenarios.tracer_cluster import BROKERS, WITHOUT_LIMIT, Cluster, Evidence

ONCE = "persistent://public/once/topic"
FORCED = "persistent://public/kept/forced"
KEYED = "persistent://public/kept/keyed"
STANDBY = "persistent://public/kept/standby"
DELAYED = "persistent://public/kept/delayed"
TRIMMED = "persistent://public/trimmed/topic"
TOPICS = (ONCE, FORCED, KEYED, STANDBY, DELAYED, TRIMMED)
NAMESPACES = {
    "once": {"deduplicationEnabled": True, "retention_policies": WITHOUT_LIMIT},
    "kept": {"retention_policies": WITHOUT_LIMIT},
    "trimmed": {},
}
BUNDLES = 2
IN_FLIGHT_S = 3.0
"""What dead clients sent may still arrive, and is read back, too."""
CONSUMERS = 2
FAULTS = TRACER_FAULTS.but(wall_jump_s=(-3.0, 60.0))
"""A clock that goes back far holds up what is delayed for longer than a run lasts."""
WORN = FAULTS.but(read_error_probability=0.1)
"""On a disk that does not return everything at the first attempt."""
FULL = FAULTS.but(
    reserve_bytes=240 << 10,
    short_write_probability=0.05,
    disk_full_every_s=4.0,
    disk_full_slack_bytes=60 << 10,
    disk_hang_every_s=6.0,
)
"""On a disk that others fill up, and that hangs: six of the brokers' log files are kept for
then."""


def run(seed: int, faults: Faults | None = None) -> History:
    """The scenario under one seed; raises on any violation."""
    return run_counted(seed, faults)[0]


def counted(seed: int) -> dict[str, int]:
    """The counts of a run, for those who only want to know that it passed and what it met."""
    return dict(run_counted(seed)[1].counts)


def worn(seed: int) -> dict[str, int]:
    """As `counted`, on a worn disk."""
    return dict(run_counted(seed, WORN)[1].counts)


def full(seed: int) -> dict[str, int]:
    """As `counted`, on a disk that is full now and then, and hangs."""
    return dict(run_counted(seed, FULL)[1].counts)


def run_counted(seed: int, faults: Faults | None = None) -> tuple[History, Evidence]:
    """As `run`, with what the run went through."""
    history = History()
    shares = [
        Sharing(
            history,
            KEYED,
            "Key_Shared",
            lambda payload: f"{payload.split(b' ')[0].decode()} {key_of(number_of(payload))}",
        ),
        Sharing(history, STANDBY, "Failover", lambda _payload: ""),
    ]
    with Cluster(seed, history, faults or FAULTS, exercise=True) as cluster:
        cluster.make_namespaces(NAMESPACES, BUNDLES)
        cluster.topics += TOPICS
        history.trimmed.add(TRIMMED)
        cluster.start_brokers()
        start_clients(cluster, shares)
        Nemesis(cluster, BROKERS).start(until_s=TROUBLE_S)
        cluster.script(cluster.cordon_now_and_then(TROUBLE_S - 1.0))
        cluster.run(TROUBLE_S)
        cluster.settle()
        finish(cluster, probe, read_back, partial(judge, history), in_flight_s=IN_FLIGHT_S)
        evidence = cluster.evidence
    count(evidence, history, shares)
    return history, evidence


def start_clients(cluster: Cluster, shares: list[Sharing]) -> None:
    """Every client is a process of its own, on a machine of its own."""
    history = cluster.history
    mains: dict[str, Main] = {
        "once": partial(produce_once, history, ONCE),
        "force-a": partial(produce_by_force, history, FORCED),
        "force-b": partial(produce_by_force, history, FORCED),
        "keyed": partial(produce_keyed, history, KEYED),
        "standby": partial(produce_keyed, history, STANDBY),
        "delayed": partial(produce_delayed, history, DELAYED),
        "trimmed": partial(produce_subscribed, history, TRIMMED),
    }
    shares += [
        Sharing(history, DELAYED, "Shared", None),
        Sharing(history, TRIMMED, "Shared", None, acknowledge_all=True),
    ]
    for share in shares:
        for number in range(CONSUMERS):
            mains[f"{share.kind}-{share.topic.rpartition('/')[2]}-{number}"] = share.consume
    for name, main in mains.items():
        cluster.node(name, main, on_volume=False)


async def probe(cluster: Cluster, environment: Environment) -> None:
    """One message to every topic, by a client that nobody knows yet."""
    client, history = client_of(environment), cluster.history
    # What nobody has subscribed to may be trimmed unseen.
    await until_done(environment, partial(subscribe_once, client, TRIMMED))
    plain = [topic for topic in TOPICS if topic != FORCED]
    probes = [publish_one(history, client, topic, "prober", environment) for topic in plain]
    await asyncio.gather(
        publish_exclusively(history, client, FORCED, "prober", environment), *probes
    )


async def read_back(cluster: Cluster, environment: Environment) -> None:
    """What the subscriptions still owe; everything that a reader finds, topic by topic, into the
    history."""
    client, history = client_of(environment), cluster.history
    for topic in TOPICS:
        history.final_log(topic, await read_whole(environment, client, topic))
    for topic, kind in (
        (KEYED, "Key_Shared"),
        (STANDBY, "Failover"),
        (DELAYED, "Shared"),
        (TRIMMED, "Shared"),
    ):
        await drain_subscription(history, client, topic, kind, environment)


def judge(history: History) -> None:
    """Invariants 1 to 4, and what these topics promise beyond them. Raises HistoryViolated."""
    history.check(deduplicated=False)
    found = [violation for violation in duplicates(history) if violation.topic == ONCE]
    found += interleaved(history)
    if found:
        raise HistoryViolated(found)


def interleaved(history: History) -> list[Violation]:
    """3: of producers that take over by force, each one's messages lie together: a fenced
    producer writes nothing more."""
    found: list[Violation] = []
    ended: set[str] = set()
    current = ""
    for entry in history.logs[FORCED]:
        if entry.producer == current:
            continue
        if entry.producer in ended:
            found.append(
                Violation(
                    3,
                    FORCED,
                    f"{entry.producer} #{entry.sequence} is in the log after its successor "
                    f"{current}",
                )
            )
        ended.add(current)
        current = entry.producer
    return found


def count(evidence: Evidence, history: History, shares: list[Sharing]) -> None:
    """What a run must have met to prove anything."""
    counts = evidence.counts
    counts["message"] = history.acknowledged
    counts["ack confirmed"] = sum(bool(ack.completed) for ack in history.acks)
    counts["duplicate refused"] = sum(
        send.outcome.value == "confirmed" and send.position is None for send in history.sends
    )
    counts["taken by force"] = len(
        {send.producer for send in history.sends if send.topic == FORCED and send.completed}
    )
    for share in shares:
        counts[f"delivered {share.kind} {share.topic.rpartition('/')[2]}"] = share.deliveries
    counts["trimmed"] = sum(
        send.outcome.value == "confirmed" for send in history.sends if send.topic == TRIMMED
    ) - len(history.logs[TRIMMED])
