"""What the tools say on the terminal.

Owns: progress lines, plain tables, and how a command ends. May import: the standard library.
Invariant: results go to standard output, everything else to standard error, so `$(python3 -m
dev.kube ...)` works.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PROGRESS_INTERVAL_SECONDS = 8.0
KEPT_LINES_MAX = 40
FETCH_ATTEMPTS = 3
"""Of a command that fetches from a network, and goes on where it was: networks fail for moments."""


class CommandFailed(RuntimeError):
    """A program we ran ended with an error; carries the end of its output."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def exit_code(command: Callable[[], int], failures: tuple[type[Exception], ...]) -> int:
    """Run a command and return what it returns; what is known to go wrong (`failures`) is said
    in a line, and is 1."""
    try:
        return command()
    except failures as error:
        say(f"error: {error}")
    except BrokenPipeError:
        # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except PermissionError as error:
        say(f"error: {error}; the local cluster and its images belong to root (sudo -E)")
    except KeyboardInterrupt:
        say("interrupted; run the same command again to continue")
    return 1


def table(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> str:
    """Columns as wide as their widest cell; the last one is not padded."""
    lines = [headers, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    padded = [
        [cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines
    ]
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def run_quietly(argv: Sequence[str | Path], *, text_input: str | None = None) -> str:
    """Run a short command and return its output; an error carries what it printed."""
    try:
        done = subprocess.run(
            [str(part) for part in argv], capture_output=True, text=True, input=text_input
        )
    except FileNotFoundError as error:
        raise CommandFailed(f"{argv[0]}: not installed") from error
    if done.returncode != 0:
        raise CommandFailed(
            f"{' '.join(str(part) for part in argv)}: {(done.stderr or done.stdout).strip()}"
        )
    return done.stdout


class LineCounter(threading.Thread):
    """Reads a pipe to its end, counting its lines and keeping the last ones."""

    def __init__(self, process: subprocess.Popen[str], echo: bool) -> None:
        super().__init__(daemon=True)
        assert process.stdout is not None, "the process must have been started with a pipe"
        self._stream = process.stdout
        self._echo = echo
        self.count = 0
        self.last_lines: list[str] = []

    def run(self) -> None:
        with self._stream:
            for line in self._stream:
                self.count += 1
                self.last_lines = [*self.last_lines, line.rstrip()][-KEPT_LINES_MAX:]
                if self._echo:
                    say(f"    {line.rstrip()}")


def run_with_progress(
    argv: Sequence[str | Path],
    describe: Callable[[int], str],
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    echo: bool = False,
    attempts: int = 1,
) -> list[str]:
    """Run a long command; every few seconds say `describe(lines so far)` and the time it has
    taken. One that fails is run again, `attempts` times in all. Raises CommandFailed."""
    while True:
        try:
            return _run_once(argv, describe, cwd, environment, echo)
        except CommandFailed as error:
            attempts -= 1
            if not attempts:
                raise
            say(f"{error}\n  it is tried again, {attempts} more at most")


def _run_once(
    argv: Sequence[str | Path],
    describe: Callable[[int], str],
    cwd: Path | None,
    environment: Mapping[str, str] | None,
    echo: bool,
) -> list[str]:
    process = subprocess.Popen(
        [str(part) for part in argv],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    lines = LineCounter(process, echo)
    lines.start()
    try:
        _wait(process, lambda: describe(lines.count))
    except BaseException:
        process.terminate()  # an interrupted caller must not leave a compiler behind
        process.wait()
        raise
    lines.join()
    if process.returncode != 0:
        raise CommandFailed(
            "\n".join([f"{' '.join(str(part) for part in argv)} failed:", *lines.last_lines])
        )
    return lines.last_lines


def _wait(process: subprocess.Popen[str], describe: Callable[[], str]) -> None:
    started = time.monotonic()
    while True:
        try:
            process.wait(PROGRESS_INTERVAL_SECONDS)
            return
        except subprocess.TimeoutExpired:
            say(f"  {describe()}, {time.monotonic() - started:.0f} s")
