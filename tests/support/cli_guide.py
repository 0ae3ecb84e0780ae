"""Commands of the guide to the command line, for tests."""

from __future__ import annotations

import re
from pathlib import Path

from tests.clients.program import ROOT

GUIDE = ROOT / "docs/cli.md"


_BLOCK = re.compile(r"^```console *(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(where: str, guide: Path = GUIDE) -> list[str]:
    """Lines of a guide's blocks for one kind of server ("" = any)."""
    blocks = [text for kind, text in _BLOCK.findall(guide.read_text()) if kind == where]
    return [
        line.removeprefix("$ ")
        for text in blocks
        for line in text.splitlines()
        if line.startswith("$ ")
    ]
