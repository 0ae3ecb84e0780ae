"""Coordinators on a bad day, beside brokers whose participants keep the rules.

Owns: the scenario `run(seed)`. Coordinators and brokers crash (at any append above all), pause,
lose power, leases, store and network; coordinators are stopped and scaled to one and back, bundles
move and split. Clients begin transactions, add participants, end them in every way, leave some, and
ask about old ones. Then everything heals: within two leases all answer again, what was left times
out, and every outcome is asked for. Imports: the kernel, the cluster with coordinators, its clients
and scripted participants.
"""

from __future__ import annotations

from functools import partial

from magnetar.transactions.records import Participant
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.history import History
from tests.simulation.kernel.nemesis import Nemesis
from tests.simulation.scenarios.coordinator_clients import LONG_S, SHORT_S, audit, transact
from tests.simulation.scenarios.coordinator_cluster import COORDINATORS, LOOK_S, CoordinatorCluster
from tests.simulation.scenarios.coordinator_ledger import Ledger
from tests.simulation.scenarios.scripted_participants import scripted_participants
from tests.simulation.scenarios.tracer import FAULTS as TRACER_FAULTS
from tests.simulation.scenarios.tracer import LEASES, SLACK_S, homeless
from tests.simulation.scenarios.tracer_cluster import BROKERS, Evidence

TOPICS = tuple(f"persistent://public/default/topic-{number}" for number in range(4))
GONE = frozenset({Participant(TOPICS[3]), Participant(TOPICS[3], "subscription")})
PARTICIPANTS = tuple(
    Participant(topic, subscription) for topic in TOPICS for subscription in ("", "subscription")
)
CLIENTS = 6
TROUBLE_S = 16.0
YEAR_S = 365 * 86_400.0
TIMEOUTS_S = SHORT_S[1] + 8.0
"""By then what was left has timed out: time that no life saw pass does not count."""
AUDIT_S = 30.0
LEARNED_S = 15.0

FAULTS = TRACER_FAULTS.but(
    crash_every_s=8.0,
    pause_every_s=8.0,
    partition_every_s=12.0,
    store_partition_every_s=12.0,
    append_crash_probability=0.012,
    wall_skew_max_s=1.0,
    wall_jump_every_s=5.0,
    wall_jump_s=(-YEAR_S, YEAR_S),
    down_s=(0.1, 2.0),
    pause_s=(0.1, 5.0),
    partition_s=(0.1, 4.0),
    outage_s=(0.1, 2.0),
    power_loss_every_s=40.0,
)


def run(seed: int, faults: Faults | None = None) -> Ledger:
    """The scenario under one seed; raises on any violation."""
    return run_counted(seed, faults)[0]


def counted(seed: int) -> dict[str, int]:
    """The counts of a run, for those who only want to know that it passed and what it met."""
    return dict(run_counted(seed)[1].counts)


def run_counted(seed: int, faults: Faults | None = None) -> tuple[Ledger, Evidence]:
    """As `run`, with what the run went through."""
    ledger = Ledger(LONG_S, GONE)
    with CoordinatorCluster(seed, History(), faults or FAULTS) as cluster:
        scripted_participants(cluster, ledger, GONE)
        cluster.start_all()
        trouble_until_s = cluster.now + TROUBLE_S
        for number in range(CLIENTS):
            cluster.node(
                f"client-{number}", partial(transact, ledger, PARTICIPANTS), on_volume=False
            )
        Nemesis(cluster, (*BROKERS, *COORDINATORS)).start(until_s=trouble_until_s)
        cluster.script(cluster.scale_now_and_then(trouble_until_s - 1.0))
        cluster.script(cluster.outlive_leases(trouble_until_s))
        cluster.run(TROUBLE_S)
        cluster.settle()
        _finish(cluster, ledger)
        evidence = cluster.evidence
    evidence.counts.update(ledger.counts)
    return ledger, evidence


def _finish(cluster: CoordinatorCluster, ledger: Ledger) -> None:
    """From the moment everything heals: all answer again in time, what was left times out, every
    outcome is asked for and was carried out."""
    for number in range(CLIENTS):
        cluster.crash(f"client-{number}")
    deadline = cluster.now + LEASES * cluster.settings.lease_ttl_s + SLACK_S
    while found := [*cluster.unready(), *homeless(cluster)]:
        assert cluster.now < deadline, (
            f"{LEASES} leases and {SLACK_S} s after the last fault: {found}"
        )
        cluster.run(LOOK_S)
    cluster.run(TIMEOUTS_S)
    cluster.complete(audit(ledger, cluster.outsider("auditor"), AUDIT_S), 2 * AUDIT_S)
    deadline = cluster.now + LEARNED_S
    while cluster.now < deadline and any(ledger.missing(known) for known in ledger.known.values()):
        cluster.run(LOOK_S)
    ledger.check()
    cluster.check_endings()
    assert ledger.counts["answered COMMIT"] > 0, "nothing was committed: the run proves nothing"
