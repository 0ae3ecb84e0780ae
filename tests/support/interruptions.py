"""What comes between the steps of a job: a kill, or the work of others.

Owns: `Countdown` and `Mortal`, a store or volume whose user is killed at one of its calls; `Beside`,
intents of a job beside which others work.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from magnetar.compaction.intents import IntentWriter


class Killed(BaseException):
    """Nothing of the process runs after it: no handler of its errors, and no cleanup."""


class Countdown:
    """Kills at the step of that number; each call is a step before and a step behind it."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1


class Mortal:
    """`inner` as a process sees it that is killed by the countdown."""

    def __init__(self, inner: Any, countdown: Countdown) -> None:
        self._inner, self._countdown = inner, countdown

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*arguments: Any, **options: Any) -> Any:
            self._countdown.step()
            result = await found(*arguments, **options)
            self._countdown.step()
            return result

        return call


class Beside:
    """The commits of `inner`; `work` is done before the intent, and again when all is written."""

    def __init__(self, inner: IntentWriter, work: Callable[[], Awaitable[None]]) -> None:
        self._inner, self._work = inner, work

    async def commit(self, bundle: Any, topic: str, write: Any, edit: Any) -> Any:
        async def written(intent: str) -> Any:
            found = await write(intent)
            await self._work()
            return found

        await self._work()
        return await self._inner.commit(bundle, topic, written, edit)
