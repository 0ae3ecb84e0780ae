"""Each node's port to the shared disk.

Owns: `SimVolume`, `ReservingSimVolume` and `SimLogHandle`: the system calls behind `Volume`, each a
step of the node with a delay before the next, so that a process can be paused or killed between any
two of them. Imports: asyncio, errors, disk, the loop. Invariants: the order of an append is write,
flush, look for the claim, return; a flush that was submitted completes (or fails) even while its
process is paused or dead; work that was started goes on when its caller is cancelled, as a thread's
would; a dead node's calls never complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar, TypeVarTuple

from magnetar.errors import Fenced, StorageError, StorageFull
from magnetar.storage.names import LOG_SUFFIX
from magnetar.storage.volumes.volume import Buffer
from tests.simulation.kernel.disk import Disk, Inode, Write
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.loop import Nap, SimLoop
from tests.simulation.kernel.node import Node

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Writes = list[Write]  # named here because `SimVolume.list` hides the builtin inside the class


class DiskWeather:
    """How the shared disk behaves at the moment: faults that the world may change while it runs."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults


class SimVolume:
    """The `Volume` port of one node. `crash` ends its process, as SIGKILL does."""

    def __init__(
        self,
        loop: SimLoop,
        node: Node,
        disk: Disk,
        weather: DiskWeather,
        crash: Callable[[], None] | None = None,
    ) -> None:
        self._loop, self._node, self._disk, self._weather, self._crash = (
            loop,
            node,
            disk,
            weather,
            crash,
        )

    # --- the interface ----------------------------------------------------------------------------

    async def create_log(self, name: str, capacity: int, header: bytes) -> SimLogHandle:
        """As `Volume.create_log`. Until it returns, others may find the name with any part of
        the header."""
        assert len(header) <= capacity, (name, len(header), capacity)
        return await self.in_thread(self._create_log, _checked(name), capacity, header)

    async def set_aside(self, name: str, spare: str, capacity: int) -> bool:
        return await self.in_thread(self._set_aside, _checked(name), _checked(spare), capacity)

    async def create_log_from(
        self,
        spare: str,
        name: str,
        used: int,  # noqa: ARG002
        header: bytes,
    ) -> SimLogHandle:
        return await self.in_thread(self._create_log_from, _checked(spare), _checked(name), header)

    async def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        await self._step()
        inode = self._disk.names.get(_checked(name))
        if inode is None:
            raise FileNotFoundError(name)
        await self._step()
        if name.endswith(LOG_SUFFIX) and self._disk.names.get(name) is not inode:
            raise FileNotFoundError(name)  # deleted or set aside concurrently
        if self._strikes(self._weather.faults.read_error_probability):
            self._loop.record(self._node.name, "read error", name, offset)
            raise StorageError(f"read of {name} at {offset} failed: EIO; replace the disk")
        return inode.read(offset, length)

    async def put_if_absent(self, name: str, data: bytes) -> bool:
        return await self.in_thread(self._put_if_absent, _checked(name), data)

    async def make_durable(self, name: str, offset: int, data: Buffer) -> None:
        """As `Volume.make_durable`. Raises FileNotFoundError if there is no such file."""
        await self.in_thread(self._make_durable, _checked(name), offset, data)

    async def shrink(self, name: str, length: int) -> None:
        await self._step()
        inode = self._disk.names.get(_checked(name))
        if inode is not None:
            inode.shrink(length)
        await self._step()

    async def end_log(self, directory: str, lost: Collection[int] = ()) -> None:
        """Nothing to do: every append looks for its claim."""

    async def exists(self, name: str) -> bool:
        await self._step()
        found = _checked(name) in self._disk.names
        await self._step()
        return found

    async def remove(self, name: str) -> bool:
        return await self.in_thread(self._remove, _checked(name))

    async def list(self, prefix: str) -> list[str]:
        await self._step()
        below = _checked(prefix.rstrip("/")) + "/" if prefix else ""
        found = sorted(name for name in self._disk.names if name.startswith(below))
        await self._step()
        return found

    # --- system calls -----------------------------------------------------------------------------

    async def in_thread(self, work: Callable[[*Ts], Coroutine[Any, Any, T]], *args: *Ts) -> T:
        """Run `work(*args)` so that cancelling the caller does not stop it."""
        outcome: asyncio.Future[T] = self._loop.create_future()
        self._loop.create_task(_carry_out(outcome, work, *args))
        return await outcome

    def _step(self) -> Awaitable[None]:
        """Where the process can be stopped: the next system call comes a little later, in a step
        of its own."""
        if not self._node.alive:
            return self._loop.create_future()
        low, high = self._weather.faults.disk_step_s
        return Nap(
            self._loop,
            self._node,
            self._loop.time() + low + (high - low) * self._disk.chance.random(),
        )

    def _strikes(self, probability: float) -> bool:
        return probability > 0 and self._disk.chance.random() < probability

    async def write(self, inode: Inode, name: str, offset: int, data: bytes) -> None:
        """One write call. Raises StorageError after writing any prefix."""
        faults = self._weather.faults
        if self._strikes(faults.write_error_probability):
            inode.write(offset, data[: self._disk.chance.randint(0, len(data))])
            self._loop.record(self._node.name, "write error", name, offset)
            raise StorageError(
                f"write of {len(data)} bytes to {name} at {offset} failed: EIO; replace the disk"
            )
        if len(data) > 1 and self._strikes(faults.partial_write_probability):
            cut = self._disk.chance.randint(1, len(data) - 1)
            inode.write(offset, data[:cut])
            await self._step()
            offset, data = offset + cut, data[cut:]
        inode.write(offset, data)

    async def flush(self, inode: Inode, name: str) -> None:
        """Make everything written so far durable. Raises StorageError; then it never will be."""
        await self._completion(name, "flush", self._flushed, inode, inode.mark(), inode.size)

    async def sync_directory(self, name: str) -> None:
        """Make everything done so far in the directory of `name` durable. Raises StorageError."""
        await self._completion(
            name, "sync of the directory", self._directory_synced, name, self._disk.unsynced(name)
        )

    async def _completion(self, name: str, what: str, apply: Any, *args: Any) -> None:
        """Submit to the disk and wait. The completion is a step of the kernel: it comes whatever
        happens to the process."""
        faults = self._weather.faults
        delay = self._disk.chance.uniform(*faults.flush_s)
        if self._strikes(faults.slow_flush_probability):
            delay += self._disk.chance.uniform(*faults.slow_flush_s)
        delay += max(0.0, self._disk.hung_until - self._loop.time())
        failing = self._strikes(faults.flush_error_probability)
        done: asyncio.Future[bool] = self._loop.create_future()
        self._loop.post_at(
            self._loop.kernel,
            self._loop.time() + delay,
            apply,
            self._disk.generation,
            failing,
            done,
            *args,
        )
        if not await done:
            self._loop.record(self._node.name, "flush error", name)
            raise StorageError(
                f"{what} of {name} failed: EIO; the file is abandoned, never flushed again"
            )

    def _flushed(
        self,
        generation: int,
        failing: bool,
        done: asyncio.Future[bool],
        inode: Inode,
        covered: Writes,
        size: int,
    ) -> None:
        if generation == self._disk.generation:
            if failing:
                inode.flush_failed(covered)
            else:
                inode.flushed(covered, size)
            done.set_result(not failing)

    def _directory_synced(
        self, generation: int, failing: bool, done: asyncio.Future[bool], name: str, count: int
    ) -> None:
        if generation == self._disk.generation:
            if not failing:
                self._disk.sync_directory(name, count)
            done.set_result(not failing)

    async def look_for_claim(self, claim: str) -> None:
        """Raises Fenced if the claim is absent or cannot be looked up."""
        if self._strikes(self._weather.faults.lookup_error_probability):
            raise Fenced(f"claim {claim} cannot be looked up: EIO; this incarnation stops")
        if claim not in self._disk.names:
            self._loop.record(self._node.name, "fenced", claim)
            raise Fenced(f"claim {claim} is gone: another incarnation has taken over")

    # --- operations -------------------------------------------------------------------------------

    def _claim(self, name: str, size: int, *, reserved: bool) -> None:
        """Raises StorageFull unless there is space for a file of this size."""
        before = self._disk.reserve
        claimed = self._disk.claim(size, reserved=reserved)
        if self._disk.reserve < before:
            self._loop.record(self._node.name, "reserve used", name, before - self._disk.reserve)
        if not claimed:
            self._loop.record(self._node.name, "no space", name, size)
            raise StorageFull(f"creation of {name} with {size} bytes failed: ENOSPC; free some")

    async def _create_log(
        self, name: str, capacity: int, header: bytes, reserved: bool = False
    ) -> SimLogHandle:
        await self._step()
        self._claim(name, capacity, reserved=reserved)
        if name in self._disk.names:
            raise StorageError(f"log {name} exists already; choose another number")
        inode = Inode()
        self._disk.link(name, inode)
        self._loop.record(self._node.name, "create log", name)
        await self._step()
        inode.size = capacity
        try:
            await self.write(inode, name, 0, header)
            await self._step()
            await self.flush(inode, name)
            await self.sync_directory(name)
        except StorageError:
            self._disk.unlink(name)
            raise
        await self._step()
        return SimLogHandle(self, inode, name, capacity)

    async def _set_aside(self, name: str, spare: str, capacity: int) -> bool:
        await self._step()
        inode = self._disk.names.get(name)
        if inode is None or inode.size != capacity:
            return False
        self._disk.rename(name, spare)
        self._loop.record(self._node.name, "set aside", name)
        await self._step()
        await self.sync_directory(name)
        await self._step()
        return True

    async def _create_log_from(self, spare: str, name: str, header: bytes) -> SimLogHandle:
        await self._step()
        inode = self._disk.names.get(spare)
        if inode is None:
            raise FileNotFoundError(spare)
        capacity = inode.size
        await self.write(inode, spare, 0, header)
        await self._step()
        await self.flush(inode, spare)
        await self._step()
        if name in self._disk.names:
            raise StorageError(f"log {name} exists already; choose another number")
        if self._disk.names.get(spare) is not inode:
            raise FileNotFoundError(spare)
        self._disk.rename(spare, name)
        self._loop.record(self._node.name, "recycle", name)
        try:
            await self._step()
            await self.sync_directory(name)
        except StorageError:
            self._disk.unlink(name)
            raise
        await self._step()
        return SimLogHandle(self, inode, name, capacity)

    async def append(
        self, handle: SimLogHandle, offset: int, buffers: Sequence[Buffer], claim: str
    ) -> None:
        """The four steps of `LogHandle.append`."""
        last = -1
        if self._crash is not None and self._strikes(self._weather.faults.append_crash_probability):
            last = self._disk.chance.randrange(4)
        await self._step_or_die(last == 0)
        data = b"".join(buffers)
        if self._disk.limit is not None and self._strikes(
            self._weather.faults.short_write_probability
        ):
            handle.inode.write(offset, data[: self._disk.chance.randint(0, len(data))])
            self._loop.record(self._node.name, "short write", handle.name, offset)
            raise StorageFull(
                f"write of {len(data)} bytes to {handle.name} at {offset} failed half-way: ENOSPC; "
                "free some"
            )
        await self.write(handle.inode, handle.name, offset, data)
        await self._step_or_die(last == 1)
        await self.flush(handle.inode, handle.name)
        await self._step_or_die(last == 2)
        await self.look_for_claim(claim)
        await self._step_or_die(last == 3)
        self._loop.record(self._node.name, "append", handle.name, offset, len(data))

    def _step_or_die(self, dies: bool) -> Awaitable[None]:
        if dies and self._crash is not None:
            self._crash()
        return self._step()

    async def _put_if_absent(self, name: str, data: bytes) -> bool:
        await self._step()
        self._claim(name, len(data), reserved=True)
        inode = Inode()
        await self.write(inode, name, 0, data)
        await self._step()
        await self.flush(inode, name)
        await self._step()
        created = name not in self._disk.names
        if created:
            self._disk.link(name, inode)
        self._loop.record(self._node.name, "put", name, created)
        await self._step()
        # Also when the name was there: its creator may not have synced it yet, and the caller is
        # about to rely on it.
        await self.sync_directory(name)
        await self._step()
        return created

    async def _make_durable(self, name: str, offset: int, data: Buffer) -> None:
        await self._step()
        inode = self._disk.names.get(name)
        if inode is None:
            raise FileNotFoundError(name)
        await self.write(inode, name, offset, bytes(data))
        await self._step()
        await self.flush(inode, name)
        self._loop.record(self._node.name, "make durable", name, offset, len(data))
        await self._step()

    async def _remove(self, name: str) -> bool:
        await self._step()
        removed = self._disk.unlink(name)
        self._loop.record(self._node.name, "remove", name, removed)
        await self._step()
        await self.sync_directory(name)
        await self._step()
        return removed


