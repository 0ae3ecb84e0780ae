"""A run with a directory of its own, whose logs are kept if it fails.

Owns: the directory, the log of our own client, and what is copied from it. Imports: structlog.
Invariant: the directory is removed whatever happens; logs are kept exactly if the code is not 0.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

LOGS = ("*.log", "*.json*", "*/*.log", "cluster/*/etcd.log", "skew/*")


def parser_of(description: str, minutes: float, seed_of: str) -> argparse.ArgumentParser:
    """A parser of what every run takes: --minutes, --seed and --keep."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--minutes", type=float, default=minutes, help="how long, at most")
    parser.add_argument(
        "--seed", default=str(int(time.time())), help=f"draws {seed_of}; default: the time of day"
    )
    parser.add_argument(
        "--keep", type=Path, default=Path("build"), help="where logs go if it fails"
    )
    return parser


def run_in_directory(
    name: str,
    chosen: argparse.Namespace,
    run: Callable[[Path], int],
    repeat: str = "",
    client_log: str = "ordinary-client.log",
    patterns: Sequence[str] = LOGS,
) -> int:
    """Call `run` with a new directory; the exit code. `repeat` says how to repeat the run."""
    directory = Path(tempfile.mkdtemp(prefix=f"magnetar-{name}-"))
    print(
        f"{name}, {chosen.minutes:g} minutes, seed {chosen.seed}; logs in {directory}", flush=True
    )
    code = 1
    with (directory / client_log).open("w") as log:  # its reconnects are expected: kept apart
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(log))
        try:
            code = run(directory)
        finally:
            log.flush()
            if code != 0:
                kept = chosen.keep / f"{name}-{chosen.seed}"
                kept.mkdir(parents=True, exist_ok=True)
                for pattern in patterns:
                    for file in directory.glob(pattern):
                        shutil.copy(file, kept)
                print(f"logs kept in {kept}" + (f"; repeat with: {repeat}" if repeat else ""))
            shutil.rmtree(directory, ignore_errors=True)
            structlog.reset_defaults()
    return code
