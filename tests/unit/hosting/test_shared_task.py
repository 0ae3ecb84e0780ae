"""Tasks that several callers wait for."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.errors import ServiceNotReady
from magnetar.hosting.shared_task import SharedTasks, cancel_all, outcome


async def test_callers_of_one_name_share_a_task_until_it_ends() -> None:
    begun: list[str] = []
    release = asyncio.Event()

    async def work() -> int:
        begun.append("work")
        await release.wait()
        return len(begun)

    tasks = SharedTasks[int]("do")
    first, second = tasks.join("a", work), tasks.join("a", work)
    assert first is second is tasks.get("a")
    other = tasks.join("b", work)
    assert other is not first
    await asyncio.sleep(0)
    release.set()
    assert await outcome(first) == await outcome(other) == 2
    await asyncio.sleep(0)
    assert tasks.get("a") is None
    assert await tasks.join("a", work) == 3


async def test_a_failure_is_every_callers_and_the_next_one_tries_again() -> None:
    async def fail() -> None:
        raise KeyError("x")

    tasks = SharedTasks[None]("do")
    task = tasks.join("a", fail)
    for _ in range(2):
        with pytest.raises(KeyError):
            await outcome(task)
    await asyncio.sleep(0)
    assert tasks.join("a", fail) is not task
    await tasks.stop()


async def test_a_task_that_is_cancelled_is_an_answer() -> None:
    tasks = SharedTasks[bool]("do")
    waiting = asyncio.create_task(outcome(tasks.join("a", asyncio.Event().wait)))
    await asyncio.sleep(0)
    await tasks.stop()
    with pytest.raises(ServiceNotReady):
        await waiting
    await cancel_all(())
