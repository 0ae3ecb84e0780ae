"""Work that nobody waits for does not end unnoticed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from magnetar.errors import InvalidRequest
from magnetar.hosting import background, followed_files
from magnetar.hosting.background import Surprises
from magnetar.hosting.followed_files import Follower
from tests.support.polling import until


async def beside(work: Coroutine[Any, Any, None], reached: Callable[[], bool]) -> None:
    """Until `reached`, with `work` going on, which does not end by itself."""
    task = asyncio.create_task(work)
    await until(lambda: reached() or task.done())
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])


async def test_files_are_followed_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader or a listener that fails in a way that nobody has foreseen is counted once, like
    a broken file, and the next content is taken."""
    monkeypatch.setattr(followed_files, "REREAD_S", 0.001)
    taken: list[str] = []
    contents = iter(["bug", "bug", "broken", "sound", "refused", "sound"])

    def read() -> str:
        content = next(contents, "sound")
        if content == "bug":
            raise KeyError("secret")
        if content == "broken":
            raise InvalidRequest("broken")
        return content

    def take(content: str) -> None:
        taken.append(content)
        if content == "refused":
            raise RuntimeError("a listener's")

    follower = Follower("test", file="x")
    await beside(follower.follow(read, take), lambda: len(taken) > 3)
    assert taken[:4] == ["sound", "refused", "sound", "sound"]
    assert follower.failed == 3
    assert "secret" not in follower._trouble


async def test_what_has_to_go_on_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "AGAIN_S", 0.001)
    times: list[int] = []

    async def work() -> None:
        times.append(len(times))
        raise RuntimeError("a bug")

    surprises = Surprises()
    await beside(surprises.again_and_again("test", work), lambda: len(times) > 2)
    assert surprises.counts["test"] >= 2
