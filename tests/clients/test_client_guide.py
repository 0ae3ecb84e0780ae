"""docs/client.md and the examples of the Python client, run as they stand against a real server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dev import client_guide
from dev.server_process import ServerProcess

ROOT = Path(__file__).parent.parent.parent
EXAMPLE_TIMEOUT_S = 300


@pytest.mark.slow
def test_every_block_of_the_guide_runs(
    shared_server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that need transaction coordinators as well."""
    found = [*client_guide.blocks(coordinators=False), *client_guide.blocks(coordinators=True)]
    for block in found:
        client_guide.run(block, shared_server.service_url)
    assert len(found) == 10
    assert "b'first'" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "says"), [("orders", "billed 47025.00"), ("retries", "dead: b'poison'")]
)
def test_an_example_runs(shared_server: ServerProcess, name: str, says: str) -> None:
    """As a user would start it; what it prints is what happened."""
    command = [sys.executable, f"examples/client/{name}.py", shared_server.service_url]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=EXAMPLE_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert says in done.stdout
