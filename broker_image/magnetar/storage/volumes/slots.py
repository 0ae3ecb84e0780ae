"""A volume on a store of whole objects: log files are runs of numbered slots.

Owns: `SlotVolume` and `SlotLogHandle`. Imports: asyncio, clock, errors, objects, slot_cache,
slot_format, seals, names. An append puts the next slot of its file. A new owner puts a fence into
the slot that would come next, so that the append which finds the slot taken knows that it is over:
no receipt needs another look. One append is under way per log (window 1 in the file's header), so
one fence ends a file. Invariants: slot n+1 is put only after slot n is known to be there; the first
fence goes to where the next *file* would begin, repeated until it holds, and only then do
the files that can exist get theirs, and only then is a length read; fences are never deleted,
whatever happens to the slots before them, so that an owner that slept through the clean-up finds
them, too. A slot that is missing below one that is there was removed by others: that is damage, and
nothing is ever put there.
"""

from __future__ import annotations

import asyncio
import builtins
from collections import OrderedDict
from collections.abc import Collection, Sequence

from magnetar.clock import Clock
from magnetar.errors import CorruptData, Fenced, StorageError
from magnetar.storage import names
from magnetar.storage.log.blocks import block_seed
from magnetar.storage.log.seals import read_seal, read_whole_seal
from magnetar.storage.volumes.object_probe import probe_objects
from magnetar.storage.volumes.objects import ObjectStore
from magnetar.storage.volumes.slot_cache import SlotCache
from magnetar.storage.volumes.slot_format import (
    NONCE_BITS,
    SLOT_HEADER_BYTES,
    SlotHeader,
    SlotKind,
    decode_slot_header,
    encode_slot_header,
)
from magnetar.storage.volumes.slot_map import SlotMap
from magnetar.storage.volumes.volume import Buffer

SLOTS_MAX = 1000
"""Of one file: as many as one page of a list shows, and as a recovery reads within seconds."""
READS_AT_ONCE_MAX = 16
MAPS_MAX = 1024

_Sizes = dict[int, int]
_Files = dict[int, _Sizes]


