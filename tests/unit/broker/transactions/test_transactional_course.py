"""Any course of a topic's transactions over real storage: what is read is what was committed,
and a new owner knows what the old one knew, also over a metadata store that was lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.brokers import TOPIC
from tests.support.transacting import ended
from tests.support.transactional_course import STEPS, Course


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_what_is_read_is_what_was_committed(tmp_path: Path, seed: int) -> None:
    """Rolls, checkpoints, rewriting, collection, trimming and new owners between any two steps;
    in the end everything is the partition's own."""

    course = Course(tmp_path, seed)
    await course.begin()
    await course.step("plain")
    names, weights = list(STEPS), list(STEPS.values())
    for number, kind in enumerate(course.random.choices(names, weights, k=150)):
        await course.step(kind)
        if number % 5 == 0:
            await course.check()
    for txn in list(course.open):
        await ended(course.peer, txn, commit=False)
    await course.step("plain")
    await course.step("forget")
    for _ in range(6):
        await course.step("tidy")
        await asyncio.sleep(0.06)
    await course.check()
    host = await course.host()
    level1 = host.bundle.catalog.manifest.topic(TOPIC).level1
    assert sum(segment.entries for segment in level1) >= len(course.wanted) - course.trimmed
    await course.stack.aclose()
    await course.store.close()
