"""The leader acts on load: what it moves, when, and what it leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from magnetar.metadata import keys
from magnetar.metadata.records import (
    ISOLATION_POLICIES,
    BundleRecord,
    BundleState,
    CordonRecord,
    DocumentsRecord,
)
from magnetar.names import CLUSTER_NAME, BundleName, NamespaceName
from tests.support.balanced_pair import Stage, play
from tests.support.brokers import LIVELY, STILL
from tests.support.polling import until


def test_load_decides_not_number(tmp_path: Path) -> None:
    """One hot bundle against seven cold ones: the hot one goes, in one move."""

    async def script(stage: Stage) -> None:
        await stage.stop_leaders()
        first, second = stage.brokers
        await stage.bundles(8, first)
        await stage.report(first, [7000, *[1000] * 7])
        await stage.patrol(first)
        await until(lambda: stage.on(second) == [0])
        await stage.patrol(first)
        await stage.patrol(first)
        assert stage.on(first) == [1, 2, 3, 4, 5, 6, 7]

    play(tmp_path, script)


def test_moves_go_in_waves(tmp_path: Path) -> None:
    """No more are under way than the setting says; the others follow."""

    async def script(stage: Stage) -> None:
        await stage.stop_leaders()
        first, second = stage.brokers
        await stage.bundles(8, first)
        await stage.report(first, [1000] * 8)
        await stage.patrol(first)
        await until(lambda: len(stage.on(second)) == 2)
        await stage.patrol(first)
        await until(lambda: len(stage.on(second)) == 4)

    play(tmp_path, script, balance=replace(LIVELY, moves_parallel=2))


def test_what_is_pinned_or_cordoned_takes_no_part(tmp_path: Path) -> None:
    """A cordoned broker gets nothing, and keeps what it has until it drains."""

    async def script(stage: Stage) -> None:
        await stage.stop_leaders()
        first, second = stage.brokers
        await stage.bundles(4, first)
        await stage.report(first, [1000] * 4)
        cordon = CordonRecord(drain=False, reason="test")
        await stage.cluster.store.put(keys.cordon("second"), cordon.encode())
        await until(lambda: first.views.cordons.get("second") is not None)
        await stage.patrol(first)
        await stage.patrol(first)
        assert len(stage.on(first)) == 4
        await stage.cluster.store.delete(keys.cordon("second"))
        await until(lambda: first.views.cordons.get("second") is None)
        for name in stage.names[:3]:
            until_ms = first.context.clock.wall_ms() + 3_600_000
            await first.ownership.pin(name, until_ms)
        await stage.patrol(first)
        await until(lambda: stage.on(second) == [3])
        assert stage.on(first) == [0, 1, 2]

    play(tmp_path, script)


def test_balancing_can_be_turned_off_while_brokers_run(tmp_path: Path) -> None:
    """By the stored setting: nothing moves until it is on again."""

    async def script(stage: Stage) -> None:
        await stage.stop_leaders()
        first, second = stage.brokers
        await stage.bundles(4, first)
        await stage.report(first, [1000] * 4)

        async def store(enabled: str) -> None:
            stored = DocumentsRecord({"loadBalancerEnabled": enabled})
            await stage.cluster.store.put(keys.documents("brokerConfiguration"), stored.encode())
            await until(lambda: first.ownership.balance.current.enabled is (enabled == "true"))

        await store("false")
        await stage.patrol(first)
        await stage.patrol(first)
        assert len(stage.on(first)) == 4
        await store("true")
        await stage.patrol(first)
        await until(lambda: len(stage.on(second)) == 2)

    play(tmp_path, script)


def test_the_next_leader_decides_again(tmp_path: Path) -> None:
    """What the former one had decided and not begun is not carried out; it is decided again."""

    async def script(stage: Stage) -> None:
        await stage.stop_leaders()
        first, second = stage.brokers
        await stage.bundles(8, first)
        await stage.report(first, [1000] * 8)
        await stage.patrol(first)
        await until(lambda: len(stage.on(second)) == 1)
        for _ in range(6):
            await stage.patrol(second)
        await until(lambda: len(stage.on(second)) == 4)
        await stage.patrol(first)  # its waiting moves are no longer what they were
        assert len(stage.on(first)) == 4

    play(tmp_path, script, balance=replace(LIVELY, moves_parallel=1))


def test_isolation_moves_bundles_and_keeps_them(tmp_path: Path) -> None:
    """Bundles of an isolated namespace go to its primaries, whatever the load."""

    async def script(stage: Stage) -> None:
        await stage.stop_leaders()
        first, second = stage.brokers
        await stage.bundles(4, first)
        await stage.report(first, [1000] * 4)
        policy = {"namespaces": ["public/many"], "primary": ["second"], "secondary": []}
        await stage.cluster.store.put(
            keys.documents(f"{ISOLATION_POLICIES}/{CLUSTER_NAME}"),
            DocumentsRecord({"only-second": policy}).encode(),
        )
        await until(lambda: bool(first.views.documents.items))
        await stage.patrol(first)
        await until(lambda: len(stage.on(second)) == 4)
        placed = await first.ownership.assigner.placer.choose(stage.names[0], keep=False)
        assert placed == second.incarnation

    play(tmp_path, script)


def test_shedding_off_moves_nothing_but_orphans_are_placed(tmp_path: Path) -> None:
    async def script(stage: Stage) -> None:
        first, second = stage.brokers
        await stage.bundles(4, first)
        await stage.report(first, [1000] * 4)
        lost = BundleRecord(BundleState.OWNED, 2, "nobody.1", reason="test")
        await stage.cluster.store.put(
            keys.bundle(BundleName(NamespaceName("public", "default"), 0, 0x40000000)),
            lost.encode(),
        )
        await until(
            lambda: any(
                name.startswith("public/default/0x00000000") for name in second.ownership.owned
            )
        )
        assert len(stage.on(first)) == 4

    play(tmp_path, script, balance=STILL)
