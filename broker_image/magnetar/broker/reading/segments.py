"""Level-1 segments as this broker reads them.

Owns: `SegmentCache`: footers and lately used blocks of the segments that a bundle's manifest refers
to. Imports: storage. Invariants: a block is verified when it is loaded; memory is bounded by the
number of segments and of blocks held.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict

from magnetar.storage.manifest import SegmentReference
from magnetar.storage.segments.format import TRAILER_BYTES, Block, Footer, decode_trailer
from magnetar.storage.segments.segment import read_footer
from magnetar.storage.volumes.volume import Volume

SEGMENTS_HELD_MAX = 32
BLOCKS_HELD_MAX = 8
FOOTER_READ_BYTES = 256 << 10


class OpenSegment:
    """A segment read through the volume, with the blocks read last."""

    def __init__(self, volume: Volume, reference: SegmentReference, footer: Footer) -> None:
        self._volume, self._reference, self.footer = volume, reference, footer
        self._lasts = [(block.last_ledger, block.last_entry) for block in footer.blocks]
        self._blocks: OrderedDict[int, Block] = OrderedDict()

    @staticmethod
    async def open(volume: Volume, reference: SegmentReference) -> OpenSegment:
        """Read the footer. Raises CorruptData, StorageError, FileNotFoundError."""
        base = max(0, reference.length - FOOTER_READ_BYTES)
        tail = await volume.read(reference.object, reference.offset + base, reference.length - base)
        start, _ = decode_trailer(tail[-TRAILER_BYTES:], reference.object)
        if start < base:
            base = start
            tail = await volume.read(
                reference.object, reference.offset + base, reference.length - base
            )

        def read_range(offset: int, length: int) -> bytes:
            return tail[offset - base : offset - base + length]

        return OpenSegment(
            volume, reference, read_footer(read_range, reference.length, reference.object)
        )

    def block_at_or_after(self, position: tuple[int, ...]) -> int:
        """Number of the first block that ends at or after `position`, which must not lie behind
        the segment."""
        number = bisect_left(self._lasts, position)
        assert number < len(self._lasts), (position, self._reference)
        return number

    async def block(self, number: int) -> Block:
        """One block. Raises CorruptData, StorageError, FileNotFoundError."""
        held = self._blocks.get(number)
        if held is None:
            entry = self.footer.blocks[number]
            data = await self._volume.read(
                self._reference.object, self._reference.offset + entry.offset, entry.length
            )
            held = self._blocks[number] = Block.decode(data, self._reference.object)
            while len(self._blocks) > BLOCKS_HELD_MAX:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(number)
        return held


class SegmentCache:
    """Open segments, the least recently used closed first."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._held: OrderedDict[tuple[str, int], OpenSegment] = OrderedDict()

    async def segment(self, reference: SegmentReference) -> OpenSegment:
        """Raises CorruptData, StorageError, FileNotFoundError."""
        key = (reference.object, reference.offset)
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = await OpenSegment.open(self._volume, reference)
            while len(self._held) > SEGMENTS_HELD_MAX:
                self._held.popitem(last=False)
        self._held.move_to_end(key)
        return held
