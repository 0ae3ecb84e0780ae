"""Long runs of a simulation scenario over many seeds, resumable.

Owns: the command `python -m dev.campaign --suite tracer --seeds 0:10000 --jobs 2 --state
build/campaign.json`: runs `run(seed)` of `tests/simulation/scenarios/<suite>.py` in worker
processes, prints progress, and keeps in the state file which seeds are done and which failed.
Imports: the standard library; scenarios are imported by the workers only. Invariants: a seed counts
as done only when its result is in the state file, which is replaced atomically; interrupting at any
moment loses at most `SAVE_EVERY_S` of work; workers run with PYTHONHASHSEED=0, so that a failing
seed fails again here and elsewhere. Repeat one seed with `--seeds 123:124 --again`. Exit code: 0 =
all passed, 1 = failures, 130 = interrupted.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCENARIOS = "tests.simulation.scenarios"
SOURCE_ROOTS = ("broker_image", "operator", "spark_jobs", ".")
CHUNK_SECONDS = 2.0
CHUNK_SEEDS_MAX = 500
SAVE_EVERY_S = 2.0
FAILURES_MAX = 50
FAILURE_TEXT_MAX = 20_000
SEED_TIMEOUT_S = 300

Range = tuple[int, int]


@dataclass(slots=True)
class Campaign:
    """What the state file holds. Ranges are half-open, sorted and disjoint; a failed seed is
    done, too."""

    suite: str
    done: list[Range] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    commands: list[str] = field(default_factory=list)
    revision: str = ""

    @staticmethod
    def load(path: Path, suite: str) -> Campaign:
        """The state in `path`, or a new one. Raises SystemExit if it belongs to another suite."""
        if not path.exists():
            return Campaign(suite)
        body = json.loads(path.read_text())
        if body["suite"] != suite:
            raise SystemExit(
                f"{path} belongs to suite {body['suite']!r}, not {suite!r}; name another --state"
            )
        body["done"] = [(start, end) for start, end in body["done"]]
        body["failures"] = {int(seed): text for seed, text in body["failures"].items()}
        return Campaign(**body)

    def save(self, path: Path) -> None:
        """Replace the file in one step."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(self), indent=1))
        draft.replace(path)

    def finished(self, start: int, end: int, failures: dict[int, str]) -> None:
        """Take over the result of the seeds start..end-1."""
        self.done = merged([*self.done, (start, end)])
        for seed in range(start, end):
            self.failures.pop(seed, None)
        self.failures |= failures


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Sorted, disjoint ranges covering the same seeds."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif start < end:
            found.append((start, end))
    return found


def missing(done: Sequence[Range], wanted: Range) -> list[Range]:
    """The parts of `wanted` that `done` does not cover."""
    found, start = [], wanted[0]
    for low, high in merged(done):
        if low > start:
            found.append((start, min(low, wanted[1])))
        start = max(start, high)
        if start >= wanted[1]:
            break
    if start < wanted[1]:
        found.append((start, wanted[1]))
    return [(low, high) for low, high in found if low < high]


@dataclass(frozen=True, slots=True)
class Result:
    """What a worker reports for one chunk."""

    start: int
    end: int
    failures: dict[int, str]
    seconds: float


def run_apart(suite: str, start: int, end: int, timeout_s: int) -> Result:
    """As `run_chunk`, in a copy of this process that ends with it: to collect the garbage of a
    world takes a tenth of the time to run it."""
    importlib.import_module(f"{SCENARIOS}.{suite}")  # here, once for all copies
    receiver, sender = multiprocessing.Pipe(duplex=False)
    arguments = (sender, suite, start, end, timeout_s)
    copy = multiprocessing.get_context("fork").Process(target=_send_chunk, args=arguments)
    copy.start()
    sender.close()
    try:
        result: Result = receiver.recv()
    except EOFError:
        copy.join()
        raise RuntimeError(
            f"the process that ran seeds {start}:{end} ended with exit code {copy.exitcode}"
        ) from None
    copy.join()
    return result


def _send_chunk(sender: Connection, suite: str, start: int, end: int, timeout_s: int) -> None:
    gc.disable()
    sender.send(run_chunk(suite, start, end, timeout_s))


def run_chunk(suite: str, start: int, end: int, timeout_s: int) -> Result:
    """Run the seeds start..end-1 in this process. A seed that takes more than `timeout_s` of
    processor time fails; however long it waits for a processor."""
    run: Callable[[int], None] = importlib.import_module(f"{SCENARIOS}.{suite}").run
    failures: dict[int, str] = {}
    began = time.monotonic()
    for seed in range(start, end):
        try:
            with _deadline(timeout_s):
                run(seed)
        except Exception as error:  # whatever a scenario raises is its verdict on this seed
            failures[seed] = "".join(traceback.format_exception(error))[-FAILURE_TEXT_MAX:]
    return Result(start, end, failures, time.monotonic() - began)


