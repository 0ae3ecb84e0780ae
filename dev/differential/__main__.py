"""`python -m dev.differential`: generated scenarios against Apache Pulsar and Magnetar.

Owns: starting both, running seeds beside each other, the state file (resumable), and the report:
scenarios, differences, and those without a rule, grouped by signature. Imports: dev.testbed.oracle,
dev.server_process, the modules of this package. Invariants: only servers started here are stopped;
a seed counts as done when its result is in the state file, which is replaced atomically; a
difference is one only if it is there again with the longest wait. Exit code: 1 if a difference has
no rule.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from dev.differential.comparison import Difference, Verdict, differences, judge, rules
from dev.differential.generation import scenario
from dev.differential.play import Place, Step
from dev.differential.running import QUIETS_S, run
from dev.differential.servers import MAGNETAR_SETTINGS, ORACLE_SETTINGS, Server, namespace
from dev.differential.shrinking import shrunk
from dev.server_process import ServerProcess
from dev.testbed.oracle import Oracle

SHOWN_MAX = 40
SAVE_EVERY_S = 5.0
WATCH_EVERY_S = 10.0
HTTP_OK = 200
SCENARIO_TIMEOUT_S = 300.0


@dataclass
class State:
    """What the state file holds."""

    done: list[int] = field(default_factory=list)
    explained: dict[str, int] = field(default_factory=dict)
    unexplained: dict[str, list[int]] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def load(cls, path: Path | None) -> State:
        return cls(**json.loads(path.read_text())) if path and path.exists() else cls()

    def save(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(".draft")
            draft.write_text(json.dumps(asdict(self), indent=1))
            draft.replace(path)

    def add(self, seed: int, verdict: Verdict) -> None:
        """Take over the result of a seed; the first difference stands for those that follow."""
        self.done.append(seed)
        for name, count in Counter(rule.name for rule, _ in verdict.explained).items():
            self.explained[name] = self.explained.get(name, 0) + count
        if verdict.unexplained:
            self.unexplained.setdefault(verdict.unexplained[0].signature, []).append(seed)


@dataclass
class Pair:
    """Both servers, and a namespace on them for one scenario after another."""

    pulsar: Server
    magnetar: Server
    namespace: str

    async def prepare(self) -> None:
        await self.pulsar.prepare(self.namespace)
        await self.magnetar.prepare(self.namespace)

    async def compare(self, steps: list[Step]) -> list[Difference]:
        """Run on both; with longer waits as long as something differs that no rule explains."""
        known = rules()
        found = await self.once(steps, QUIETS_S[0])
        for quiet_s in QUIETS_S[1:]:
            unexplained = judge(found, known).unexplained
            if not unexplained:
                break
            shown = await self.once(steps[: unexplained[0].index + 1], quiet_s)
            if judge(shown, known).unexplained:
                found = shown
            else:
                found = await self.once(steps, quiet_s)
        return found

    async def once(self, steps: list[Step], quiet_s: float) -> list[Difference]:
        """What differs with this wait."""
        place = Place(self.namespace)
        async with asyncio.timeout(SCENARIO_TIMEOUT_S):
            sides = await asyncio.gather(
                run(self.pulsar, place, steps, quiet_s),
                run(self.magnetar, place, steps, quiet_s),
            )
        return differences(*sides)


async def _work(
    pair: Pair, seeds: Iterator[int], state: State, deadline: float, show: bool
) -> None:
    known = rules()
    await pair.prepare()
    for seed in seeds:
        started = time.monotonic()
        if started > deadline:
            return
        try:
            verdict = judge(await pair.compare(scenario(seed)), known)
        except Exception as error:
            verdict = Verdict([], [Difference(0, "broken", type(error).__name__, str(error), "")])
        state.add(seed, verdict)
        if show and verdict.unexplained:
            first = verdict.unexplained[0]
            print(f"seed {seed}, step {first.index}: {first.signature}", flush=True)


async def _keep(state: State, path: Path | None) -> None:
    while True:
        await asyncio.sleep(SAVE_EVERY_S)
        state.save(path)


async def _watch(pulsar: Server) -> None:
    """Ends when the server reports that it is broken: version 4.2.4 deadlocks now and then when a
    transaction's acknowledgements are aborted. The seeds under way do not count then."""
    healthy = True
    while healthy:
        await asyncio.sleep(WATCH_EVERY_S)
        with contextlib.suppress(httpx.HTTPError):
            healthy = (await pulsar.rest("GET", "brokers/health")).status == HTTP_OK


