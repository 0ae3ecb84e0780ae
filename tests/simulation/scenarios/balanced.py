"""Three real brokers under a skewed load that the leader balances and owners split, on a bad day.

Owns: the scenario `run(seed)`: the tracer's, with producers that send most of the load to one
topic, a planner that decides twice a second and limits at which bundles are split and merged; brokers crash at
every step of a decision, a move, a split and a merge. Imports: the kernel, the tracer. Invariants: those of
the tracer.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

from magnetar.balance.settings import BALANCE
from tests.simulation.kernel.history import History
from tests.simulation.kernel.nemesis import Nemesis
from tests.simulation.scenarios.tracer import (
    FAULTS,
    TOPICS,
    TROUBLE_S,
    finish,
    judge,
    probe,
    read_back,
    start_clients,
)
from tests.simulation.scenarios.tracer_clients import Reading, Seeker, produce
from tests.simulation.scenarios.tracer_cluster import BROKERS, Cluster, Evidence, small

HEAVY = 4
"""Producers of the hot topic beyond the first."""
LIVELY = replace(
    BALANCE,
    plan_interval_s=0.5,
    bundle_cost=0.5,
    grace_minutes=0.02,
    split_minutes=0.02,
    split_hits=0,
    bundle_rate_max=2,
    topics_max=2,
    merge_hits=0,
    merge_share=0.5,
    merge_bundles_min=1,
)
STEPS = (
    "leader.elected",
    "balance.decided",
    "bundle.move_requested",
    "bundle.released",
    "acquired without a fence",
    "takeover",
    "balance.split",
    "bundle.split",
    "balance.merge",
    "bundle.merged",
)
CRASH_SHARE = 0.08


def run(seed: int) -> History:
    """The scenario under one seed; raises on any violation."""
    return run_counted(seed)[0]


def run_counted(seed: int) -> tuple[History, Evidence]:
    """The scenario under one seed, with what it went through; raises on any violation."""
    history, reading, seeker = History(), Reading(), Seeker(TOPICS[2])
    settings = small(load_report_s=0.4, balance=LIVELY)
    with Cluster(seed, history, FAULTS, settings=settings, exercise=True) as cluster:
        cluster.topics += TOPICS
        cluster.start_brokers()
        start_clients(cluster, reading, seeker)
        for number in range(HEAVY):
            cluster.node(f"heavy-{number}", partial(produce, history, TOPICS[0]), on_volume=False)
        cluster.evidence.watch = partial(_crash_now_and_then, cluster, random.Random(f"{seed}/x"))
        Nemesis(cluster, BROKERS).start(until_s=TROUBLE_S)
        cluster.script(cluster.cordon_now_and_then(TROUBLE_S - 1.0))
        cluster.run(TROUBLE_S)
        cluster.evidence.watch = None
        cluster.settle()
        finish(cluster, probe, read_back, partial(judge, history, reading))
        evidence = cluster.evidence
    evidence.counts["message"] = history.acknowledged
    return history, evidence


def _crash_now_and_then(cluster: Cluster, chance: random.Random, event: str) -> None:
    """Kill a broker at the moment of a step."""
    if event in STEPS and chance.random() < CRASH_SHARE:
        cluster.evidence.counts[f"crash at {event}"] += 1
        cluster.at(cluster.now, cluster.crash, chance.choice(BROKERS))


def counted(seed: int) -> dict[str, int]:
    """The counts of a run."""
    return dict(run_counted(seed)[1].counts)