@contextlib.contextmanager
def _deadline(seconds: int) -> Iterator[None]:
    def expire(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"the seed took more than {seconds} s of processor time")

    signal.signal(signal.SIGPROF, expire)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _ignore_interrupts() -> None:
    """Ctrl-C reaches the whole process group; only the parent decides what it means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Runner:
    """Feeds chunks to workers, a little more than there are jobs at a time, and sizes them to
    about `CHUNK_SECONDS`."""

    def __init__(
        self, campaign: Campaign, path: Path, jobs: int, timeout_s: int, failures_max: int
    ) -> None:
        self._campaign, self._path, self._jobs = campaign, path, jobs
        self._timeout_s, self._failures_max = timeout_s, failures_max
        # seconds per seed, as seen so far: the first chunks have one seed
        self._seed_s = CHUNK_SECONDS
        self._began = self._saved = time.monotonic()
        self._ran = 0

    def run(self, wanted: Range, ranges: list[Range]) -> None:
        """Run all seeds in `ranges`; saves what was reached however it ends."""
        total = sum(end - start for start, end in ranges)
        chunks = self._chunks(ranges)
        before = self._campaign.seconds
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(
            self._jobs, context, _ignore_interrupts
        ) as pool:
            running: set[concurrent.futures.Future[Result]] = set()
            try:
                while self._feed(pool, running, chunks):
                    finished, _ = concurrent.futures.wait(
                        running, return_when=concurrent.futures.FIRST_COMPLETED
                    )
                    running -= finished
                    for future in finished:
                        self._take(future.result())
                    self._campaign.seconds = before + time.monotonic() - self._began
                    self._report(total)
            finally:
                self._campaign.save(self._path)
                pool.shutdown(wait=False, cancel_futures=True)
        assert (
            missing(self._campaign.done, wanted) == []
            or len(self._campaign.failures) >= self._failures_max
        )

    def _feed(
        self,
        pool: concurrent.futures.Executor,
        running: set[concurrent.futures.Future[Result]],
        chunks: Iterator[Range],
    ) -> bool:
        """Keep the workers busy; False when nothing is left to wait for."""
        while len(running) < self._jobs + 1 and len(self._campaign.failures) < self._failures_max:
            chunk = next(chunks, None)
            if chunk is None:
                break
            running.add(pool.submit(run_apart, self._campaign.suite, *chunk, self._timeout_s))
        return bool(running)

    def _chunks(self, ranges: list[Range]) -> Iterator[Range]:
        for start, end in ranges:
            while start < end:
                size = max(1, min(CHUNK_SEEDS_MAX, int(CHUNK_SECONDS / self._seed_s)))
                yield start, min(start + size, end)
                start += size

    def _take(self, result: Result) -> None:
        count = result.end - result.start
        self._seed_s = max(1e-4, 0.5 * self._seed_s + 0.5 * result.seconds / count)
        self._campaign.finished(result.start, result.end, result.failures)
        self._ran += count
        for seed, text in sorted(result.failures.items()):
            print(f"\nseed {seed} FAILED\n{text}", flush=True)

    def _report(self, total: int) -> None:
        now = time.monotonic()
        if now - self._saved < SAVE_EVERY_S and self._ran < total:
            return
        self._saved = now
        self._campaign.save(self._path)
        rate = self._ran / max(1e-9, now - self._began)
        left_s = (total - self._ran) / rate if rate else 0.0
        failed = len(self._campaign.failures)
        print(
            f"{self._ran}/{total} seeds, {rate:.1f}/s, {failed} failed, {left_s:.0f} s left",
            flush=True,
        )


def _revision() -> str:
    """The commit that runs, "" outside a repository."""
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() if found.returncode == 0 else ""


def _seeds(text: str) -> Range:
    start, separator, end = text.partition(":")
    if not separator or not start.isdigit() or not end.isdigit() or int(start) >= int(end):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a range of seeds; write 0:1000 (1000 is not included)"
        )
    return int(start), int(end)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m dev.campaign", description="Run a simulation scenario over many seeds."
    )
    parser.add_argument(
        "--suite",
        required=True,
        help="name of a module in tests/simulation/scenarios with run(seed)",
    )
    parser.add_argument(
        "--seeds", type=_seeds, default=(0, 1000), help="half-open range, such as 0:10000"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    parser.add_argument(
        "--state", type=Path, default=None, help="state file (default build/campaign-<suite>.json)"
    )
    parser.add_argument(
        "--again", action="store_true", help="run the seeds of the range that are done, too"
    )
    parser.add_argument(
        "--seed-timeout-s",
        type=int,
        default=SEED_TIMEOUT_S,
        help="seconds of processor time after which a seed fails",
    )
    parser.add_argument(
        "--failures-max", type=int, default=FAILURES_MAX, help="stop after so many failures"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns its exit code."""
    arguments: Any = _arguments(argv)
    if not (ROOT / SCENARIOS.replace(".", "/") / f"{arguments.suite}.py").exists():
        raise SystemExit(f"no scenario {arguments.suite!r} in {SCENARIOS.replace('.', '/')}")
    path: Path = arguments.state or ROOT / "build" / f"campaign-{arguments.suite}.json"
    campaign = Campaign.load(path, arguments.suite)
    campaign.commands.append(
        " ".join(["python -m dev.campaign", *(argv if argv is not None else sys.argv[1:])])
    )
    campaign.revision = _revision()
    ranges = [arguments.seeds] if arguments.again else missing(campaign.done, arguments.seeds)
    os.environ["PYTHONHASHSEED"] = "0"
    os.environ["PYTHONPATH"] = os.pathsep.join(str(ROOT / part) for part in SOURCE_ROOTS)
    try:
        Runner(
            campaign, path, arguments.jobs, arguments.seed_timeout_s, arguments.failures_max
        ).run(arguments.seeds, ranges)
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on from {path}")
        return 130
    start, end = arguments.seeds
    failed = sorted(seed for seed in campaign.failures if start <= seed < end)
    print(
        f"suite {arguments.suite}: seeds {start}:{end}, {len(failed)} failed {failed[:20]}, "
        f"{campaign.seconds:.0f} s in all"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
