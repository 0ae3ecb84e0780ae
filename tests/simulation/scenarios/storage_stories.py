"""Scripted trouble for storage: what is rewritten and deleted beside the traffic, interrupted
wherever it can be.

Owns: the stories, each a function of a seed, on the cluster of `stories`. Imports: stories.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from magnetar.broker.bundles.leader import Leader
from magnetar.metadata.records import BundleRecord, BundleState
from magnetar.metadata.store import Compare, Operation, Put, TxnResult
from tests.simulation.scenarios.story import BIG_BYTES, PATIENCE_S, Story
from tests.simulation.scenarios.tracer_cluster import small

ROUNDS = 5
COLLECTED_S = 5.0
"""Long enough for the leader's collector to complete what a dead incarnation left, and to give
up what nobody needs."""
STEPS_MAX = 30


def _interrupted(seed: int, begins: Callable[[str, str], bool], interrupt: str) -> dict[str, int]:
    """Publish, wait until the owner does what `begins` recognises by (kind, details) of a trace
    event, and some steps later stop it.

    Again and again, another number of steps each time; at the end everything acknowledged is there,
    and files still go.
    """
    chance = random.Random(f"{seed}/interrupt")
    with Story(seed) as story:
        cluster = story.cluster
        record = cluster.loop.record
        target, left = "", -1

        def watching(node: str, kind: str, *details: object) -> None:
            nonlocal target, left
            record(node, kind, *details)
            if node != target:
                return
            if left < 0 and begins(kind, " ".join(map(str, details))):
                left = chance.randrange(STEPS_MAX)
            elif left > 0:
                left -= 1
            if left == 0:
                target = ""
                cluster.evidence.counts["interrupted"] += 1
                cluster.at(cluster.now, getattr(cluster, interrupt), node)

        cluster.loop.record = watching  # type: ignore[method-assign]
        for _ in range(ROUNDS):
            interruptions, left = story.counted("interrupted"), -1
            deadline = cluster.now + PATIENCE_S
            while story.counted("interrupted") == interruptions:
                assert cluster.now < deadline, "it never begins"
                if left < 0:
                    owner = target = story.owner
                story.publish(4, BIG_BYTES)
                cluster.run(0.3)
            cluster.run(2 * cluster.settings.lease_ttl_s if interrupt == "pause" else 0.2)
            getattr(cluster, "resume" if interrupt == "pause" else "restart")(owner)
            story.until(
                lambda: (
                    story.record.state is BundleState.OWNED
                    and story.record.incarnation in cluster.registered()
                )
            )
        cluster.loop.record = record  # type: ignore[method-assign]
        before = story.counted("gc.log_file")
        story.publish(12, BIG_BYTES)
        story.until(lambda: story.counted("gc.log_file") > before)
        # a client whose broker was stopped sends again what was stored already
        return story.ends_well(deduplicated=False)


def _rewrites(_kind: str, details: str) -> bool:
    return "intents/rewrite-" in details


def _deletes(kind: str, details: str) -> bool:
    return kind == "remove" and details.startswith("logs/")


def _checkpoints(kind: str, details: str) -> bool:
    return kind == "put" and details.startswith("checkpoints/")


def it_dies_while_it_rewrites(seed: int) -> dict[str, int]:
    """At any step from the intent to the commit and what follows."""
    return _interrupted(seed, _rewrites, "crash")


def it_sleeps_while_it_rewrites(seed: int) -> dict[str, int]:
    """Beyond its lease: it wakes up with a commit in its hands, over what its successor has made
    of the manifest."""
    return _interrupted(seed, _rewrites, "pause")


def it_dies_while_it_deletes(seed: int) -> dict[str, int]:
    """Between log, index, seal and key of a file that it gives up."""
    return _interrupted(seed, _deletes, "crash")


def it_sleeps_while_it_deletes(seed: int) -> dict[str, int]:
    return _interrupted(seed, _deletes, "pause")


def it_dies_between_a_checkpoint_and_its_pointer(seed: int) -> dict[str, int]:
    return _interrupted(seed, _checkpoints, "crash")


def _buried(story: Story, broker: str) -> None:
    """A broker that sleeps has lost its lease and its claim (another bundle was taken from it),
    and is collected as far as it may be."""
    cluster, incarnation = story.cluster, story.incarnation(broker)
    cluster.run(2 * cluster.settings.lease_ttl_s)
    cluster.disk.unlink(f"claims/{incarnation}")
    cluster.run(COLLECTED_S)


def its_term_begins_when_its_files_should_be_gone(seed: int) -> dict[str, int]:
    """A destination falls asleep with the change to Owned in its hands; it is buried, and then
    wakes up: the record names the files of a dead one.

    The leader has not come to this orphan when it collects.
    """
    with Story(seed, settings=small(stuck_state_s=PATIENCE_S)) as story:
        cluster, adopt, late = story.cluster, Leader._adopt_orphans, [True]

        async def adopt_later(leader: Leader, *how: Any) -> None:
            if not late:
                await adopt(leader, *how)

        cluster.patch.setattr(Leader, "_adopt_orphans", adopt_later)
        target = story.others(story.owner)[0]
        store = cluster.environment(target).store
        transact, asleep = store.transact, []

        async def sleepy(compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
            records = [
                operation.value
                for operation in operations
                if isinstance(operation, Put) and story.bundle in operation.key
            ]
            if (
                not asleep
                and records
                and BundleRecord.decode(records[0]).state is BundleState.OWNED
            ):
                asleep.append(target)
                cluster.at(cluster.now, cluster.pause, target)
                await asyncio.sleep(0.001)
            return await transact(compares, operations)

        store.transact = sleepy  # type: ignore[method-assign]
        story.move(target)
        story.until(lambda: bool(asleep))
        _buried(story, target)
        assert story.record.state is BundleState.ASSIGNING
        assert cluster.stored(f"logs/{story.incarnation(target)}/00000000.log"), (
            "its term may begin in a file that is gone"
        )
        late.clear()
        cluster.resume(target)
        return story.ends_well()


STORIES = {
    story.__name__: story
    for story in (
        it_dies_while_it_rewrites,
        it_sleeps_while_it_rewrites,
        it_dies_while_it_deletes,
        it_sleeps_while_it_deletes,
        it_dies_between_a_checkpoint_and_its_pointer,
        its_term_begins_when_its_files_should_be_gone,
    )
}


def tell(story: str, seed: int) -> dict[str, int]:
    """One story under one seed; raises if it ends badly."""
    return STORIES[story](seed)
