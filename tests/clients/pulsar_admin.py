"""The official pulsar-admin as seen by a test.

Owns: `PulsarAdmin`: one JVM that runs command lines one after another; `Site`: it and the servers
that it asks. Imports: foreign_build. Invariants: a command line is exactly what a person would type
behind `pulsar-admin`; each has a deadline; the JVM is ended by its own handle.
"""

from __future__ import annotations

import json
import select
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dev.testbed import foreign_build

COMMAND_S = 300.0
"""The first command of a JVM on a busy machine takes a minute; none waits for anything else."""


@dataclass(frozen=True)
class Outcome:
    """Whether a command's exit code was 0, and what it printed."""

    ok: bool
    out: str
    err: str


class PulsarAdmin:
    """pulsar-admin against one HTTP address."""

    def __init__(self, http_url: str, directory: Path) -> None:
        self._log = directory / "pulsar-admin.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*foreign_build.pulsar_admin(), http_url],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def run(self, command: str) -> Outcome:
        """Run one command line. Raises AssertionError if there is no answer in time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"args": shlex.split(command)}).encode() + b"\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], COMMAND_S)
        assert ready, f"pulsar-admin {command}: no answer in {COMMAND_S} s"
        line = self._process.stdout.readline()
        assert line, f"pulsar-admin has ended at {command}: {self._log.read_text()[-2000:]}"
        return Outcome(**json.loads(line))

    def __call__(self, command: str) -> str:
        """What a command that succeeds prints, without the last line's end."""
        found = self.run(command)
        assert found.ok, f"pulsar-admin {command}: {found.err or found.out}"
        return found.out.rstrip("\n")

    def lines(self, command: str) -> list[str]:
        """What a command that succeeds prints, by lines."""
        return self(command).splitlines()

    def json(self, command: str) -> Any:
        """The JSON that a command prints."""
        text = self(command)
        try:
            return json.loads(text)
        except ValueError:
            raise AssertionError(f"pulsar-admin {command} printed no JSON: {text[:500]}") from None

    def refused(self, command: str) -> str:
        """What a command that fails says."""
        found = self.run(command)
        assert not found.ok, f"pulsar-admin {command} was not refused: {found.out}"
        return found.err + found.out

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        if self._process.stdout is not None:
            self._process.stdout.close()


@dataclass(frozen=True)
class Site:
    """Where the commands go."""

    admin: PulsarAdmin
    service_url: str
    brokers: int
