"""The store that is rebuilt from logs recovers everything that was acknowledged, after every
history; with an old backup, and without."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.metadata import keys
from magnetar.metadata.backup import Backup
from magnetar.metadata.records import BundleRecord, BundleState, ManifestPointer, NamespaceRecord
from magnetar.names import BundleName, bundles_of
from magnetar.storage.restore.rebuilding import RebuiltStore, rebuild
from tests.unit.storage.restore.model_cluster import WHOLE, ModelCluster

KINDS = [
    "take",
    "take",
    "publish",
    "publish",
    "flush",
    "die",
    "checkpoint",
    "lost-checkpoint",
    "release",
    "lost-release",
    "split",
    "lost-split",
    "merge",
    "merge",
    "lost-merge",
    "collect",
    "copy",
]
ACTS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 1 << 20), st.integers(0, 1)), max_size=60
)


def play(acts: list[tuple[str, int, int]]) -> ModelCluster:
    cluster = ModelCluster()
    for act, choice, number in acts:
        bundles = sorted(
            name
            for name, record in cluster.bundles.items()
            if record.state is not BundleState.DELETED
        ) or [WHOLE]
        bundle = bundles[choice % len(bundles)]
        match act:
            case "take":
                cluster.take(bundle, number)
            case "publish":
                cluster.publish(bundle, choice * 7919)
            case "flush":
                cluster.flush(cluster.incarnations[cluster.live(number)])
            case "die":
                cluster.start(number)
            case "checkpoint" | "lost-checkpoint":
                cluster.checkpoint(bundle, act == "checkpoint")
            case "release" | "lost-release":
                cluster.release(bundle, number, act == "release")
                for broker in range(2):
                    if not cluster.live(broker):
                        cluster.start(broker)
            case "split" | "lost-split":
                cluster.split(bundle, act == "split")
            case "merge" | "lost-merge":
                cluster.merge(bundle, act == "merge")
            case "collect":
                cluster.collect()
            case "copy":
                cluster.copy()
        for broker in range(2):
            if not cluster.live(broker):
                cluster.start(broker)
    return cluster


def check(cluster: ModelCluster, backup: Backup | None) -> RebuiltStore:
    """Rebuild, and recover everything from what comes out."""
    result = rebuild(cluster.facts(), backup, 1, 1)
    assert result.problems == []
    records = {
        key.removeprefix(keys.BUNDLES): value
        for key, value in result.items.items()
        if key.startswith(keys.BUNDLES)
    }
    found: set[tuple[int, int]] = set()
    living = []
    for name, value in records.items():
        record = BundleRecord.decode(value)
        if record.state is BundleState.DELETED:
            continue
        assert record.state is BundleState.FREE
        # the next owner has a higher epoch: the restore number was raised
        assert record.epoch <= cluster.revision
        found |= cluster.recovered(name, record)
        living.append(BundleName.parse(name))
        needed = record.checkpoint
        if needed is not None:
            pointer = ManifestPointer.decode(result.items[keys.manifest(BundleName.parse(name))])
            assert any(fact.object == pointer.object for fact in cluster.manifests[name])
    assert found >= cluster.acknowledged, sorted(cluster.acknowledged - found)
    if living:
        boundaries = NamespaceRecord.decode(result.items["namespaces/t/n"]).boundaries
        tiled = bundles_of(living[0].namespace, boundaries)
        assert set(living) <= set(tiled), (living, tiled)
    return result


@settings(max_examples=100, deadline=None)
@given(ACTS)
def test_storage_alone_gives_back_what_was_acknowledged(acts: list[tuple[str, int, int]]) -> None:
    check(play(acts), None)


@settings(max_examples=100, deadline=None)
@given(ACTS)
def test_an_old_backup_takes_nothing_away(acts: list[tuple[str, int, int]]) -> None:
    cluster = play(acts)
    check(cluster, cluster.backup)


@settings(max_examples=50, deadline=None)
@given(ACTS)
def test_the_newest_backup_adds_nothing(acts: list[tuple[str, int, int]]) -> None:
    """As when the store was put back from a snapshot of just now."""
    cluster = play(acts)
    cluster.copy()
    check(cluster, cluster.backup)


@settings(max_examples=30, deadline=None)
@given(ACTS, ACTS)
def test_a_store_can_be_rebuilt_again_and_again(
    first: list[tuple[str, int, int]], further: list[tuple[str, int, int]]
) -> None:
    """Once more before anything has happened, the result is the same."""
    cluster = play([*first, *further])
    assert check(cluster, None).items == check(cluster, None).items
