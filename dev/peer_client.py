"""`python -m dev.peer_client`: `magnetar.client` against Apache Pulsar.

Owns: starting an Apache Pulsar with transactions, running on it every scenario of
`client_scenarios`, every block of docs/client.md and examples/exactly_once.py, and saying which
hold. Imports: dev.bench (the distribution and its server), client_scenarios, client_guide. Not a
tier of the tests: it needs a download of 245 MB and 3 GB of memory. Invariants: only the server
started here is stopped, by its own handle; the exit code is 0 only if every scenario held.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

from dev import client_guide
from dev.bench.pulsar_distribution import ensure
from dev.bench.pulsar_peer import PulsarPeer
from dev.client_scenarios import BASIC, TRANSACTIONAL
from magnetar.client import Client

SCENARIO_TIMEOUT_S = 120.0
EXAMPLE_MESSAGES = "5000"
SETTINGS = {
    "transactionCoordinatorEnabled": "true",
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
}


async def _try(
    scenario: Callable[[Client, str], Awaitable[None]], name: str, service_url: str
) -> None:
    async with asyncio.timeout(SCENARIO_TIMEOUT_S), Client(service_url) as client:
        await scenario(client, f"peer-{name}")


def _example(service_url: str) -> None:
    command = [
        sys.executable,
        "examples/exactly_once.py",
        "--service-url",
        service_url,
        "--messages",
        EXAMPLE_MESSAGES,
    ]
    subprocess.run(command, check=True, timeout=SCENARIO_TIMEOUT_S)


def run(service_url: str, wanted: list[str]) -> int:
    """Run everything, or what is named; the number that failed."""
    trials: dict[str, Callable[[], None]] = {}
    for scenario in (*BASIC, *TRANSACTIONAL):
        name = scenario.__name__
        trials[name] = lambda scenario=scenario, name=name: asyncio.run(
            _try(scenario, name, service_url)
        )  # type: ignore[misc]
    for number, block in enumerate(
        [*client_guide.blocks(coordinators=False), *client_guide.blocks(coordinators=True)]
    ):
        trials[f"guide_block_{number}"] = lambda block=block: client_guide.run(block, service_url)  # type: ignore[misc]
    trials["example_exactly_once"] = lambda: _example(service_url)
    failed = 0
    for name, trial in trials.items():
        if wanted and name not in wanted:
            continue
        try:
            trial()
        except Exception:
            failed += 1
            traceback.print_exc()
            print(f"FAILED  {name}", flush=True)
        else:
            print(f"held    {name}", flush=True)
    return failed


def main(arguments: list[str]) -> int:
    """Start the server, run, stop it."""
    home = ensure()
    with tempfile.TemporaryDirectory(prefix="magnetar-peer-") as directory:
        peer = PulsarPeer(home, Path(directory), SETTINGS)
        try:
            print(f"Apache Pulsar is ready after {peer.start():.0f} s", flush=True)
            return run(peer.service_url, arguments)
        finally:
            peer.stop()


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