async def campaign(pairs: list[Pair], options: argparse.Namespace, state: State) -> None:
    """Run what of the wanted seeds is not done, until the time is over."""
    first, _, last = options.seeds.partition(":")
    wanted = range(int(first), int(last) if last else int(first) + options.scenarios)
    done = set(state.done)
    seeds = iter(
        [seed for seed in wanted if options.again or seed not in done][: options.scenarios]
    )
    deadline = time.monotonic() + options.minutes * 60
    keeper = asyncio.create_task(_keep(state, options.state))
    watcher = asyncio.create_task(_watch(pairs[0].pulsar))
    started = time.monotonic()
    workers = asyncio.gather(
        *(_work(pair, seeds, state, deadline, options.verbose) for pair in pairs)
    )
    waited: list[asyncio.Future[Any]] = [workers, watcher]
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    broken = not workers.done()
    for task in (*waited, keeper):
        task.cancel()
    await asyncio.gather(*waited, keeper, return_exceptions=True)
    state.seconds += time.monotonic() - started
    state.save(options.state)
    if broken:
        print("Apache Pulsar is not healthy any more; run again to go on with another one")


async def replay(pair: Pair, options: argparse.Namespace) -> None:
    """Show the steps of one seed and where the servers differ; with --shrink the fewest steps that
    still differ first in the same way."""
    steps = json.loads(options.steps.read_text()) if options.steps else scenario(options.replay)
    await pair.prepare()
    if options.shrink:
        steps = await shrunk(lambda part: pair.once(part, QUIETS_S[1]), steps)
    texts: list[str] = []
    sides, place = [], Place(pair.namespace)
    for server in (pair.pulsar, pair.magnetar):
        texts.append(f"Texts of {server.name}:")
        sides.append(await run(server, place, steps, QUIETS_S[1], texts))
    for left, right in zip(*sides, strict=True):
        print(("  " if left == right else "! ") + json.dumps(left))
        if left != right:
            print("   -> " + json.dumps({k: v for k, v in right.items() if k != "step"}))
    print("\n".join(texts))


def report(state: State) -> int:
    """Print what the state holds; the exit code."""
    broken = sum(len(seeds) for seeds in state.unexplained.values())
    print(f"{len(state.done)} scenarios in {state.seconds:.0f} s of running")
    print(f"{sum(state.explained.values())} differences that are meant:")
    for name, count in sorted(state.explained.items()):
        print(f"  {count:>6} {name}")
    print(f"{broken} scenarios with a difference that no rule explains:")
    ordered = sorted(state.unexplained.items(), key=lambda item: -len(item[1]))
    for signature, seeds in ordered[:SHOWN_MAX]:
        print(f"  {len(seeds):>6} {signature}\n         seeds {seeds[:6]}")
    return 1 if broken else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dev.differential", description=__doc__)
    parser.add_argument("--scenarios", type=int, default=100, help="at most so many")
    parser.add_argument("--seeds", default="0", help="first seed, or first:last")
    parser.add_argument(
        "--state", type=Path, help="results are kept here; done seeds are not run again"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so long")
    parser.add_argument("--beside", type=int, default=12, help="scenarios at the same time")
    parser.add_argument("--again", action="store_true", help="run seeds that are done")
    parser.add_argument("--verbose", action="store_true", help="name a seed as soon as it differs")
    parser.add_argument("--replay", type=int, help="show the steps of this seed on both servers")
    parser.add_argument("--steps", type=Path, help="show these steps (JSON) on both servers")
    parser.add_argument("--shrink", action="store_true", help="with --replay: the fewest steps")
    parser.add_argument("--place", type=int, default=0, help="number of the namespace of a replay")
    parser.add_argument("--pulsar", help="use this running one: broker port:HTTP port")
    parser.add_argument("--magnetar", help="use this running one: broker port:HTTP port")
    return parser.parse_args()


def _server(name: str, given: str | None, stack: ExitStack, directory: Path) -> Server:
    """A running server, or one that is started and stopped with the stack."""
    if given:
        broker_port, http_port = given.split(":")
        return Server(name, int(broker_port), f"http://127.0.0.1:{http_port}")
    started: Oracle | ServerProcess = (
        stack.enter_context(Oracle(directory / name, ORACLE_SETTINGS))
        if name == "pulsar"
        else stack.enter_context(ServerProcess(directory / name, environment=MAGNETAR_SETTINGS))
    )
    return Server(name, started.broker_port, started.http_url)


async def _run(options: argparse.Namespace, pulsar: Server, magnetar: Server) -> int:
    try:
        pairs = [Pair(pulsar, magnetar, namespace(number)) for number in range(options.beside)]
        if options.replay is not None or options.steps is not None:
            await replay(Pair(pulsar, magnetar, namespace(options.place)), options)
            return 0
        state = State.load(options.state)
        if options.again:
            state = State()
        await campaign(pairs, options, state)
        return report(state)
    finally:
        await pulsar.close()
        await magnetar.close()


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))
    with (
        ExitStack() as stack,
        tempfile.TemporaryDirectory(prefix="magnetar-differential-") as scratch,
    ):
        directory = Path(scratch)
        pulsar = _server("pulsar", options.pulsar, stack, directory)
        magnetar = _server("magnetar", options.magnetar, stack, directory)
        return asyncio.run(_run(options, pulsar, magnetar))


if __name__ == "__main__":
    sys.exit(main())
