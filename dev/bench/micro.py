"""`python -m dev.bench.micro [case ...]`: short loads on a standalone server with a generator of
our own.

Owns: the command line: one fresh server for each case. Imports: cases, report (tables),
server_profile, dev.server_process. Seconds instead of the minutes that `python -m dev.bench` takes,
and without Java: what one changes and measures with. Processor time per message is the figure to
compare; two trees are compared by `--tree`, whose servers take turns. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from dev.bench import pulsar_distribution
from dev.bench.cases import CASES, WARM_S, Case
from dev.bench.pulsar_peer import PulsarPeer
from dev.bench.report import CASE_HEADERS, PEER, case_cells, hot_functions, table
from dev.bench.server_profile import ProfiledServer, read_profile
from dev.server_process import ServerProcess

PEER_WARM_S = 5.0


def main() -> None:
    options = _parse()
    with ExitStack() as running:
        peer = _start_peer(running, options.directory) if options.peer else None
        _run(options, peer)


def _run(options: argparse.Namespace, peer: PulsarPeer | None) -> None:
    rows = []
    for case in (CASES[name] for name in options.cases or CASES):
        for tree in [tree for _ in range(options.rounds) for tree in options.tree or ["."]]:
            with tempfile.TemporaryDirectory(
                prefix="magnetar-micro-", dir=options.directory
            ) as directory:
                if options.profile:
                    print(_profile(case, Path(directory), options.seconds))
                    continue
                rows.append(_measure(case, Path(tree).resolve(), Path(directory), options.seconds))
                _say(rows[-1])
        if peer is not None and not options.profile:
            rows.append(case_cells(PEER, case.measure(peer, options.seconds)))
            _say(rows[-1])
    if rows:
        print(table(CASE_HEADERS, rows))


def _start_peer(running: ExitStack, below: Path | None) -> PulsarPeer:
    """Apache Pulsar with fsync, warm: its first half minute is half as fast."""
    directory = running.enter_context(
        tempfile.TemporaryDirectory(prefix="magnetar-peer-", dir=below)
    )
    peer = PulsarPeer(pulsar_distribution.ensure(), Path(directory))
    running.callback(peer.stop)
    peer.start()
    for name in ("unbatched", "batched", "unbatched", "batched"):
        CASES[name].measure(peer, PEER_WARM_S)
    return peer


def _say(row: list[str]) -> None:
    print(
        "  ".join(f"{head} {cell}" for head, cell in zip(CASE_HEADERS, row, strict=True) if cell),
        file=sys.stderr,
    )


def _measure(case: Case, tree: Path, directory: Path, seconds: float) -> list[str]:
    """The row of one case on a fresh server of the checkout `tree`."""
    path = os.pathsep.join(str(tree / part) for part in ("broker_image", "."))
    server = ServerProcess(directory, environment={"PYTHONPATH": path})
    server.start()
    try:
        return case_cells(tree.name, case.measure(server, seconds))
    finally:
        server.stop()


def _profile(case: Case, directory: Path, seconds: float) -> str:
    """The hottest functions of the event loop, from the server's start on."""
    server = ProfiledServer(directory)
    server.start()
    try:
        server.begin()
        found = case.measure(server, seconds)
    finally:
        elapsed = server.finish()
    messages = max(1, int(found.messages_per_s * (seconds + WARM_S)))
    return hot_functions(read_profile(case.name, server.profile_path, elapsed, messages, count=30))


def _parse() -> argparse.Namespace:
    known = "\n".join(f"  {case.name:<20}{case.what}" for case in CASES.values())
    parser = argparse.ArgumentParser(
        prog="python -m dev.bench.micro",
        description="Short loads on a standalone server.",
        epilog=f"cases:\n{known}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "cases", nargs="*", default=[], choices=[*CASES, []], metavar="case", help="default: all"
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="measured per case (default 4)")
    parser.add_argument(
        "--tree",
        action="append",
        help="a checkout whose server is measured; repeat to compare (default: this one)",
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--peer", action="store_true", help="each case on Apache Pulsar with fsync, too"
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="the hottest functions of each case (this tree) instead of figures",
    )
    parser.add_argument(
        "--directory", type=Path, help="where data is written (default: the system's /tmp)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
