"""Objects that are linked files: what a crash leaves of them."""

from __future__ import annotations

import os
from pathlib import Path

from magnetar.storage.volumes.coherence import LEFT_BEHIND_S
from magnetar.storage.volumes.linked import LinkedObjects
from magnetar.storage.volumes.posix import TEMPORARY


async def test_the_start_up_check_drops_what_a_crash_has_left(tmp_path: Path) -> None:
    """Files that were never linked, once nobody can be writing them any more; one that may be a
    live process's, and objects, stay."""

    objects = LinkedObjects(tmp_path / "new")
    await objects.check()
    assert await objects.put_if_absent("kept", [b"here"])
    object_path = tmp_path / "new" / "kept"
    old, young = tmp_path / "new" / TEMPORARY / "1.2", tmp_path / "new" / TEMPORARY / "1.3"
    for path in (old, young):
        path.write_bytes(b"left behind")
    for path in (old, object_path):
        os.utime(path, (0, path.stat().st_mtime - LEFT_BEHIND_S - 60))
    await objects.check()
    assert list((tmp_path / "new" / TEMPORARY).iterdir()) == [young]
    assert await objects.get("kept") == b"here"
    await objects.close()
