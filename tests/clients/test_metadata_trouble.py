"""Trouble between brokers and their metadata store: three broker processes, a real etcd, a proxy
between each broker and it.

Every test publishes and consumes all the while, with deduplication on; afterwards everything
acknowledged is read back where its receipt says, nothing is stored twice, and the bundles are owned
again. Times are printed. MAGNETAR_OUTAGE_S sets how long the store stays away (default 7 s, more
than two leases).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

import grpc  # type: ignore[import-untyped]
import pytest

from dev.testbed.cluster import LEASE_S, Cluster, wait_for
from dev.testbed.etcd_admin import EtcdAdmin
from dev.testbed.rest import Admin
from magnetar.metadata import keys
from tests.clients.load import Load

pytestmark = [pytest.mark.slow, pytest.mark.etcd]

TOPICS = 6
OUTAGE_S = float(os.environ.get("MAGNETAR_OUTAGE_S", "7"))
SLOW_S = 0.5


@pytest.fixture(scope="module")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("trouble"), gated=True)
    try:
        cluster.start()
        _deduplicate(cluster)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def cluster(running_cluster: Cluster) -> Cluster:
    """The cluster with all brokers running and healthy, whatever the test before did to it."""
    running_cluster.repair()
    return running_cluster


@pytest.fixture
def load(cluster: Cluster, request: pytest.FixtureRequest) -> Load:
    """Traffic on topics of this test alone, over all bundles."""
    return _load(cluster, request)


def _load(cluster: Cluster, request: pytest.FixtureRequest) -> Load:
    name = request.node.name.removeprefix("test_").replace("_", "-")
    return Load(
        cluster.service_url,
        [f"{name}-{number}" for number in range(TOPICS)],
        cluster.directory / f"client-{name}.log",
    )


def _deduplicate(cluster: Cluster) -> None:
    Admin(cluster.brokers[cluster.entry]).call(
        "POST", "namespaces/public/default/deduplication", True
    )


def _wait_for_traffic(load: Load) -> None:
    """Until every topic has a receipt from now on."""
    now = time.monotonic()
    wait_for("a receipt on every topic", lambda: not load.silent(now))


def _serve_for(seconds: float, load: Load) -> None:
    """Every topic gets receipts for so long, and once more when that is over."""
    since = now = time.monotonic()
    while now < since + seconds:
        now = time.monotonic()
        _wait_for_traffic(load)
        time.sleep(0.2)
    _report_gap(load, since)


def _report_gap(load: Load, since: float) -> None:
    print(
        f"  publish gap concurrently: {load.gap(load.topics, since, time.monotonic()):.2f} s",
        flush=True,
    )


def _begin(cluster: Cluster, load: Load) -> None:
    """Until every topic has receipts, and no bundle of theirs is about to move."""
    _wait_for_traffic(load)
    cluster.wait_at_rest()


def _victim(cluster: Cluster, load: Load) -> str:
    """A broker that serves some of the traffic and is not the one in the service URL of clients."""
    owners = [owner for topic in load.topics if (owner := cluster.owner(topic)) != cluster.entry]
    if owners:
        return owners[0]
    victim = cluster.unload(load.topics[0])
    cluster.wait_at_rest()
    return victim


def _incarnations(cluster: Cluster, *without: str) -> dict[str, str]:
    return {name: cluster.incarnation(name) for name in cluster.brokers if name not in without}


def _heal(cluster: Cluster, load: Load, what: str, heal: Callable[[], None], since: float) -> None:
    """End the trouble; the cluster heals by itself, and moves work again."""
    heal()
    print(f"  {what}: healthy again after {cluster.wait_healthy():.2f} s", end="", flush=True)
    _wait_for_traffic(load)
    print(
        ", longest publish gap since it began "
        f"{load.gap(load.topics, since, time.monotonic()):.2f} s",
        flush=True,
    )
    cluster.unload(load.topics[0])
    cluster.wait_at_rest()
    _wait_for_traffic(load)


def _for_all_gates(cluster: Cluster, act: str) -> None:
    for gate in cluster.gates.values():
        getattr(gate, act)()


def test_owners_serve_while_etcd_is_unreachable(cluster: Cluster, load: Load) -> None:
    """Connections refused for longer than two leases, then silent ones for as long: nobody stops
    serving, nobody loses a claim."""
    with load:
        _begin(cluster, load)
        incarnations = _incarnations(cluster)
        for trouble in ("cut", "stall"):
            since = time.monotonic()
            _for_all_gates(cluster, trouble)
            _serve_for(OUTAGE_S, load)
            _heal(
                cluster,
                load,
                f"etcd unreachable for {OUTAGE_S} s ({trouble})",
                lambda: _for_all_gates(cluster, "heal"),
                since,
            )
        assert _incarnations(cluster) == incarnations, "nobody had a reason to end"
    load.verify()


def test_a_broker_that_starts_during_an_outage_takes_nothing_from_those_who_come_back(
    cluster: Cluster, load: Load
) -> None:
    """It waits for the store, may be the first to reach it again, and sees nobody else then."""
    with load:
        _begin(cluster, load)
        victim = _victim(cluster, load)
        elsewhere = {topic for topic in load.topics if cluster.owner(topic) != victim}
        others, since = _incarnations(cluster, victim), time.monotonic()
        _for_all_gates(cluster, "cut")
        broker = cluster.brokers[victim]
        broker.kill()
        before = broker.log_path.stat().st_size
        broker.start(wait=False)
        wait_for(
            "the broker waits for the store",
            lambda: b"broker.waits_for_store" in broker.log_path.read_bytes()[before:],
        )
        time.sleep(max(0.0, since + OUTAGE_S - time.monotonic()))  # every lease has ended
        now = time.monotonic()
        wait_for("receipts elsewhere", lambda: not elsewhere.intersection(load.silent(now)))
        _heal(
            cluster,
            load,
            "a broker killed and started concurrently",
            lambda: _for_all_gates(cluster, "heal"),
            since,
        )
        assert _incarnations(cluster, victim) == others, "nobody else had a reason to end"
    load.verify()


def test_an_owner_that_alone_is_cut_off_is_replaced(cluster: Cluster, load: Load) -> None:
    """The others take its bundles over and fence it; it comes back as a new incarnation when it
    reaches the store again."""
    with load:
        _begin(cluster, load)
        victim = _victim(cluster, load)
        before, since = cluster.incarnation(victim), time.monotonic()
        cluster.gates[victim].stall()
        wait_for("its bundles taken over", lambda: not cluster.owned_by(victim))
        wait_for("its claim is gone", lambda: before not in cluster.claims(victim))
        cut = time.monotonic()
        wait_for("every topic writable while it is cut off", lambda: not load.silent(cut))
        _report_gap(load, since)
        _heal(cluster, load, "one owner cut off", cluster.gates[victim].heal, since)
        assert cluster.incarnation(victim) != before
    load.verify()


def test_etcd_answers_late(cluster: Cluster, load: Load) -> None:
    """Each answer half a second late: leases live, nobody ends, moves are slower but work and
    cost no send."""
    with load:
        _begin(cluster, load)
        incarnations, since = _incarnations(cluster), time.monotonic()
        for gate in cluster.gates.values():
            gate.slow(SLOW_S)
        _serve_for(LEASE_S * 2, load)
        moved = time.monotonic()
        cluster.unload(load.topics[1])
        _wait_for_traffic(load)
        print(
            f"  a move with etcd {SLOW_S} s late: publish gap "
            f"{load.gap(load.topics[1:2], moved, time.monotonic()):.2f} s"
        )
        _heal(
            cluster,
            load,
            f"answers {SLOW_S} s late",
            lambda: _for_all_gates(cluster, "heal"),
            since,
        )
        assert _incarnations(cluster) == incarnations
    load.verify()


@pytest.mark.parametrize("everyone", [False, True], ids=["one", "all"])
def test_lost_leases(cluster: Cluster, load: Load, everyone: bool) -> None:
    """Leases are revoked under live owners, the leader's with them: owners register again or are
    fenced, never both serve."""
    with load:
        _begin(cluster, load)
        victims = list(cluster.brokers) if everyone else [_victim(cluster, load)]
        since = time.monotonic()
        with EtcdAdmin(cluster.etcd.endpoint) as etcd:
            leases = [
                etcd.lease_of(keys.incarnation(cluster.incarnation(name))) for name in victims
            ]
            assert all(leases)
            for lease in leases:
                etcd.revoke(lease)

            def kept_again(name: str) -> bool:
                claims = cluster.claims(name)
                return bool(claims) and all(
                    etcd.lease_of(keys.incarnation(claim)) not in (0, *leases) for claim in claims
                )

            wait_for("a new lease for every broker", lambda: all(map(kept_again, victims)))
        _heal(cluster, load, f"{len(victims)} leases revoked", lambda: None, since)
    load.verify()


def test_history_compacted_under_the_watches_of_a_broker(cluster: Cluster, load: Load) -> None:
    """While a broker receives nothing, records are written and deleted and all history goes: it
    lists again and knows exactly what is there."""
    victim = next(iter(cluster.brokers))
    assert victim != cluster.entry
    admin, late = Admin(cluster.brokers[cluster.entry]), Admin(cluster.brokers[victim])
    admin.call("PUT", "namespaces/public/doomed", {})
    wait_for(
        "the namespace is known", lambda: "public/doomed" in late.call("GET", "namespaces/public")
    )
    with load:
        _begin(cluster, load)
        since = time.monotonic()
        cluster.gates[victim].stall()
        admin.call("DELETE", "namespaces/public/doomed")
        admin.call("PUT", "namespaces/public/born", {})
        admin.call("PUT", "persistent/public/default/split-in-four/partitions", 4)
        with EtcdAdmin(cluster.etcd.endpoint) as etcd:
            print(f"  compacted up to revision {etcd.compact()}")
        # Shorter than the lease: the incarnation continues, and its views with it.
        _heal(cluster, load, "history compacted", cluster.gates[victim].heal, since)
        wait_for(
            "the late broker knows what was born",
            lambda: "public/born" in late.call("GET", "namespaces/public"),
        )
        assert "public/doomed" not in late.call("GET", "namespaces/public")
        wait_for(
            "the late broker knows the partitions",
            lambda: (
                late.call("GET", "persistent/public/default/split-in-four/partitions")["partitions"]
                == 4
            ),
        )
        wait_for(
            "both know the same",
            lambda: late.call("GET", "namespaces/public") == admin.call("GET", "namespaces/public"),
        )
    admin.call("DELETE", "namespaces/public/born")
    load.verify()


def test_etcd_out_of_space(cluster: Cluster, load: Load) -> None:
    """Every write is refused: owners serve on under their claims, moves wait, a broker that
    starts waits; afterwards all is made good."""
    with load, EtcdAdmin(cluster.etcd.endpoint) as etcd:
        _begin(cluster, load)
        victim = _victim(cluster, load)
        elsewhere = {topic for topic in load.topics if cluster.owner(topic) != victim}
        others, since = _incarnations(cluster, victim), time.monotonic()
        etcd.raise_space_alarm()
        try:
            _serve_for(LEASE_S * 1.5, load)
            cluster.brokers[victim].kill()
            cluster.brokers[victim].start(wait=False)
            # long enough for a lease to end, and for any process that could give up to do so
            time.sleep(LEASE_S + 1)
            assert cluster.brokers[victim].running, "a broker that cannot register yet waits"
            now = time.monotonic()
            wait_for("receipts elsewhere", lambda: not elsewhere.intersection(load.silent(now)))
        finally:
            _heal(cluster, load, "etcd out of space", etcd.end_space_alarm, since)
        assert _incarnations(cluster, victim) == others, "nobody else had a reason to end"
    load.verify()


def test_all_brokers_stand_still_for_longer_than_the_lease(cluster: Cluster, load: Load) -> None:
    """A suspended machine: the lease is counted by a clock that went on concurrently, so all wake
    up without one, and heal."""
    with load:
        _begin(cluster, load)
        since = time.monotonic()
        for broker in cluster.brokers.values():
            broker.signal(signal.SIGSTOP)
        time.sleep(LEASE_S + 1.5)
        try:
            with EtcdAdmin(cluster.etcd.endpoint) as etcd:
                names = [keys.incarnation(cluster.incarnation(name)) for name in cluster.brokers]
                wait_for("etcd has ended every lease", lambda: not any(map(etcd.lease_of, names)))
        finally:
            for broker in cluster.brokers.values():
                broker.signal(signal.SIGCONT)
        _heal(cluster, load, "all brokers suspended", lambda: None, since)
    load.verify()


def test_leaders_of_etcd_change(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    """Three members: leadership is handed on twice, then the leader is killed, then it comes
    back: nobody ends, nothing waits for long."""
    cluster = Cluster(tmp_path_factory.mktemp("leaders"), members=3)
    try:
        cluster.start()
        _deduplicate(cluster)
        load = _load(cluster, request)
        with load:
            _begin(cluster, load)
            incarnations, since = _incarnations(cluster), time.monotonic()
            for _ in range(2):
                _hand_leadership_on(cluster)
                _serve_for(1.0, load)
            leader = _the_leader(cluster)
            cluster.members[leader].kill()
            _serve_for(LEASE_S, load)
            cluster.unload(load.topics[0])
            _heal(cluster, load, "leaders of etcd changed", cluster.members[leader].start, since)
            assert _incarnations(cluster) == incarnations
        load.verify()
    finally:
        cluster.stop()


def _leader(cluster: Cluster) -> int | None:
    """Index of the member that leads, None while nobody does."""
    for number, member in enumerate(cluster.members):
        with EtcdAdmin(member.endpoint) as etcd:
            identity, leader = etcd.member_and_leader()
        if identity == leader:
            return number
    return None


def _the_leader(cluster: Cluster) -> int:
    """Index of the member that leads, as soon as one does."""
    found: list[int | None] = [None]

    def known() -> bool:
        found[0] = _leader(cluster)
        return found[0] is not None

    wait_for("a member leads", known)
    assert found[0] is not None
    return found[0]


def _hand_leadership_on(cluster: Cluster) -> None:
    """To another member; where they elect one of their own accord concurrently, that will do."""
    before = _the_leader(cluster)
    with EtcdAdmin(cluster.members[(before + 1) % len(cluster.members)].endpoint) as etcd:
        successor, _ = etcd.member_and_leader()

    def handed_on() -> bool:
        leader = _leader(cluster)
        if leader == before:
            with (
                EtcdAdmin(cluster.members[before].endpoint) as etcd,
                contextlib.suppress(grpc.RpcError),
            ):
                # refused if it has ceased to lead or its successor is behind
                etcd.hand_leadership_to(successor)
        return leader not in (None, before)

    wait_for("another member leads", handed_on)
