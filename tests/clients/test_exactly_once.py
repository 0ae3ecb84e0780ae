"""Exactly once with real processes: applications in transactions while brokers and transaction
coordinators are killed with SIGKILL.

MAGNETAR_TRANSACTION_KILLS sets how many die under the checked applications (default 3); `make
soak-txn` is the long run, with more kinds of faults.
"""

from __future__ import annotations

import os
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.histories.transactions import Fate
from dev.soak.killing import KilledCluster
from dev.soak.transaction_traffic import TransactionTraffic
from dev.testbed.cluster import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.etcd, pytest.mark.timeout(1800)]

NAMESPACE = "public/exactly-once"
KILLS = int(os.environ.get("MAGNETAR_TRANSACTION_KILLS", "3"))
COMMITTED_BETWEEN = 15
SETTLE_S = 240.0
EXAMPLE = Path(__file__).parents[2] / "examples" / "exactly_once.py"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KilledCluster]:
    with KilledCluster(tmp_path_factory.mktemp("killed"), NAMESPACE, brokers=2) as cluster:
        yield cluster


def test_no_kill_breaks_a_promise_of_transactions(killed: KilledCluster) -> None:
    """Shared, Key_Shared and cumulative movers, aborts, time-outs, ends that are asked for
    again: the history has no anomaly."""
    traffic = TransactionTraffic(killed.service_url, NAMESPACE, seed=1, feed_rate=15)
    try:
        traffic.start()
        while killed.kills < KILLS:
            reached = traffic.committed() + COMMITTED_BETWEEN
            wait_for("transactions commit", lambda reached=reached: traffic.committed() >= reached)  # type: ignore[misc]
            # a broker and a coordinator at once, then one of them
            killed.kill(2 if killed.kills % 3 == 0 else 1)
        reached = traffic.committed() + COMMITTED_BETWEEN
        wait_for("transactions commit after the last kill", lambda: traffic.committed() >= reached)
        found = traffic.settle(SETTLE_S)
    finally:
        traffic.close()
    assert [str(anomaly) for anomaly in found] == [], killed.log_dump()
    fates = {txn.fate for txn in traffic.history.transactions}
    assert {Fate.COMMITTED, Fate.ABORTED} <= fates
    assert all(traffic.history.stored[topic] for topic in traffic.topics), (
        "something was moved to everywhere"
    )


async def test_the_example_moves_every_message_once_through_kills(killed: KilledCluster) -> None:
    """A broker and a coordinator die while examples/exactly_once.py works."""
    main = runpy.run_path(str(EXAMPLE))["main"]
    before = killed.kills
    assert await main(killed.service_url, NAMESPACE, 3000, 3, killed.kill), killed.log_dump()
    assert killed.kills - before == 2
