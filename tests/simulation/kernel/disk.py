"""The simulated disk: files, names, and what of them survives.

Owns: `Disk` and `Inode`, the state behind every node's volume. Imports: random (seeded).

Fault model. A write is seen by every process at once (one page cache) and becomes durable by a
flush that *started* after it. Injected:
- a process may die or stop between any two system calls, and between two parts of one write; the
  page cache survives it;
- a power loss keeps, drops or tears every unsynced write: 512-byte sectors survive whole or not at
  all, in any combination, as a
  prefix, or not at all; later writes may survive without earlier ones;
- a directory operation that was not yet synced may be undone by a power loss, in reverse order per
  name;
- a failed write leaves any prefix of itself; a failed flush leaves its writes readable until the
  power fails, never to be made
  durable by a later flush (as Linux marks the pages clean);
- flushes may be slow, by orders of magnitude, and the disk may hang: no flush ends concurrently, on
  any node;
- it may be full: nothing new gets space, except out of its reserve, and a write into space that was
  promised may end half-way. Excluded, because there is one copy and none would survive it: flipped
  bits, lost or misdirected writes that were flushed, a disk that lies about flushes, loss of the
  device. Corruption that is to be *detected* is scripted with `Inode.damage`. Invariant:
  `Inode.durable_bytes` changes only by a completed flush or a power loss (or `damage`).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

SECTOR_BYTES = 512
RESERVE_STEPS = 8


@dataclass(slots=True)
class Write:
    """A write that is not durable, or (`synced`) is and only kept because it lies above one that
    never will be (`poisoned`)."""

    offset: int
    data: bytes
    poisoned: bool = False
    synced: bool = False


class Inode:
    """One file: durable bytes plus the unsynced writes above them. Bytes below `size` that
    nobody wrote are zero."""

    __slots__ = ("_durable", "_durable_size", "_pending", "size")

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self._durable_size = 0
        self._durable = bytearray()
        self._pending: list[Write] = []

    @property
    def durable_bytes(self) -> bytes:
        """What a power loss cannot take; trailing zeros may be missing."""
        return bytes(self._durable)

    @property
    def dirty(self) -> bool:
        return bool(self._pending) or self.size != self._durable_size

    def write(self, offset: int, data: bytes) -> None:
        """Into the page cache."""
        if data:
            self._pending.append(Write(offset, data))
            self.size = max(self.size, offset + len(data))

    def shrink(self, length: int) -> None:
        """Cut off what lies behind `length`, at once and for good: nothing of it was promised to
        anybody."""
        self.size = self._durable_size = min(self.size, length)
        del self._durable[length:]
        for write in self._pending:
            write.data = write.data[: max(0, length - write.offset)]

    def read(self, offset: int, length: int | None) -> bytes:
        """What a process sees now."""
        end = self.size if length is None else min(self.size, offset + length)
        if end <= offset:
            return b""
        if not self._pending:
            found = bytes(self._durable[offset:end])
            return found + bytes(end - offset - len(found))
        view = bytearray(self._durable[offset:end])
        view += bytes(end - offset - len(view))
        for write in self._pending:
            low, high = max(offset, write.offset), min(end, write.offset + len(write.data))
            if low < high:
                view[low - offset : high - offset] = write.data[
                    low - write.offset : high - write.offset
                ]
        return bytes(view)

    def mark(self) -> list[Write]:
        """The writes that a flush starting now covers."""
        return [write for write in self._pending if not write.poisoned and not write.synced]

    def flushed(self, covered: list[Write], size: int) -> None:
        """A flush has succeeded."""
        for write in covered:
            if not write.poisoned and not write.synced:
                self._store(write.offset, write.data)
                write.synced = True
        self._durable_size = max(self._durable_size, size)
        if not any(write.poisoned for write in self._pending):
            self._pending = [write for write in self._pending if not write.synced]

    def flush_failed(self, covered: list[Write]) -> None:
        """A flush has failed: nobody knows what reached the platter, and no later flush will
        write it."""
        for write in covered:
            write.poisoned = not write.synced

    def lose_power(self, chance: random.Random) -> None:
        """Settle every unsynced write, sector by sector."""
        for write in self._pending:
            if not write.synced:
                for low, high in _survivors(write, chance):
                    self._store(low, write.data[low - write.offset : high - write.offset])
        self._pending = []
        if self.size != self._durable_size:
            self.size = max(len(self._durable), chance.choice((self._durable_size, self.size)))
            self._durable_size = self.size

    def damage(self, offset: int, data: bytes) -> None:
        """Overwrite durable bytes behind everybody's back (for scripted scenarios that expect
        detection)."""
        self._store(offset, data)

    def _store(self, offset: int, data: bytes) -> None:
        if len(self._durable) < offset:
            self._durable += bytes(offset - len(self._durable))
        self._durable[offset : offset + len(data)] = data


def _survivors(write: Write, chance: random.Random) -> Iterator[tuple[int, int]]:
    """Ranges of `write` that reached the platter: all, none, a prefix of sectors, or any of
    them."""
    start, end = write.offset, write.offset + len(write.data)
    cuts = [start, *range(start - start % SECTOR_BYTES + SECTOR_BYTES, end, SECTOR_BYTES), end]
    sectors = list(itertools.pairwise(cuts))
    match chance.randrange(4):
        case 0:
            return
        case 1:
            yield start, end
        case 2:
            yield from sectors[: chance.randint(0, len(sectors))]
        case _:
            yield from (sector for sector in sectors if chance.random() < 0.5)


class Disk:
    """A directory tree shared by all nodes. `generation` counts power losses: completions of an
    older one are void."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"{seed}/disk")
        self.names: dict[str, Inode] = {}
        self.generation = 0
        self._durable_names: dict[str, Inode] = {}
        self._unsynced: list[tuple[str, Inode | None]] = []
        self.limit: int | None = None
        """Bytes that all files and the reserve may have; None: as many as they like."""
        self.reserve = self.reserve_size = 0
        self.hung_until = 0.0

    # --- space ------------------------------------------------------------------------------------

    @property
    def used(self) -> int:
        """Bytes that all files have, with what is preallocated, and the reserve."""
        return sum(inode.size for inode in self.names.values()) + self.reserve

    def fill(self, slack: int) -> None:
        """Another program takes all that is free but `slack` bytes."""
        self.limit = self.used + slack

    def has_room(self, size: int) -> bool:
        """Whether so much is free, without the reserve."""
        return self.limit is None or self.used + size <= self.limit

    def claim(self, size: int, *, reserved: bool) -> bool:
        """Whether a file may have so many bytes, out of the reserve if it may use that."""
        while not self.has_room(size):
            if not reserved or not self.reserve:
                return False
            self.reserve = max(0, self.reserve - max(1, self.reserve_size // RESERVE_STEPS))
        return True

    def refill(self) -> int:
        """Fill the reserve if there is more space than that takes; how much is missing."""
        missing = self.reserve_size - self.reserve
        if missing and self.has_room(missing + self.reserve_size // RESERVE_STEPS):
            self.reserve, missing = self.reserve_size, 0
        return missing

    # --- names ------------------------------------------------------------------------------------

    def link(self, name: str, inode: Inode) -> None:
        """Give `inode` a name that was free; durable after `sync_directory`."""
        assert name not in self.names, name
        self.names[name] = inode
        self._unsynced.append((name, inode))

    def unlink(self, name: str) -> bool:
        """Remove a name; False if it was not there. Durable after `sync_directory`."""
        if self.names.pop(name, None) is None:
            return False
        self._unsynced.append((name, None))
        return True

    def rename(self, name: str, fresh: str) -> None:
        """Give a file another name, which is free. A power loss before the sync may leave it
        under both, or neither."""
        inode = self.names[name]
        self.unlink(name)
        self.link(fresh, inode)

    def unsynced(self, name: str) -> int:
        """How many directory operations a sync that starts now covers (a position in the order
        of all of them)."""
        directory = _directory(name)
        return sum(1 for changed, _ in self._unsynced if _directory(changed) == directory)

    def sync_directory(self, name: str, count: int) -> None:
        """The oldest `count` unsynced operations in the directory of `name` are durable now."""
        directory = _directory(name)
        left: list[tuple[str, Inode | None]] = []
        for changed, inode in self._unsynced:
            if count and _directory(changed) == directory:
                count -= 1
                self._settle(changed, inode)
            else:
                left.append((changed, inode))
        self._unsynced = left

    def _settle(self, name: str, inode: Inode | None) -> None:
        if inode is None:
            self._durable_names.pop(name, None)
        else:
            self._durable_names[name] = inode

    def lose_power(self) -> None:
        """The machine stops: settle unsynced names and writes by chance. Every process on it
        must be dead."""
        self.generation += 1
        undone: set[str] = set()
        for name, inode in self._unsynced:
            if name not in undone and self.chance.random() < 0.5:
                self._settle(name, inode)
            else:
                undone.add(name)  # a later operation on the same name cannot survive an earlier one
        self._unsynced.clear()
        for inode in self._durable_names.values():
            inode.lose_power(self.chance)
        self.names = dict(self._durable_names)


def _directory(name: str) -> str:
    return name.rpartition("/")[0]
