"""Whether a file system can carry the fence.

Owns: the list of file systems known to show a removal to every process at once, and the start-up
probe. Imports: ctypes, os, tempfile, errors, structlog. Invariant: an unknown file system is
refused, not tried: one that caches attributes (NFS) would let a fenced owner keep acknowledging.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import tempfile
from pathlib import Path

import structlog

from magnetar.errors import StorageError
from magnetar.reserve import NO_SPACE, RESERVE

log = structlog.get_logger(__name__)

# Linux statfs(2), f_type.
_COHERENT = {
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x01021994: "tmpfs",
    0x794C7630: "overlayfs",
}
_NFS = 0x6969
_REFUSED = {
    _NFS: "NFS",
    0xFE534D42: "SMB",
    0xFF534D42: "CIFS",
    0x65735546: "FUSE",
    0x01021997: "9p",
}
_VOLATILE = 0x01021994
_STATFS_BYTES = 256
LEFT_BEHIND_S = 3600


def file_system_magic(path: Path) -> int:
    """The `f_type` that statfs(2) reports for `path`. Raises StorageError."""
    library = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if library.statfs(os.fsencode(path), buffer) != 0:
        number = ctypes.get_errno()
        raise StorageError(
            f"statfs of {path} failed: {os.strerror(number)}; mount the volume there"
        )
    # f_type is the first member, a machine word whose upper half is not always zero (its sign may
    # be extended).
    return int(struct.unpack_from("@l", buffer)[0]) & 0xFFFFFFFF


def check_file_system(magic: int, path: Path) -> None:
    """Raises StorageError unless `magic` is that of a coherent file system; warns about one that
    a reboot empties."""
    if magic not in _COHERENT:
        raise StorageError(
            f"{path} is on {_REFUSED.get(magic, 'an unknown file system')} (type 0x{magic:x}), "
            "where a removed claim may go unnoticed; "
            f"mount a volume with one of {', '.join(sorted(_COHERENT.values()))}"
            + (
                f", or name it link://{path}: every commit then is a file of its own, which NFS "
                "decides in one place"
                if magic == _NFS
                else ""
            )
        )
    _warn_of_volatile(magic, path)


def check_linked_file_system(magic: int, path: Path) -> None:
    """Raises StorageError unless link() on a file system of type `magic` is known to be decided
    in one place, whatever clients cache."""
    if magic not in _COHERENT and magic != _NFS:
        raise StorageError(
            f"{path} is on {_REFUSED.get(magic, 'an unknown file system')} (type 0x{magic:x}), "
            "where two may succeed in linking one name; "
            f"mount a volume with one of {', '.join(sorted([*_COHERENT.values(), 'NFS']))}, or use "
            "s3://"
        )
    _warn_of_volatile(magic, path)


def _warn_of_volatile(magic: int, path: Path) -> None:
    if magic == _VOLATILE:
        log.warning(
            "volume.volatile",
            path=str(path),
            reason="tmpfs keeps nothing over a reboot; use it for tests only",
        )


def probe_coherence(root: Path, temporary: Path) -> None:
    """Check the type of the file system, then that creating, linking and removing files below
    `root` work and are seen at once.

    Also drops files in `temporary` that a crash left behind. Raises StorageError saying what to do;
    OSError if there is no space.
    """
    try:
        temporary.mkdir(parents=True, exist_ok=True)
        check_file_system(file_system_magic(root), root)
        with tempfile.TemporaryDirectory(prefix="probe-", dir=temporary) as directory:
            first, second = Path(directory, "first"), Path(directory, "second")
            first.write_bytes(b"probe")
            os.link(first, second)
            first.unlink()
            coherent = second.read_bytes() == b"probe" and not first.exists()
            second.unlink()
            coherent = coherent and not second.exists()
        compact_left_behind(temporary)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise
        raise StorageError(
            f"{root} cannot be used: {error}; mount a volume that this user may write"
        ) from error
    if not coherent:
        raise StorageError(
            f"{root} shows removed files; mount a volume with one of "
            f"{', '.join(sorted(_COHERENT.values()))}"
        )


def compact_left_behind(temporary: Path) -> None:
    """Remove files that a crash has left in `temporary`: last written `LEFT_BEHIND_S` ago or more,
    by the clock of the file system.

    The volume's reserve lies there as well, and stays.

    No live process writes one that slowly. Another broker may clean concurrently. Raises OSError.
    """
    with tempfile.NamedTemporaryFile(prefix="probe-", dir=temporary) as probe:
        before = os.fstat(probe.fileno()).st_mtime - LEFT_BEHIND_S
    for path in temporary.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and path.name != RESERVE and path.stat().st_mtime < before:
                path.unlink()
