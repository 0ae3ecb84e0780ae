"""Event-time watermarks on a bad day.

Owns: the scenario `run(seed)`. Three brokers and two coordinators crash, pause, lose power, leases,
store and network while bundles move and split, logs roll and chains are shortened, over topics
whose producers assert event times: one topic is kept, one is trimmed behind its subscription, one
gets transactions as well, between whose messages and ends other ones are asserted. Imports: the
kernel, the cluster with coordinators, the clients of this scenario. Invariants: no consumer gets a
message older than a watermark that its subscription was sent before it subscribed, or that it was
sent itself (invariant 7); once everything is acknowledged the watermark is the least of what the
producers asserted last.
"""

from __future__ import annotations

from functools import partial

from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.history import History
from tests.simulation.kernel.nemesis import Nemesis
from tests.simulation.kernel.world import Environment, Main
from tests.simulation.scenarios.coordinator_cluster import COORDINATORS, LOOK_S, CoordinatorCluster
from tests.simulation.scenarios.tracer import LEASES, SLACK_S, homeless
from tests.simulation.scenarios.tracer_clients import client_of
from tests.simulation.scenarios.tracer_cluster import BROKERS, WITHOUT_LIMIT, Evidence
from tests.simulation.scenarios.transactions import END_S, FAULTS, INQUIRE_S, READ_BACK_S, TROUBLE_S
from tests.simulation.scenarios.watermark_clients import (
    IDLE_S,
    PRODUCERS,
    Marked,
    produce_in_transactions,
    produce_marked,
    settle_marks,
)

KEPT = "persistent://public/marked/topic"
MIXED = "persistent://public/marked/mixed"
TRIMMED = "persistent://public/short/topic"
POLICY = {"enabled": True, "idleTimeout": 0, "snapshotInterval": 100}
NAMESPACES = {
    "marked": {"retention_policies": WITHOUT_LIMIT, "watermarks": POLICY},
    "short": {"watermarks": POLICY},
}
BUNDLES = 2
RESTING = Faults.none().but(
    crash_every_s=4.0, append_crash_probability=0.006, down_s=(0.1, 0.5), reset_every_s=4.0
)
"""A producer that is cut off for as long as one that rests would be late, and not know it."""


def run(seed: int, faults: Faults | None = None) -> History:
    """The scenario under one seed; raises on any violation."""
    return run_counted(seed, faults)[0]


def counted(seed: int) -> dict[str, int]:
    """The counts of a run, for those who only want to know that it passed and what it met."""
    return dict(run_counted(seed)[1].counts)


def seeking(seed: int) -> dict[str, int]:
    """As `counted`; the consumer of the kept topic goes back to its beginning now and then."""
    return dict(run_counted(seed, seeks=True)[1].counts)


def resting(seed: int) -> dict[str, int]:
    """As `counted`; producers of the trimmed topic rest until they count as idle."""
    return dict(run_counted(seed, RESTING, rests=True)[1].counts)


def run_counted(
    seed: int, faults: Faults | None = None, *, seeks: bool = False, rests: bool = False
) -> tuple[History, Evidence]:
    """As `run`, with what the run went through."""
    history = History()
    marked = [
        Marked(KEPT, "Exclusive", seeks=seeks),
        Marked(TRIMMED, "Shared", rests=rests),
        Marked(MIXED, "Failover"),
    ]
    with CoordinatorCluster(seed, history, faults or FAULTS, txn_inquire_s=INQUIRE_S) as cluster:
        idle = {"short": {"watermarks": {**POLICY, "idleTimeout": IDLE_S}}} if rests else {}
        cluster.make_namespaces({**NAMESPACES, **idle}, BUNDLES)
        cluster.topics += [KEPT, TRIMMED, MIXED]
        history.trimmed.add(TRIMMED)
        cluster.start_all()
        trouble_until_s = cluster.now + TROUBLE_S
        mains = _mains(marked)
        for name, main in mains.items():
            cluster.node(name, main, on_volume=False, restarts=True)
        Nemesis(cluster, (*BROKERS, *COORDINATORS)).start(until_s=trouble_until_s)
        cluster.script(cluster.scale_now_and_then(trouble_until_s - 1.0))
        cluster.script(cluster.outlive_leases(trouble_until_s))
        cluster.run(TROUBLE_S)
        cluster.settle()
        cluster.keep_down(mains)
        _finish(cluster, marked)
        evidence = cluster.evidence
    for found in marked:
        kind = found.kind
        evidence.counts[f"message {kind}"] = found.messages
        evidence.counts[f"watermark {kind}"] = found.watermarks
        evidence.counts[f"reset {kind}"] = found.resets
        evidence.counts[f"committed {kind}"] = found.committed
        evidence.counts[f"sought {kind}"] = found.sought
        evidence.counts[f"rested {kind}"] = found.rested
    return history, evidence


def _mains(marked: list[Marked]) -> dict[str, Main]:
    """Every client is a process of its own, on a machine of its own."""
    mains: dict[str, Main] = {}
    for found in marked:
        produce = produce_in_transactions if found.topic == MIXED else produce_marked
        for number in range(PRODUCERS):
            mains[f"producer-{found.kind}-{number}"] = partial(produce, found, number)
        for number in range(1 if found.kind == "Exclusive" else 2):
            mains[f"consumer-{found.kind}-{number}"] = found.consume
    return mains


def _finish(cluster: CoordinatorCluster, marked: list[Marked]) -> None:
    """From the moment everything heals: service is back in time, every transaction ends, and then
    the watermarks move again."""
    deadline = cluster.now + LEASES * cluster.settings.lease_ttl_s + SLACK_S
    late: list[Exception] = []
    while found := [*cluster.unready(), *homeless(cluster)]:
        if cluster.now >= deadline:
            late.append(
                AssertionError(f"{LEASES} leases and {SLACK_S} s after the last fault: {found}")
            )
            break
        cluster.run(LOOK_S)
    try:
        cluster.run_until(lambda: not cluster.unready() and not cluster.open_transactions(), END_S)
    except TimeoutError as error:
        late.append(error)
    cluster.complete(_read_back(marked, cluster.outsider("auditor")), READ_BACK_S)
    if late:
        raise late[0]
    unexplained = cluster.evidence.unexplained()
    assert not unexplained, f"brokers ended themselves without a reason: {unexplained}"


async def _read_back(marked: list[Marked], environment: Environment) -> None:
    """Everything is acknowledged, and the producers assert once more."""
    for found in marked:
        await settle_marks(found, client_of(environment), environment)
