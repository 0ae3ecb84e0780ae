"""`python -m dev.bench.idle_connections`: what connections cost that do nothing, or next to it.

Owns: two standalone servers, one with and one without such connections, a client that publishes at
both by turns, and the tables. Imports: magnetar.client, server_process, idle_peers,
dev.bench.report. Invariants: memory is the proportional set size of the server's process; the two
servers run the same tree at the same time, so their ratio is what may be compared between machines.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from dev.bench.idle_peers import Ended, Holder
from dev.bench.report import table
from dev.server_process import ServerProcess
from magnetar.client import Client

CONNECTIONS, SLOW, TURNS, SENDS = 10_000, 500, 20, 200
PAYLOAD = bytes(1024)
BURST, SLOW_KINDS = (
    "idle after a burst",
    ("CONNECT", "HTTP head", "HTTP body", "frame", "large frame"),
)
SPARE_FILES = 3_000
"""Of a server, which keeps some for itself, for HTTP and for handshakes."""
SETTLE_S = 3.0
PATIENCE_S = 150.0
"""Longer than any time limit of a server with its own settings."""
Rows: TypeAlias = list[tuple[str, ...]]
Case: TypeAlias = Callable[[ServerProcess, ServerProcess], Rows]


def memory_bytes(server: ServerProcess) -> int:
    """PSS of the process."""
    text = Path(f"/proc/{server.pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))


def files(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


@dataclass(frozen=True, slots=True)
class Latency:
    """Of one synchronous send, in milliseconds: the median turn."""

    p50: float
    p99: float


async def publish(beside: ServerProcess, alone: ServerProcess, turns: int) -> list[Latency]:
    """One client at each server, by turns; beside the connections first."""
    turn_figures: list[list[Latency]] = [[], []]
    async with Client(beside.service_url) as one, Client(alone.service_url) as other:
        producers = [await client.create_producer("idle") for client in (one, other)]
        for number in range(turns + 1):
            for at in (0, 1) if number % 2 else (1, 0):
                taken: list[float] = []
                for _ in range(SENDS):
                    begun = time.perf_counter()
                    await producers[at].send(PAYLOAD)
                    taken.append((time.perf_counter() - begun) * 1e3)
                cuts = statistics.quantiles(taken, n=100)
                if number:  # the first turn warms both
                    turn_figures[at].append(Latency(cuts[49], cuts[98]))
    return [
        Latency(
            statistics.median(turn.p50 for turn in found),
            statistics.median(turn.p99 for turn in found),
        )
        for found in turn_figures
    ]


def latency_rows(name: str, found: Sequence[Latency]) -> Rows:
    beside, alone = found
    return [
        (f"publish beside {name}, p50 / p99 ms", f"{beside.p50:.2f} / {beside.p99:.2f}"),
        ("publish beside none, p50 / p99 ms", f"{alone.p50:.2f} / {alone.p99:.2f}"),
        ("ratio", f"x{beside.p50 / alone.p50:.2f} / x{beside.p99 / alone.p99:.2f}"),
    ]


def idle(
    server: ServerProcess,
    alone: ServerProcess,
    *,
    kind: str,
    count: int,
    seconds: float,
    turns: int,
) -> Rows:
    """Memory, processor time and latency with idle connections, and what is left after them and
    after as many again."""
    before, files_before = memory_bytes(server), files(server)
    with Holder(kind, server.broker_port, count) as held:
        time.sleep(SETTLE_S)
        open_, files_open = memory_bytes(server), files(server)
        began = time.monotonic()
        spent = [-one.cpu_seconds() for one in (server, alone)]
        time.sleep(seconds)
        spent = [was + one.cpu_seconds() for was, one in zip(spent, (server, alone), strict=True)]
        window_s = time.monotonic() - began
        latencies = asyncio.run(publish(server, alone, turns)) if turns else []
        late = memory_bytes(server)
        fared = held.ended(wait=False)
    time.sleep(SETTLE_S)
    after, files_after = memory_bytes(server), files(server)
    with Holder(kind, server.broker_port, count):
        time.sleep(SETTLE_S)
        again = memory_bytes(server)
    rows: Rows = [
        ("connections, open at the end", f"{files_open - files_before}, {fared.left}"),
        ("opened in, s", f"{held.opened_s:.1f}"),
        ("memory before / with / after / again, MB", _megabytes(before, open_, after, again)),
        ("per connection, kB", f"{(open_ - before) / count / 1e3:.1f}"),
        (f"after {window_s:.0f} s and more, kB", f"{(late - before) / count / 1e3:.1f}"),
        ("processor, with / without, %", " / ".join(f"{one / window_s:.2%}" for one in spent)),
        ("files before / after", f"{files_before} / {files_after}"),
    ]
    return rows + (latency_rows(kind, latencies) if latencies else [])


def _megabytes(*sizes: int) -> str:
    return " / ".join(f"{size / 1e6:.1f}" for size in sizes)


def slow(server: ServerProcess, alone: ServerProcess, *, kind: str, count: int, turns: int) -> Rows:
    """Peers that send a byte every two seconds: when the server closes them, and what others
    notice."""
    port = server.http_port if kind.startswith("HTTP") else server.broker_port
    before, files_before = memory_bytes(server), files(server)
    with Holder(kind, port, count) as held:
        open_ = memory_bytes(server)
        latencies = asyncio.run(publish(server, alone, turns))
        deadline = time.monotonic() + PATIENCE_S
        while files(server) > files_before + count // 10 and time.monotonic() < deadline:
            time.sleep(0.5)
        fared: Ended = held.ended(wait=time.monotonic() < deadline)
    time.sleep(SETTLE_S)
    return [
        ("closed by the server / left", f"{fared.closed} / {fared.left}"),
        ("closed after, s", f"{fared.shortest_s:.1f} to {fared.longest_s:.1f}"),
        (
            "memory before / with / after, MB",
            _megabytes(before, open_, memory_bytes(server)),
        ),
        ("files before / after", f"{files_before} / {files(server)}"),
        *latency_rows(kind, latencies),
    ]


def room(wanted: int) -> int:
    """How many connections the limit of open files permits, said clearly if fewer."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    possible = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard - SPARE_FILES)
    if possible < 1:
        raise SystemExit(f"RLIMIT_NOFILE: {hard} files are too few; raise the hard limit")
    if possible < wanted:
        print(
            f"RLIMIT_NOFILE: the hard limit of {hard} files permits {possible} connections, not "
            f"{wanted}; raise it (ulimit -Hn) for all of them"
        )
    return possible


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m dev.bench.idle_connections", description=__doc__
    )
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--slow", type=int, default=SLOW, help="peers of each slow kind")
    parser.add_argument(
        "--seconds", type=float, default=70.0, help="of idling; PING comes every 30"
    )
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--only", nargs="*", default=(), help="kinds of dev.bench.idle_peers")
    options = parser.parse_args()
    count, few, turns = room(options.connections), options.slow, options.turns
    cases: dict[str, Case] = {
        "idle": partial(idle, kind="idle", count=count, seconds=options.seconds, turns=turns),
        BURST: partial(idle, kind=BURST, count=few, seconds=options.seconds, turns=0),
        **{kind: partial(slow, kind=kind, count=few, turns=turns) for kind in SLOW_KINDS},
    }
    for name, case in cases.items():
        if options.only and name not in options.only:
            continue
        with (
            tempfile.TemporaryDirectory(prefix="idle-connections-") as directory,
            ServerProcess(Path(directory) / "beside") as server,
            ServerProcess(Path(directory) / "alone") as alone,
        ):
            asyncio.run(publish(server, alone, 1))
            print(f"\n{name}\n{table(('', ''), case(server, alone), left_from=0)}", flush=True)


if __name__ == "__main__":
    main()
