"""The embedded store's file.

Owns: its format, version 1 (golden bytes in the tests), recovery, and the thread that writes it.
Imports: os, queue, threading, crc32c, structlog, errors, reserve, core, store. Format,
little-endian: a file header {magic, version, salt, CRC}, then frames {marker, payload length, frame
number, CRC, payload}. Frame 0 is a snapshot; every later frame holds the changes of one group
commit. A CRC-32C covers length, number and payload and starts from the salt. Invariants:
- a frame is written only after the previous one was flushed. So an invalid frame with a valid one
  behind it is damage to acknowledged data and is refused; an invalid frame with nothing valid
  behind it was never acknowledged and is cut;
- the file appears, and is replaced by a shorter one, by a single rename: header and snapshot are
  never torn;
- nothing is reported durable before `fdatasync` returned; after a failed write or flush the file is
  not touched again. A write for which there is no space is the exception: it takes space from the
  reserve beside the file, and waits once the reserve is used up. The reserve is larger than what is
  appended until a snapshot replaces the file, which gives the space back: the journal continues on
  a full disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import structlog
from crc32c import crc32c

from magnetar.errors import CorruptData
from magnetar.metadata.backends.core import Change, Snapshot, Write
from magnetar.metadata.store import KeyValue
from magnetar.reserve import NO_SPACE, Reserve

log = structlog.get_logger(__name__)

RESERVE_NAME = "metadata.reserve"
RESERVE_BYTES = 8 << 20
FULL_RETRY_S = 0.5
MAGIC = b"MAGNMETA"
VERSION = 1
MARKER = b"\xf5MJ\x01"
_HEADER = struct.Struct("<8sIQ")
_CRC = struct.Struct("<I")
_FRAME = struct.Struct("<4sIQI")
_COVERED = struct.Struct("<IQ")
_COUNT = struct.Struct("<QI")
_WRITE = struct.Struct("<IiQ")
_ITEM = struct.Struct("<IIQQQQ")
HEADER_BYTES = _HEADER.size + _CRC.size
REMOVED = -1


# --- payloads -------------------------------------------------------------------------------------


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Payload of frame 0: {revision, count} and per key {key length, value length, create, mod,
    version, lease, key, value}."""
    parts = [_COUNT.pack(snapshot.revision, len(snapshot.items))]
    for item in snapshot.items:
        key = item.key.encode()
        numbers = (item.create_revision, item.mod_revision, item.version, item.lease)
        parts += (_ITEM.pack(len(key), len(item.value), *numbers), key, item.value)
    return b"".join(parts)


def decode_snapshot(payload: bytes) -> Snapshot:
    """Inverse of `encode_snapshot`."""
    revision, count = _COUNT.unpack_from(payload)
    position = _COUNT.size
    items: list[KeyValue] = []
    for _ in range(count):
        key_length, value_length, *numbers = _ITEM.unpack_from(payload, position)
        position += _ITEM.size
        key = payload[position : position + key_length].decode()
        position += key_length
        items.append(KeyValue(key, payload[position : position + value_length], *numbers))
        position += value_length
    return Snapshot(revision, tuple(items))


def encode_changes(changes: Iterable[Change]) -> bytes:
    """Payload of a later frame: per change {revision, count} and per write {key length, value
    length or -1, lease, key, value}."""
    parts: list[bytes] = []
    for change in changes:
        parts.append(_COUNT.pack(change.revision, len(change.writes)))
        for write in change.writes:
            key = write.key.encode()
            value_length = REMOVED if write.value is None else len(write.value)
            parts += (_WRITE.pack(len(key), value_length, write.lease), key, write.value or b"")
    return b"".join(parts)


def decode_changes(payload: bytes) -> list[Change]:
    """Inverse of `encode_changes`."""
    changes: list[Change] = []
    position = 0
    while position < len(payload):
        revision, count = _COUNT.unpack_from(payload, position)
        position += _COUNT.size
        writes: list[Write] = []
        for _ in range(count):
            key_length, value_length, lease = _WRITE.unpack_from(payload, position)
            position += _WRITE.size
            key = payload[position : position + key_length].decode()
            position += key_length
            value = None if value_length == REMOVED else payload[position : position + value_length]
            position += max(value_length, 0)
            writes.append(Write(key, value, lease))
        changes.append(Change(revision, tuple(writes)))
    return changes


# --- frames ---------------------------------------------------------------------------------------


def encode_header(salt: int) -> bytes:
    """First bytes of a file; `salt` makes the CRCs of this file unlike those of any other (and
    of bytes inside a value)."""
    header = _HEADER.pack(MAGIC, VERSION, salt)
    return header + _CRC.pack(crc32c(header))


def encode_frame(salt: int, number: int, payload: bytes) -> bytes:
    return _FRAME.pack(MARKER, len(payload), number, _checksum(salt, number, payload)) + payload


