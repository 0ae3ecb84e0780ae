"""How much memory this process may take.

Owns: reading the limit of its control group. Imports: the standard library. Invariant: a limit that
the machine cannot reach is none.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

LIMIT_FILES = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Of control groups of version 2 and 1, as a container sees its own."""


def machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def limit_bytes(files: Sequence[Path] = LIMIT_FILES) -> int | None:
    """The control group's limit; None if it sets none."""
    for path in files:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        # Version 1 has a huge number where version 2 says "max".
        return int(text) if text.isdigit() and int(text) < machine_bytes() else None
    return None
