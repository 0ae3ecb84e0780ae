"""One incarnation of a simulated process.

Owns: `Node` (what the loop must know of a process: alive, paused, its queue, its tasks) and the
context variable that says whose code runs. Imports: asyncio, contextvars. Invariant: a node's life
ends once; a restarted process is a new `Node` of the same name with the next `life` number.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.kernel.loop import Step

TASKS_PRUNED_FROM = 64


class Node:
    """A process. `index` is unique per life within one loop and stands for the node in the
    trace."""

    __slots__ = (
        "alive",
        "context",
        "index",
        "life",
        "name",
        "paused",
        "prune_at",
        "ready",
        "tasks",
    )

    def __init__(self, name: str, index: int, life: int = 1) -> None:
        self.name, self.index, self.life = name, index, life
        self.alive, self.paused = True, False
        self.ready: deque[Step] = deque()
        # Strong references: a pending task that only weak sets know could be collected in mid-run,
        # at a moment no seed decides; and the frames of a crashed node must stay suspended, because
        # closing them would run their `finally` blocks.
        self.tasks: list[asyncio.Task[Any]] = []
        self.prune_at = TASKS_PRUNED_FROM
        self.context = contextvars.Context()
        self.context.run(NODE.set, self)

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Hold `task` until it is done. Finished ones are dropped now and then, not by a
        callback, which would be a step."""
        self.tasks.append(task)
        if len(self.tasks) >= self.prune_at:
            self.tasks = [kept for kept in self.tasks if not kept.done()]
            self.prune_at = max(TASKS_PRUNED_FROM, 2 * len(self.tasks))

    def __repr__(self) -> str:
        state = "dead" if not self.alive else "paused" if self.paused else "running"
        return f"<{self.name}#{self.life} {state}>"


NODE: contextvars.ContextVar[Node] = contextvars.ContextVar("simulated node")