def _checksum(salt: int, number: int, payload: bytes) -> int:
    return int(crc32c(payload, crc32c(_COVERED.pack(len(payload), number), salt & 0xFFFFFFFF)))


def _frame_at(data: bytes, position: int, salt: int) -> tuple[int, bytes] | None:
    """Number and payload of the valid frame at `position`, or None."""
    if position + _FRAME.size > len(data):
        return None
    marker, length, number, checksum = _FRAME.unpack_from(data, position)
    payload = data[position + _FRAME.size : position + _FRAME.size + length]
    if marker != MARKER or len(payload) != length or checksum != _checksum(salt, number, payload):
        return None
    return number, payload


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a journal holds: everything acknowledged.

    `length` is where its valid part ends, `last_frame` where the last frame of it begins,
    `snapshot_bytes` where frame 0 ends.
    """

    salt: int
    snapshot: Snapshot
    changes: tuple[Change, ...]
    frames: int
    length: int
    last_frame: int
    snapshot_bytes: int


def recover(data: bytes, name: str) -> Recovered:
    """Parse a whole file. Raises CorruptData, naming file and offset, where acknowledged data is
    damaged."""
    if len(data) < HEADER_BYTES or _CRC.unpack_from(data, _HEADER.size)[0] != crc32c(
        data[: _HEADER.size]
    ):
        raise CorruptData(f"{name}: damaged header; restore the file from a backup")
    magic, version, salt = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise CorruptData(
            f"{name}: {magic!r} version {version} is not {MAGIC!r} version {VERSION}; use the "
            "release that wrote it"
        )
    position = HEADER_BYTES
    payloads: list[bytes] = []
    while (frame := _frame_at(data, position, salt)) is not None and frame[0] == len(payloads):
        payloads.append(frame[1])
        position += _FRAME.size + len(frame[1])
    if not payloads:
        raise CorruptData(
            f"{name}: damaged snapshot at offset {position}; restore the file from a backup"
        )
    behind = data.find(MARKER, position)
    while behind >= 0:
        if (frame := _frame_at(data, behind, salt)) is not None:
            found = f"frame {frame[0]} at offset {behind} is valid"
            raise CorruptData(
                f"{name}: damaged at offset {position}, but {found}; restore the file from a backup"
            )
        behind = data.find(MARKER, behind + 1)
    changes = tuple(change for payload in payloads[1:] for change in decode_changes(payload))
    snapshot_bytes = HEADER_BYTES + _FRAME.size + len(payloads[0])
    last_frame = position - _FRAME.size - len(payloads[-1])
    return Recovered(
        salt,
        decode_snapshot(payloads[0]),
        changes,
        len(payloads),
        position,
        last_frame,
        snapshot_bytes,
    )


# --- the file -------------------------------------------------------------------------------------


class JournalFile:
    """An open journal of `size` bytes, of which `snapshot_bytes` were its first.

    Blocking: for the writer thread, or before there is one.
    """

    def __init__(
        self, path: Path, descriptor: int, salt: int, frames: int, size: int, snapshot_bytes: int
    ) -> None:
        self._path = path
        self._descriptor = descriptor
        self._salt = salt
        self._frames = frames
        self._reserve = reserve_of(path)
        self._reserve_whole = False
        self.size = size
        self.snapshot_bytes = snapshot_bytes

    @classmethod
    def create(cls, path: Path, salt: int, snapshot: Snapshot) -> JournalFile:
        """A new file holding `snapshot`, durable under its name on return; it replaces an older one
        atomically.

        After an OSError of missing space the older file has its name, and is in use.
        """
        content = encode_header(salt) + encode_frame(salt, 0, encode_snapshot(snapshot))
        descriptor = reserve_of(path).spend(_write_file, path.with_suffix(".new"), path, content)
        try:
            sync_directory(path.parent)
        except OSError as error:
            os.close(descriptor)
            # Whatever it is, the older file has no name any more: what would be written to it is
            # gone at the next start.
            raise OSError(
                errno.EIO,
                f"{path}: a new journal has its name, but that could not be made durable: {error}",
            ) from error
        return cls(path, descriptor, salt, 1, len(content), len(content))

    @classmethod
    def open(cls, path: Path) -> tuple[JournalFile, Recovered]:
        """Read an existing file, cut its torn tail, make the rest durable. Raises CorruptData,
        FileNotFoundError."""
        data = path.read_bytes()
        recovered = recover(data, str(path))
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        os.ftruncate(descriptor, recovered.length)
        # After a flush that failed the page cache may hold, as clean pages, what is not on disk;
        # only a write makes them dirty again. None but the last frame can be meant: each is begun
        # after the one before it was flushed. And the first, with the header, is one of its own.
        begin = recovered.last_frame if recovered.frames > 1 else 0
        os.lseek(descriptor, begin, os.SEEK_SET)
        _write_all(descriptor, data[begin : recovered.length])
        os.fsync(descriptor)
        sync_directory(path.parent)
        return cls(
            path,
            descriptor,
            recovered.salt,
            recovered.frames,
            recovered.length,
            recovered.snapshot_bytes,
        ), recovered

    def append(self, changes: Iterable[Change], give_up: threading.Event) -> None:
        """Write `changes` as one frame and make it durable; uses the reserve, then waits for space
        until `give_up` is set.

        After an OSError the file must not be used again.
        """
        frame = encode_frame(self._salt, self._frames, encode_changes(changes))
        self._write(frame, give_up)
        os.fdatasync(self._descriptor)
        self._frames += 1
        self.size += len(frame)
        if not self._reserve_whole:
            # the change is durable, and the disk says soon enough what it has
            with contextlib.suppress(OSError):
                self._reserve_whole = not self._reserve.refill()

    def _write(self, data: bytes, give_up: threading.Event) -> None:
        """Write at the end; while no space is left, try again: part of a frame is no frame, and
        the next attempt writes over it."""
        left, offset = memoryview(data), self.size
        while left:
            try:
                written = os.pwrite(self._descriptor, left, offset)
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                self._reserve_whole = False
                if self._reserve.release():
                    continue
                if give_up.is_set():
                    raise
                log.error("metadata journal waits for space", error=str(error))
                give_up.wait(FULL_RETRY_S)
                continue
            left, offset = left[written:], offset + written

    def replace(self, snapshot: Snapshot) -> JournalFile:
        """Start over with a file that holds only `snapshot`, the state after everything
        appended."""
        fresh = JournalFile.create(self._path, (self._salt + 1) % (1 << 64), snapshot)
        self.close()
        return fresh

    def close(self) -> None:
        os.close(self._descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _write_file(unfinished: Path, path: Path, content: bytes) -> int:
    """Write a file whole, durably, and let it replace `path`; its descriptor."""
    descriptor = os.open(unfinished, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        _write_all(descriptor, content)
        os.fsync(descriptor)
        unfinished.rename(path)
    except OSError:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            unfinished.unlink()  # what is left of it would fill a full disk
        raise
    return descriptor


def reserve_of(path: Path) -> Reserve:
    """The space kept beside a journal for when its file system is full."""
    return Reserve(str(path.with_name(RESERVE_NAME)), RESERVE_BYTES)


def sync_directory(directory: Path) -> None:
    """Make names created in or removed from `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class JournalWriter:
    """Writes what it is given, in order, on a thread of its own: one flush for everything that
    arrived during the previous one.

    `on_durable(revision, file bytes)`, `on_replaced(file bytes)`, `on_failed(error)` and
    `on_stopped()` are called on that thread.
    """

    def __init__(
        self,
        file: JournalFile,
        on_durable: Callable[[int, int], None],
        on_replaced: Callable[[int], None],
        on_failed: Callable[[OSError], None],
        on_stopped: Callable[[], None],
    ) -> None:
        self._file = file
        self._on_durable = on_durable
        self._on_replaced = on_replaced
        self._on_failed = on_failed
        self._on_stopped = on_stopped
        self._stopping = threading.Event()
        self._queue: queue.SimpleQueue[Change | Snapshot | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="metadata-journal", daemon=True)
        self._thread.start()

    def append(self, change: Change) -> None:
        self._queue.put(change)

    def replace(self, snapshot: Snapshot) -> None:
        """Shorten the file to `snapshot`, the state after everything appended so far."""
        self._queue.put(snapshot)

    def stop(self) -> None:
        """Write what is queued, unless there is no space for it, then end the thread."""
        self._stopping.set()
        self._queue.put(None)

    def _run(self) -> None:
        try:
            while self._write(self._take()):
                pass
        except OSError as error:
            self._on_failed(error)
        self._file.close()
        self._on_stopped()

    def _take(self) -> list[Change | Snapshot | None]:
        taken = [self._queue.get()]
        while not self._queue.empty():
            taken.append(self._queue.get())
        return taken

    def _write(self, items: list[Change | Snapshot | None]) -> bool:
        """Make `items` durable; False once `stop` was called."""
        group: list[Change] = []
        for item in (*items, None):
            if isinstance(item, Change):
                group.append(item)
                continue
            if group:
                self._file.append(group, self._stopping)
                self._on_durable(group[-1].revision, self._file.size)
                group = []
            if isinstance(item, Snapshot):
                try:
                    self._file = self._file.replace(item)
                except OSError as error:
                    if error.errno not in NO_SPACE:
                        raise
                    # it only grows on
                    log.warning("metadata journal not truncated", error=str(error))
                self._on_replaced(self._file.size)
        return None not in items
