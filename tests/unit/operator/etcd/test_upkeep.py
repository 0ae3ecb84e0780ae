"""When a managed etcd is compacted, defragmented and let write again."""

from __future__ import annotations

from dataclasses import replace

from magnetar_operator.conditions import Reason
from magnetar_operator.etcd.figures import Figures, Sighting
from magnetar_operator.etcd.membership import Member, Voice
from magnetar_operator.etcd.upkeep import Upkeep, plan_upkeep

MIB = 1 << 20
QUOTA = 1024 * MIB


def seen(
    sizes: dict[int, tuple[int, int]], alarms: tuple[tuple[int, str], ...] = (), leader: int = 0
) -> Sighting:
    """Sizes in MiB: of the file, and in use."""
    figures = {
        ordinal: Figures(
            Voice(10 + ordinal, 10 + leader, 1),
            1,
            "3.6.5",
            77,
            size * MIB,
            used * MIB,
            learner=False,
        )
        for ordinal, (size, used) in sizes.items()
    }
    return Sighting(tuple(Member(10 + ordinal, ordinal) for ordinal in sizes), figures, alarms)


def test_only_a_file_that_is_mostly_free_is_defragmented_the_leaders_last() -> None:
    assert plan_upkeep(seen({0: (200, 150), 1: (60, 1)}), QUOTA, at_rest=True) == Upkeep()
    wasteful = seen({0: (200, 50), 1: (200, 50), 2: (200, 50)}, leader=2)
    assert plan_upkeep(wasteful, QUOTA, at_rest=True) == Upkeep(defragment=1)
    assert plan_upkeep(
        seen({0: (50, 50), 1: (50, 50), 2: (200, 50)}, leader=2), QUOTA, at_rest=True
    ) == Upkeep(defragment=2)
    assert plan_upkeep(wasteful, QUOTA, at_rest=False) == Upkeep()


def test_a_full_etcd_is_compacted_then_defragmented_then_let_write() -> None:
    alarm = ((10, "NOSPACE"),)
    full = plan_upkeep(seen({0: (1024, 100)}, alarm), QUOTA, at_rest=False)
    assert (full.compact_to, full.defragment, full.end_alarms, full.reason) == (
        77,
        0,
        (),
        Reason.ETCD_NO_SPACE,
    )
    roomy = plan_upkeep(seen({0: (100, 100)}, alarm), QUOTA, at_rest=False)
    assert (roomy.defragment, roomy.end_alarms) == (None, alarm)
    stuck = plan_upkeep(seen({0: (1024, 1020)}, alarm), QUOTA, at_rest=False)
    assert (stuck.defragment, stuck.end_alarms) == (None, ())
    assert "1020 MiB of them in use" in stuck.message


def test_corruption_is_reported_and_nothing_is_touched() -> None:
    plan = plan_upkeep(seen({0: (200, 1), 1: (200, 1)}, ((11, "CORRUPT"),)), QUOTA, at_rest=True)
    assert (plan.is_idle, plan.reason) == (True, Reason.ETCD_CORRUPT)
    assert "member 1 " in plan.message


def test_nothing_is_decided_without_a_quorum() -> None:
    silent = replace(seen({0: (1024, 1)}, ((10, "NOSPACE"),)), members=None)
    assert plan_upkeep(silent, QUOTA, at_rest=True) == Upkeep()
