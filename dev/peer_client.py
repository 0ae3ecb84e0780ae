"""`python -m dev.peer_client`: `magnetar.client` against Apache Pulsar.

Owns: starting an Apache Pulsar with transactions, running every scenario of `client_scenarios` on it, and saying which hold.
Imports: dev.bench (the distribution and its server), client_scenarios. Not a tier of the tests: it needs a download of 245 MB and 3 GB of memory.
Invariants: only the server started here is stopped, by its own handle; the exit code is 0 only if every scenario held.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import traceback
from pathlib import Path

from dev.bench.pulsar_distribution import ensure
from dev.bench.pulsar_peer import PulsarPeer
from dev.client_scenarios import BASIC, TRANSACTIONAL
from magnetar.client import Client

SCENARIO_TIMEOUT_S = 120.0
SETTINGS = {"transactionCoordinatorEnabled": "true", "acknowledgmentAtBatchIndexLevelEnabled": "true"}


async def run(service_url: str, wanted: list[str]) -> int:
    """Run the scenarios (those named, or all); the number that failed."""
    failed = 0
    for scenario in (*BASIC, *TRANSACTIONAL):
        name = scenario.__name__
        if wanted and name not in wanted:
            continue
        try:
            async with asyncio.timeout(SCENARIO_TIMEOUT_S), Client(service_url) as client:
                await scenario(client, f"peer-{name}")
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
            return asyncio.run(run(peer.service_url, arguments))
        finally:
            peer.stop()


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
