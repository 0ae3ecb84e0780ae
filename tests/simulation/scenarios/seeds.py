"""Many seeds, on every core.

Owns: `run_seeds` and `hunt`, which run a function of a seed in worker processes and return plain
verdicts; `SeedRange`, what a tier asserts of a range of them. Imports: the standard library; the
scenarios are imported by the workers. Invariants: a worker is a fresh interpreter, so that nothing
another test has configured (logs, above all) reaches a run; the verdict of a seed does not depend
on which worker ran it, nor after which other seed.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import re
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache

WORKERS_MAX = 2
WORLDS_PER_COLLECTION = 8
SHOWN_CHARACTERS_MAX = 6000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one seed led to: `error` is the whole traceback with the world's report, "" if all was
    well.

    `raised` is what the check itself said, without the calls that led there and the events before.
    """

    seed: int
    error: str
    counts: dict[str, int]
    raised: str = ""


def judge(case: str, seed: int) -> Verdict:
    """Run `case` (module:function or module:function:argument) under one seed; the function
    returns counts, or raises."""
    module, function, *arguments = case.split(":")
    run = getattr(importlib.import_module(f"tests.simulation.scenarios.{module}"), function)
    try:
        return Verdict(seed, "", dict(run(*arguments, seed)))
    except Exception as error:  # whatever a scenario raises is its verdict on this seed
        return Verdict(
            seed, "".join(traceback.format_exception(error)), {}, f"{type(error).__name__}: {error}"
        )
    finally:
        if seed % WORLDS_PER_COLLECTION == 0:
            gc.collect()  # a world is one large cycle, and while it runs nothing is collected


def first_failure(case: str, seeds: Iterable[int], wanted: str = "") -> Verdict | None:
    """The verdict on the first seed that fails and where what was raised matches `wanted`, a
    regular expression."""
    verdicts = (judge(case, seed) for seed in seeds)
    return next(
        (verdict for verdict in verdicts if verdict.error and re.search(wanted, verdict.raised)),
        None,
    )


@cache
def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        min(WORKERS_MAX, os.cpu_count() or 1), mp_context=multiprocessing.get_context("spawn")
    )


def run_seeds(case: str, seeds: Iterable[int]) -> list[Verdict]:
    """The verdicts, in the order of `seeds`."""
    return list(_pool().map(judge, *zip(*((case, seed) for seed in seeds), strict=True)))


def hunt(case: str, seeds: range, wanted: str = "", *, seen_at: int = 0) -> Future[Verdict | None]:
    """Begin to look for a seed that fails as `wanted` says: at `seen_at` first, then at all others
    in their order."""
    ordered = sorted(seeds, key=lambda seed: seed != seen_at)
    return _pool().submit(first_failure, case, ordered, wanted)


class SeedRange:
    """The seeds from 0 to `seeds` of a case, run in chunks; each chunk once, whichever test asks
    first."""

    def __init__(self, case: str, seeds: int, chunk: int) -> None:
        self._case, self._seeds, self._chunk = case, seeds, chunk
        self._verdicts: dict[int, list[Verdict]] = {}
        self.firsts = range(0, seeds, chunk)

    def verdicts(self, first: int) -> list[Verdict]:
        """Of the chunk that begins with seed `first`."""
        if first not in self._verdicts:
            self._verdicts[first] = run_seeds(self._case, range(first, first + self._chunk))
        return self._verdicts[first]

    def check_passed(self, first: int) -> None:
        """Raises AssertionError naming the seeds of the chunk that failed."""
        failures = [verdict for verdict in self.verdicts(first) if verdict.error]
        shown = "\n\n".join(
            f"seed {verdict.seed}:\n{verdict.error[-SHOWN_CHARACTERS_MAX:]}"
            for verdict in failures[:3]
        )
        assert not failures, f"seeds {[verdict.seed for verdict in failures]} failed\n{shown}"

    def check_happened(self, least_per_seed: Mapping[str, float]) -> None:
        """Raises AssertionError naming what happened less often than this, on average over all
        seeds."""
        total: Counter[str] = Counter()
        for first in self.firsts:
            for verdict in self.verdicts(first):
                total.update(verdict.counts)
        rare = {
            kind: (total[kind] / self._seeds, least)
            for kind, least in least_per_seed.items()
            if total[kind] < least * self._seeds
        }
        assert not rare, f"(mean per seed, wanted): {rare}"
