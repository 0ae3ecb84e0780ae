"""A scenario on a server, from its first step to its last.

Owns: `run`, and how long a step waits for what still comes. Imports: play, operations. Invariant:
the topic of a scenario is deleted afterwards.
"""

from __future__ import annotations

import contextlib

import httpx

from dev.differential.left_out import is_left_out
from dev.differential.operations import OPERATIONS
from dev.differential.play import Observation, Place, Play, Step
from dev.differential.servers import Server

QUIETS_S = (0.05, 0.3, 1.0, 4.0)
"""A step has ended when nothing came for so long. Runs that differ are repeated with more of it:
what was only late is no difference."""
LEFT_OUT = "left out"
READ_ALL: Step = [
    "subscribe", 999, "everything",
    {"conn": 999, "name": "reader", "durable": False, "position": "Earliest", "create": False},
]  # fmt: skip


async def run(
    server: Server,
    place: Place,
    steps: list[Step],
    quiet_s: float,
    texts: list[str] | None = None,
) -> list[Observation]:
    """What every step showed; texts of errors are appended to `texts`."""
    play = Play(server, place, quiet_s)
    try:
        shown = [
            {"step": step, "answer": LEFT_OUT}
            if is_left_out(play, step)
            else await play.step(step, OPERATIONS)
            for step in steps
        ]
        if play.names.transactional:
            # a reader of everything, so that messages with a place of their commit are recognized
            await play.step(READ_ALL, OPERATIONS)
        return [play.names.settled(observation) for observation in shown]
    finally:
        await play.close()
        with contextlib.suppress(httpx.HTTPError):
            await server.rest("DELETE", f"{play.rest_topic}?force=true")
        if texts is not None:
            texts += play.texts
