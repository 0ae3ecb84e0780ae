"""The guide to the command line is true: every command in it is run, in order, and succeeds."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.server_process import ServerProcess
from magnetar.cli import SERVERS
from magnetar.cli.commands import application
from tests.clients.program import Program
from tests.support.cli_guide import GUIDE, commands


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Program]:
    with ServerProcess(tmp_path) as process:
        yield Program(process.http_url, process.service_url)


@pytest.mark.slow
def test_every_command_of_the_guide_succeeds(alone: Program) -> None:
    """Against a standalone server; those for clusters run in `test_cli`."""
    listed = commands("")
    assert len(listed) > 30
    for line in listed:
        program, *arguments = shlex.split(line)
        assert program == "magnetar"
        alone.ok(*arguments)


def test_the_guide_names_every_command() -> None:
    """Nothing is offered that the guide is silent about."""
    text = GUIDE.read_text()
    groups = [found.name for found in application.registered_groups]
    named = [
        found.name or found.callback.__name__
        for found in application.registered_commands
        if found.callback is not None
    ]
    servers = {*SERVERS}
    assert [
        name for name in (*groups, *named) if name not in servers and f"magnetar {name}" not in text
    ] == []
