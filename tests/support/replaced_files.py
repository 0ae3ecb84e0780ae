"""Files that a server follows while a test changes them.

Owns: `replace_file`, which changes one as an orchestrator does: at once. A follower reads in a
thread of its own, and would find a file that is written in place empty for a moment. Imports: the
standard library.
"""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, content: bytes | str) -> None:
    """A reader of `path` finds what it held before, or all of `content`."""
    beside = path.with_name(f".{path.name}.next")
    beside.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(beside, path)