class SlotVolume:
    """The `Volume` over `objects`."""

    def __init__(self, objects: ObjectStore, clock: Clock) -> None:
        self._objects, self._clock = objects, clock
        self._nonce = clock.random_bits(NONCE_BITS)
        self._maps: OrderedDict[str, SlotMap] = OrderedDict()
        self._unclear: set[str] = set()
        self._reads = asyncio.Semaphore(READS_AT_ONCE_MAX)
        self._cache = SlotCache()

    async def probe(self) -> None:
        """Refuse a store on which the fence would not hold. Raises StorageError saying what to
        do."""
        await probe_objects(self._objects, self._clock)

    async def close(self) -> None:
        """Release the store's connections and threads."""
        await self._objects.close()

    # --- the interface ----------------------------------------------------------------------------

    async def create_log(self, name: str, capacity: int, header: bytes) -> SlotLogHandle:
        """As `Volume.create_log`; nothing is reserved. Raises Fenced if a new owner has ended this
        incarnation's log."""
        assert header, f"log {name} begins with a header"
        assert len(header) <= capacity, (name, len(header), capacity)
        key = names.slot(name, 0)
        try:
            created = await self._objects.put_if_absent(
                key, [self._header(name, SlotKind.DATA, 0, 0, len(header)), header]
            )
        except StorageError:
            self._unclear.add(name)
            raise
        if not created:
            await self._check_ours(name, len(header))
        self._unclear.discard(name)
        found = self._maps[name] = SlotMap()
        found.ends.append(len(header))
        found.final = True
        return SlotLogHandle(self, name, capacity, found)

    async def _check_ours(self, name: str, size: int) -> None:
        """The file is there, which is right if an attempt of this volume to create it had no
        answer. Raises Fenced, StorageError."""
        found = await self._header_of(name, 0)
        if found is not None and found.kind is SlotKind.FENCE:
            raise Fenced(f"{name} begins with a fence: another incarnation has taken over")
        if (
            found is None
            or name not in self._unclear
            or (found.nonce, found.length) != (self._nonce, size)
        ):
            raise StorageError(f"log {name} exists already; start with a new incarnation")

    async def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if not names.is_log(name):
            return await self._objects.get(name, offset, length)
        end = None if length is None else offset + length
        found = await self._map(name, end)
        parts = found.covering(offset, found.end if end is None else min(end, found.end))
        try:
            read = await asyncio.gather(*(self._read_part(name, *part) for part in parts))
        except FileNotFoundError:
            self._maps.pop(name, None)  # garbage collected
            raise
        return read[0] if len(read) == 1 else b"".join(read)

    async def _read_part(self, name: str, slot: int, size: int, offset: int, length: int) -> bytes:
        key = names.slot(name, slot)
        found = self._cache.get(key)
        if found is not None:
            return found[offset : offset + length]
        whole = self._cache.takes(size)
        wanted = size if whole else length
        async with self._reads:
            data = await self._objects.get(
                key, SLOT_HEADER_BYTES + (0 if whole else offset), wanted
            )
        if len(data) != wanted:
            raise StorageError(
                f"{key}: {len(data)} of {wanted} bytes read; see to the object store"
            )
        if not whole:
            return data
        self._cache.put(key, data)
        return data[offset : offset + length]

    async def appended_length(self, name: str) -> int:
        """As `WholeAppends.appended_length`."""
        return (await self._map(name, None)).end

    async def put_if_absent(self, name: str, data: bytes) -> bool:
        return await self._objects.put_if_absent(name, [data])

    async def make_durable(self, name: str, offset: int, data: Buffer) -> None:
        """Nothing to do: what can be read is durable."""

    async def shrink(self, name: str, length: int) -> None:
        """Nothing to do: nothing is reserved."""

    async def exists(self, name: str) -> bool:
        if not names.is_log(name):
            return await self._objects.exists(name)
        found = await self._header_of(name, 0)
        return found is not None and found.kind is SlotKind.DATA

    async def remove(self, name: str) -> bool:
        """As `Volume.remove`; of a log file everything but its fence, the first slot first:
        without it there is no file any more."""
        if not names.is_log(name):
            return await self._objects.delete(name)
        self._maps.pop(name, None)
        removed = False
        for key, size in await self._objects.list(name):
            if size > SLOT_HEADER_BYTES:
                removed |= await self._objects.delete(key) and key == names.slot(name, 0)
        return removed

    async def list(self, prefix: str) -> builtins.list[str]:
        """As `Volume.list`; log files, not their slots, and none of which only a fence is there."""
        found = []
        for key, size in await self._objects.list(prefix):
            slot = names.slot_of(key)
            if slot is None:
                found.append(key)
            elif slot[1] == 0 and size > SLOT_HEADER_BYTES:
                found.append(slot[0])
        if not self._objects.lists_at_once:
            # Known files exist, whatever a list that lags behind shows.
            below = f"{prefix.rstrip('/')}/" if prefix else ""
            missed = {name for name in self._maps if name.startswith(below)} - {*found}
            found += [name for name in missed if await self.exists(name)]
        return sorted(found)

    # --- taking over ------------------------------------------------------------------------------

    async def end_log(self, directory: str, lost: Collection[int] = ()) -> None:
        """As `Volume.end_log`: put fences where the next file would begin, then where every open
        file would go on.

        An owner that is awake and busy may be ahead each time; it stops at its next look at its
        claim, which is gone before this is called.
        """
        files, sealed = await self._files(directory)
        begun = sorted(number for number, slots in files.items() if _data_slots(slots))
        free: dict[int, int] = {}
        for number in begun:
            if number not in sealed:
                free[number] = await self._free_slot(
                    directory, number, files[number], accepted=number in lost
                )
        number = begun[-1] + 1 if begun else 0
        if number - 1 in sealed and number not in files:
            seal = await read_whole_seal(self, directory.rpartition("/")[2], number - 1)
            if seal is not None and seal.followed:
                # That file was there. If it is missing no fence may hide it; a list that is behind
                # shows it by name.
                slots: _Sizes = {}
                await self._look_for(_log_name(directory, number), slots, [0])
                if slots:
                    files[number] = slots
                    free[number] = await self._free_slot(
                        directory, number, slots, accepted=number in lost
                    )
                number += 1
        while not await self._fence(directory, number, 0, files.get(number, {})):
            slots = files.setdefault(number, {})
            # its owner was quicker; how long it is does not matter here
            slots[0] = SLOT_HEADER_BYTES + 1
            free[number] = await self._free_slot(directory, number, slots, accepted=number in lost)
            number += 1
        for number, slot in sorted(free.items()):
            while not await self._fence(directory, number, slot, files[number]):
                slot += 1
            name = _log_name(directory, number)
            self._maps.pop(name, None)
            if not self._objects.lists_at_once and number not in lost:
                await self._map(name, None)  # it is known from now on, whatever a list shows

    async def _free_slot(
        self, directory: str, number: int, slots: _Sizes, *, accepted: bool
    ) -> int:
        """The slot behind the last one of an open file, or its fence. Raises CorruptData if one
        before is missing, unless that is `accepted`."""
        name = _log_name(directory, number)
        if not self._objects.lists_at_once:
            await self._look_for(
                name, slots, [slot for slot in range(SLOTS_MAX + 2) if slot not in slots]
            )
        last = max(_data_slots(slots))
        if not accepted:
            await self._check_holes(name, slots, last)
        return last + 1

    async def _check_holes(self, name: str, slots: _Sizes, last: int) -> None:
        """Raises CorruptData if a slot before `last` is missing for certain; completes `slots`
        where the list was behind."""
        await self._look_for(name, slots, [slot for slot in range(last) if slot not in slots])
        holes = [slot for slot in range(last) if slots.get(slot, 0) <= SLOT_HEADER_BYTES]
        if not holes:
            return
        # The collector removes the first slot first and the seal last: without a seal, and with
        # later slots, it is not running.
        if await self._header_of(name, last) is None or await self._objects.exists(
            names.sealed(*names.parse_log(name))
        ):
            raise StorageError(f"{name} was sealed or collected while it was looked at; try again")
        before = sum(slots[slot] - SLOT_HEADER_BYTES for slot in range(holes[0]))
        raise _missing(
            name,
            holes,
            before,
            f"slot {last} is there",
            next((slot for slot in holes if slot in slots), None),
        )

    async def _look_for(self, name: str, slots: _Sizes, wanted: Sequence[int]) -> None:
        """Add to `slots` those of the `wanted` ones that are there, whatever the list showed."""

        async def look(slot: int) -> None:
            async with self._reads:
                header = await self._header_of(name, slot)
            if header is not None:
                slots[slot] = SLOT_HEADER_BYTES + header.length

        await asyncio.gather(*map(look, wanted))

    async def _files(self, directory: str) -> tuple[_Files, set[int]]:
        """(sizes of all slots by file and number, numbers of the sealed files) in an
        incarnation's directory."""
        files: _Files = {}
        sealed = set()
        for key, size in await self._objects.list(directory):
            slot = names.slot_of(key)
            if slot is not None:
                number = names.log_number(slot[0])
                if number is not None:
                    files.setdefault(number, {})[slot[1]] = size
            elif (number := names.sealed_number(key)) is not None:
                sealed.add(number)
        return files, sealed

    async def _fence(self, directory: str, number: int, slot: int, slots: _Sizes) -> bool:
        """Whether a fence stands in this slot, now if nothing did; False if it holds data."""
        if slots.get(slot) == SLOT_HEADER_BYTES:
            return True
        name = _log_name(directory, number)
        while not await self._objects.put_if_absent(
            names.slot(name, slot), [self._header(name, SlotKind.FENCE, slot, 0, 0)]
        ):
            found = await self._header_of(name, slot)
            if found is not None:  # else it was collected in this moment
                return found.kind is SlotKind.FENCE
        return True

    # --- slots ------------------------------------------------------------------------------------

    async def put_slot(self, name: str, slot: int, offset: int, buffers: Sequence[Buffer]) -> bool:
        """Put the slot that an append consists of; False if it is taken. Raises StorageError."""
        header = self._header(name, SlotKind.DATA, slot, offset, sum(map(len, buffers)))
        return await self._objects.put_if_absent(names.slot(name, slot), [header, *buffers])

    def _header(self, name: str, kind: SlotKind, slot: int, offset: int, length: int) -> bytes:
        incarnation, number = names.parse_log(name)
        return encode_slot_header(
            block_seed(incarnation, number),
            SlotHeader(kind, number, slot, offset, length, self._nonce),
        )

    async def _header_of(self, name: str, slot: int) -> SlotHeader | None:
        """The header of a slot, None if it is not there. Raises StorageError, CorruptData."""
        key = names.slot(name, slot)
        try:
            data = await self._objects.get(key, 0, SLOT_HEADER_BYTES)
        except FileNotFoundError:
            return None
        return decode_slot_header(block_seed(*names.parse_log(name)), data, key)

    async def _map(self, name: str, end: int | None) -> SlotMap:
        """Where the slots of the file end, as far as `end` at least if they reach so far. Raises
        FileNotFoundError."""
        found = self._maps.get(name)
        if found is not None and (found.final or (end is not None and end <= found.end)):
            self._maps.move_to_end(name)
            return found
        # The seal before the slots: if it is there, so is all that it covers.
        length = await read_seal(self, *names.parse_log(name))
        sizes = {
            slot[1]: size
            for key, size in await self._objects.list(name)
            if (slot := names.slot_of(key)) is not None
        }
        fresh = SlotMap()
        fresh.take(sizes)
        data = _data_slots(sizes)
        if length is None and fresh.ends and len(data) > len(fresh.ends):
            await self._check_holes(name, sizes, max(data))
            fresh.take(sizes)
        final = length is not None or sizes.get(len(fresh.ends), 0) == SLOT_HEADER_BYTES
        if not self._objects.lists_at_once:
            final |= await self._extend(name, fresh)
        if not fresh.ends:
            raise FileNotFoundError(name)
        if length is not None and fresh.end < length:
            if await self._header_of(name, 0) is None:
                raise FileNotFoundError(name)  # garbage collected, the first slot first
            raise _missing(name, [len(fresh.ends)], fresh.end, "the file is sealed behind it")
        current = self._maps.get(name)
        if current is not None and current.end >= fresh.end:
            fresh = current  # its own writer appended during the read
        fresh.final |= final
        self._maps[name] = fresh
        while len(self._maps) > MAPS_MAX:
            self._maps.popitem(last=False)
        return fresh

    async def _extend(self, name: str, found: SlotMap) -> bool:
        """Slots that the list does not show yet are found by trying; whether there is a fence
        behind them."""
        while (header := await self._header_of(name, len(found.ends))) is not None:
            if header.kind is SlotKind.FENCE:
                return True
            found.ends.append(found.end + header.length)
        return False


