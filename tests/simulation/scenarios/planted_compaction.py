"""Brokers with a planted bug of topic compaction.

Owns: one small patch per rule that keeps keys from being lost, and `run(bug, seed)`, the stories of
compaction on a broker patched so (`none`: unpatched, the control). Each is a bug that Pulsar had.
Imports: the stories, the patched parts of the broker.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping

import pytest

from magnetar.broker.topics.topic_host import TopicHost
from magnetar.broker.upkeep.compaction_input import CompactionInput, CompactionPlan
from magnetar.topics.ledgers import LedgerTable
from tests.simulation.kernel.volume import SimVolume
from tests.simulation.scenarios import compaction_stories

Patch = pytest.MonkeyPatch
LATE_S = 0.05


def the_view_before_is_no_input(patch: Patch) -> None:
    """#12429, #12522: the next run reads originals only, which retention has dropped."""
    of = CompactionPlan.of

    async def forgetful(host: TopicHost) -> CompactionPlan | None:
        plan = await of(host)
        return dataclasses.replace(plan, view=()) if plan is not None else None

    patch.setattr(CompactionPlan, "of", forgetful)


def the_horizon_is_where_the_topic_ends(patch: Patch) -> None:
    """#20988: what arrives while the view is written counts as compacted."""
    begin = CompactionInput.__init__

    def hasty(source: CompactionInput, host: TopicHost, plan: CompactionPlan) -> None:
        begin(source, host, plan)
        if plan.end - plan.first > 1:
            source.rows -= 1

    patch.setattr(CompactionInput, "__init__", hasty)


def retention_drops_what_is_not_compacted(patch: Patch) -> None:
    """#11287, #12464: the originals go, compacted or not."""
    trim = TopicHost.trim

    async def greedy(
        host: TopicHost, _ordinal: int, viewed_from: tuple[int, int] | None = None
    ) -> None:
        await trim(host, host.core.ledgers.end, viewed_from)

    patch.setattr(TopicHost, "trim", greedy)


def the_view_goes_with_the_originals(patch: Patch) -> None:
    """#11211: positions of dropped entries are forgotten, those in the view included."""
    drop = LedgerTable.drop_before

    def thorough(ledgers: LedgerTable, ordinal: int, _floor: int | None = None) -> int:
        return drop(ledgers, ordinal)

    patch.setattr(LedgerTable, "drop_before", thorough)


def committed_before_it_is_written(patch: Patch) -> None:
    """#26665: the view names files that a crash has kept from being written."""
    put = SimVolume.put_if_absent
    late: list[asyncio.Task[bool]] = []

    async def hasty(volume: SimVolume, name: str, data: bytes) -> bool:
        if "/compaction-" not in name:
            return await put(volume, name, data)

        async def later() -> bool:
            await asyncio.sleep(LATE_S)
            return await put(volume, name, data)

        late.append(asyncio.create_task(later()))
        return True

    patch.setattr(SimVolume, "put_if_absent", hasty)


CONTROL = "none"
BUGS: Mapping[str, Callable[[Patch], None]] = {
    bug.__name__: bug
    for bug in (
        the_view_before_is_no_input,
        the_horizon_is_where_the_topic_ends,
        retention_drops_what_is_not_compacted,
        the_view_goes_with_the_originals,
        committed_before_it_is_written,
    )
}


def run(bug: str, seed: int) -> dict[str, int]:
    """A story under one seed, on brokers with this bug; raises if it ends badly."""
    stories = sorted(compaction_stories.STORIES)
    with pytest.MonkeyPatch.context() as patch:
        if bug != CONTROL:
            BUGS[bug](patch)
        return compaction_stories.tell(stories[seed % len(stories)], seed)
