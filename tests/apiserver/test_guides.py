"""The guides are true: their commands are run against a real API server, in order, and succeed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from dev.testbed.control_plane import ROOT, ControlPlane, binary
from tests.support.guides import GUIDES

pytestmark = pytest.mark.slow

_BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""Blocks marked `bash node` need a kubelet, and are not among these."""
BLOCK_TIMEOUT_S = 300


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs that the guides call."""
    folder = tmp_path_factory.mktemp("tools")
    for name in ("kubectl", "helm"):
        (folder / name).symlink_to(binary(name))
    return folder


@pytest.mark.parametrize("guide", GUIDES)
def test_every_command_of_the_guide_succeeds(
    chart_plane: ControlPlane, tools: Path, guide: str
) -> None:
    """As a person would paste them: one block after the other, from the checkout's root. Nothing
    is left behind for the next guide."""
    environment = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "KUBECONFIG": str(chart_plane.kubeconfig),
    }
    blocks = _BLOCK.findall((ROOT / "docs" / guide).read_text())
    assert len(blocks) >= 5
    for block in blocks:
        command = ["bash", "-euo", "pipefail", "-c", block]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=BLOCK_TIMEOUT_S,
        )
        assert done.returncode == 0, f"{guide}:\n{block}\n{done.stdout}{done.stderr}"
