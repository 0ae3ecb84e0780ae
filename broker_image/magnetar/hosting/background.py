"""Work that no caller waits for.

Owns: `Surprises`, which keeps an unforeseen error of one topic, bundle, connection or peer from
everything else. Imports: asyncio, errors. Invariants: an error that no code foresaw is logged with
its type and counted, and costs its item this round only; the rest of the round and all later rounds
take place. What ends an incarnation is the loss of its claim or its log, which the log reports by
itself, never an exception that comes by.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from magnetar.errors import Fenced

log = structlog.get_logger(__name__)

AGAIN_S = 1.0


class Surprises:
    """Unforeseen errors by the work in which they came; `counts` has a closed set of names, for
    they are labels of a metric."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @contextmanager
    def contained(self, work: str, *passed_on: type[Exception], **about: str) -> Iterator[None]:
        """Within it any error ends only what is within it, but for those `passed_on`; `about`
        names the item for the log."""
        try:
            yield
        except passed_on:
            raise
        except Exception as error:
            self.note(work, error, **about)

    def note(self, work: str, error: BaseException, **about: str) -> None:
        """Log and count an error that was caught elsewhere. The log has already reported a lost
        claim to the broker.

        Raises the error if the task is being closed: a generator that is left then complains
        (`aclose(): ... already running`, CPython before 3.13), and a task that continued would
        never end.
        """
        if isinstance(error.__context__, GeneratorExit):
            raise error
        if not isinstance(error, Fenced):
            self.counts[work] += 1
            log.error(
                "background.surprise",
                work=work,
                error_type=type(error).__name__,
                error=str(error),
                exc_info=error,
                **about,
            )

    async def again_and_again(
        self, work: str, run: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Run what never ends by itself, until it is cancelled; whatever else ends it, it begins
        again after `AGAIN_S`."""
        while True:
            with self.contained(work):
                await run()
            await asyncio.sleep(AGAIN_S)
