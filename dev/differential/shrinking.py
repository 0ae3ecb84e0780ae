"""The fewest steps that still show a difference.

Owns: `shrunk`. Imports: comparison. Invariant: what is returned differs first in the same way (by
signature) as what was given.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dev.differential.comparison import Difference, judge, rules
from dev.differential.play import Step

Compare = Callable[[list[Step]], Awaitable[list[Difference]]]


async def shrunk(compare: Compare, steps: list[Step]) -> list[Step]:
    """Leave out what follows the first difference without a rule, then ever smaller parts, as long
    as that difference stays."""

    async def first(candidate: list[Step]) -> Difference | None:
        found = judge(await compare(candidate), known).unexplained
        return found[0] if found else None

    known = rules()
    wanted = await first(steps)
    if wanted is None:
        return steps
    steps = steps[: wanted.index + 1]
    size = max(1, len(steps) // 3)
    while size:
        at = 0
        while at < len(steps) - 1:
            candidate = steps[:at] + steps[min(at + size, len(steps) - 1) :]
            found = await first(candidate)
            if found is not None and found.signature == wanted.signature:
                steps = candidate
            else:
                at += size
        size //= 2
    return steps
