"""A file system of its own for a test, which it can fill up and freeze.

Owns: `small_disk`, mounting and unmounting one; `fill`; `frozen`. Imports: pytest. Invariant: where
none can be mounted (no root, no loop devices) the test fails and says so: a full disk is not tested
by a skipped test.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY_DISK = "tmpfs"
KINDS = (MEMORY_DISK, "ext4")


def _run(*command: str) -> None:
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        pytest.fail(
            f"{' '.join(command)}: {found.stderr.strip()}: a small file system is needed, so run "
            "this as root"
        )


@contextlib.contextmanager
def small_disk(kind: str, directory: Path, size: int) -> Iterator[Path]:
    """A file system of `size` bytes mounted below `directory`: in memory, or ext4 on a loop
    device."""
    root = directory / "disk"
    root.mkdir()
    if kind == MEMORY_DISK:
        _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(root))
    else:
        image = directory / "image"
        image.write_bytes(b"")
        os.truncate(image, size)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
        _run("mount", "-o", "loop", str(image), str(root))
    try:
        yield root
    finally:
        _run("umount", str(root))


def fill(path: Path) -> None:
    """Write, behind what is there, until no space is left."""
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        while True:
            os.write(file.fileno(), bytes(1 << 16))
    with path.open("rb") as file:
        os.fsync(file.fileno())  # what the file system has only promised so far is taken now


@contextlib.contextmanager
def frozen(root: Path) -> Iterator[None]:
    """Nothing is written concurrently: writes and flushes hang, reads do not."""
    _run("fsfreeze", "--freeze", str(root))
    try:
        yield
    finally:
        _run("fsfreeze", "--unfreeze", str(root))