class ReservingSimVolume(SimVolume):
    """On a disk that may be full: `Reserving`, by the same rules as on a real one."""

    async def has_room(self, size: int) -> bool:
        await self._step()
        return self._disk.has_room(size)

    async def create_short_log(self, name: str, capacity: int, header: bytes) -> SimLogHandle:
        return await self.in_thread(self._create_log, _checked(name), capacity, header, True)

    async def refill_reserve(self) -> int:
        await self._step()
        return self._disk.refill()


class SimLogHandle:
    """The `LogHandle` of a simulated log."""

    def __init__(self, volume: SimVolume, inode: Inode, name: str, capacity: int) -> None:
        self._volume, self.inode, self._name, self._capacity = volume, inode, name, capacity
        self._busy = self._closed = False
        self._failed = ""

    @property
    def name(self) -> str:
        return self._name

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def full(self) -> bool:
        return False

    async def append(self, offset: int, buffers: Sequence[Buffer], claim: str) -> None:
        size = sum(len(buffer) for buffer in buffers)
        assert not self._closed, f"append to closed log {self._name}"
        assert offset >= 0, (self._name, offset)
        assert offset + size <= self._capacity, (self._name, offset, size, self._capacity)
        assert not self._busy, f"two appends to {self._name} at once"
        if self._failed:
            raise StorageError(
                f"log {self._name} failed before ({self._failed}) and is not written any more"
            )
        self._busy = True
        await self._volume.in_thread(self._append, offset, buffers, claim)

    async def _append(self, offset: int, buffers: Sequence[Buffer], claim: str) -> None:
        try:
            await self._volume.append(self, offset, buffers, claim)
        except StorageError as error:
            self._failed = str(error)
            raise
        finally:
            self._busy = False

    async def close(self) -> None:
        """Release the descriptor; the file stays."""
        self._closed = True


def _checked(name: str) -> str:
    parts = name.split("/")
    if not name or "\0" in name or not {"", ".", ".."}.isdisjoint(parts):
        raise StorageError(
            f"name {name!r} is not valid in a volume; use relative names without empty, . and .. "
            "parts"
        )
    return name


async def _carry_out(
    outcome: asyncio.Future[T], work: Callable[[*Ts], Coroutine[Any, Any, T]], *args: *Ts
) -> None:
    """Do the work and answer a caller that still waits: as with `asyncio.shield`, but without
    the two steps that its callbacks are."""
    try:
        result = await work(*args)
    except asyncio.CancelledError:
        outcome.cancel()
        raise
    except Exception as error:
        if not outcome.done():
            outcome.set_exception(error)
    else:
        if not outcome.done():
            outcome.set_result(result)
