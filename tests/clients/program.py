"""The command line, as the tests run it.

Owns: `Program`: `magnetar` with the addresses of one cluster, its output and its exit code.
Imports: magnetar.cli. Invariant: the environment and the working directory are as before when a
command has ended.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from magnetar.cli import main

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 240


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


class Program:
    """`magnetar` with the addresses of one cluster in its environment.

    Commands run in this process, which starts none of the two hundred interpreters; with `text` as
    their standard input, in one of their own.
    """

    def __init__(self, url: str, service_url: str) -> None:
        self._environment = {"MAGNETAR_URL": url, "MAGNETAR_SERVICE_URL": service_url}

    def run(self, *arguments: str, text: str = "") -> Done:
        """One command."""
        if text:
            command = [sys.executable, "-m", "magnetar", *arguments]
            environment = {**os.environ, **self._environment}
            done = subprocess.run(
                command,
                input=text,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
                env=environment,
                cwd=ROOT,
            )
            return Done(done.returncode, done.stdout, done.stderr)
        out, err, code = io.StringIO(), io.StringIO(), 0
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            for name, value in self._environment.items():
                patch.setenv(name, value)
            patch.chdir(ROOT)
            try:
                main(arguments)
            except SystemExit as exit_:
                code = exit_.code if isinstance(exit_.code, int) else 0
        return Done(code, out.getvalue(), err.getvalue())

    def ok(self, *arguments: str, text: str = "") -> str:
        """What a command prints that must succeed."""
        done = self.run(*arguments, text=text)
        assert done.returncode == 0, (arguments, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """What a script reads."""
        return json.loads(self.ok(*arguments, "--output", "json"))

    def refused(self, *arguments: str, code: int = 1) -> str:
        """The error of a command that must fail: at most two lines, the first begins with the
        program's name."""
        done = self.run(*arguments)
        assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
        assert done.stderr.startswith("magnetar: "), done.stderr
        assert len(done.stderr.splitlines()) <= 2
        return done.stderr