class SlotLogHandle:
    """A log file that this process writes."""

    def __init__(self, volume: SlotVolume, name: str, capacity: int, found: SlotMap) -> None:
        self._volume, self._name, self._capacity, self._map = volume, name, capacity, found
        self._failed = ""
        self._closed = self._busy = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def full(self) -> bool:
        """Whether the file has as many slots as one may have; one more append is taken
        nevertheless."""
        return len(self._map.ends) >= SLOTS_MAX

    async def append(self, offset: int, buffers: Sequence[Buffer], claim: str) -> None:
        """As `LogHandle.append`. The slot that is free is the look at the claim: a new owner would
        have put its fence there."""
        del claim
        size = sum(map(len, buffers))
        assert not self._closed, f"append to closed log {self._name}"
        assert offset == self._map.end, (self._name, offset, self._map.end)
        assert 0 < size <= self._capacity - offset, (self._name, offset, size, self._capacity)
        if self._failed:
            raise StorageError(
                f"log {self._name} failed before ({self._failed}) and is not written any more"
            )
        assert not self._busy, f"two appends to {self._name} at once"
        self._busy = True
        slot = len(self._map.ends)
        try:
            put = await self._volume.put_slot(self._name, slot, offset, buffers)
        except BaseException as error:
            self._failed = repr(error)  # cancelled, too: what was begun may yet take effect
            raise
        if not put:
            self._failed = f"slot {slot} is taken"
            raise Fenced(
                f"slot {slot} of {self._name} is taken: another incarnation has taken over"
            )
        self._map.ends.append(offset + size)
        self._busy = False

    async def close(self) -> None:
        """Nothing is put into this file any more."""
        self._closed = True


def _log_name(directory: str, number: int) -> str:
    return names.log_file(directory.rpartition("/")[2], number)


def _data_slots(slots: _Sizes) -> list[int]:
    """Numbers of the slots that are no fences."""
    return [slot for slot, size in slots.items() if size > SLOT_HEADER_BYTES]


def _missing(
    name: str, missing: Sequence[int], before: int, why: str, fence: int | None = None
) -> CorruptData:
    """Slots of a log file are missing, the first at offset `before`; one may hold a `fence`
    instead."""
    key = names.slot(name, missing[0])
    what = f"{key} is missing" + (
        f" and {len(missing) - 1} more slots are" if len(missing) > 1 else ""
    )
    remedy = (
        f"; remove the fence {names.slot(name, fence)} first, which hides one of them"
        if fence is not None
        else ""
    )
    return CorruptData(
        f"{what}, but {why}: objects were deleted from outside; restore them{remedy}, or accept "
        "the loss with "
        f"`magnetar storage accept-loss {name}`",
        file=key,
        offset=before,
    )
