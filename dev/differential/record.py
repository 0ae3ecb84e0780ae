"""`python -m dev.differential.record`: ask Apache Pulsar again for the recorded scenarios.

Owns: which scenarios are recorded (those written by hand, and some seeds), and that an answer is
recorded only if it is the same twice. Imports: dev.testbed.oracle, the modules of this package.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from dev.differential.generation import scenario
from dev.differential.play import Place, Step
from dev.differential.recordings import Recording
from dev.differential.running import run
from dev.differential.scenarios import SCENARIOS
from dev.differential.servers import ORACLE_SETTINGS, TENANT, Server
from dev.testbed.oracle import Oracle, version

DIRECTORY = Path("tests/differential/recorded")
SEEDS = range(20)
QUIET_S = 0.5
BESIDE = 6
ATTEMPTS = 3


def place(name: str) -> Place:
    """Where a recorded scenario runs: who is active on a Failover subscription depends on the name
    of the topic."""
    return Place(f"{TENANT}/recorded-{name}", "topic")


def wanted(names: list[str]) -> dict[str, list[Step]]:
    """Scenarios to record, by name."""
    every = SCENARIOS | {f"seed-{seed}": scenario(seed) for seed in SEEDS}
    return {name: every[name] for name in names or every}


async def _twice(server: Server, name: str, steps: list[Step]) -> Recording | None:
    """What two runs one after another show alike."""
    where, previous = place(name), None
    await server.prepare(where.namespace)
    for _ in range(ATTEMPTS):
        shown = await run(server, where, steps, QUIET_S)
        if shown == previous:
            return Recording(name, version(), shown)
        previous = shown
    return None


async def _record(server: Server, names: list[str]) -> int:
    gate = asyncio.Semaphore(BESIDE)

    async def one(name: str, steps: list[Step]) -> bool:
        async with gate:
            recording = await _twice(server, name, steps)
        if recording is None:
            print(f"{name}: never the same twice, not recorded", flush=True)
            return False
        recording.write(DIRECTORY)
        return True

    done = await asyncio.gather(*(one(name, steps) for name, steps in wanted(names).items()))
    print(f"{done.count(True)} recorded, {done.count(False)} not")
    await server.close()
    return 1 if False in done else 0


def main() -> int:
    """Record all scenarios, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m dev.differential.record", description=__doc__)
    parser.add_argument("names", nargs="*", help="scenarios (default: all)")
    parser.add_argument("--pulsar", help="use this running one: broker port:HTTP port")
    options = parser.parse_args()
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="magnetar-record-") as scratch:
        if options.pulsar:
            broker_port, http_port = options.pulsar.split(":")
            server = Server("pulsar", int(broker_port), f"http://127.0.0.1:{http_port}")
        else:
            oracle = stack.enter_context(Oracle(Path(scratch), ORACLE_SETTINGS))
            server = Server("pulsar", oracle.broker_port, oracle.http_url)
        return asyncio.run(_record(server, options.names))


if __name__ == "__main__":
    sys.exit(main())
