"""Opening stretches of alike entries at once.

Owns: `Shape`, the layout of an entry's metadata on the wire, and `opened`, which reads the fields of
all entries of a stretch by their shapes. Imports: numpy, pyarrow, wire, rows. Why it is the same as
parsing each entry: tags, lengths and the continuation bits of numbers decide how protobuf reads a
message. Entries whose bytes agree in these have the same fields at the same places. Invariants: a
stretch is opened as a whole or not at all; fields whose meaning is not known here, batches, chunks,
markers, compression and encryption are left to the parser; no Python code runs per entry but to cut
its payload out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from magnetar.schemas.types import VERSION_BYTES
from magnetar.wire.checksum import CHECKSUM_BYTES, CHECKSUM_MAGIC
from magnetar_jobs.rows import Rows

SHAPES_MAX = 32
"""Of one stretch; one with more is parsed."""
VARINT_BYTES_MAX = 9
"""A longer number does not fit into 63 bits."""
HEAD_BYTES = CHECKSUM_BYTES + 4
"""Magic, checksum and the length of the metadata."""
PRODUCER, SEQUENCE, PUBLISHED, PROPERTIES, KEY = 1, 2, 3, 4, 6
COMPRESSION, EVENT, SCHEMA, BASE64 = 8, 12, 16, 17
_REQUIRED = {PRODUCER, SEQUENCE, PUBLISHED}
_NUMBERS = {SEQUENCE, PUBLISHED, COMPRESSION, EVENT, BASE64}
_NUMBERS_UNUSED = {9, 19, 22, 23, 24}
"""uncompressed_size, deliver_at_time, the transaction's id, highest_sequence_id."""
_BYTES = {PRODUCER, PROPERTIES, KEY, SCHEMA}
_BYTES_UNUSED = {5, 18}
"""replicated_from, ordering_key."""
MAP = pa.map_(pa.string(), pa.string())
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]
Span = tuple[int, int]
"""Place and length."""


def schema_version_of(data: bytes) -> int | None:
    """As a message carries it; None without one, or with what no broker gives."""
    return int.from_bytes(data, "big", signed=True) if len(data) == VERSION_BYTES else None


class Unlike(Exception):
    """These entries are not opened together."""


@dataclass(slots=True)
class Shape:
    """Metadata of `size` bytes: those bits of it that decide its layout (`mask`) are `expected`.

    `numbers` and `key` are where the fields lie, `properties` where keys and values do.
    """

    size: int
    mask: Bytes
    expected: Bytes
    producer: str = ""
    schema_version: int | None = None
    numbers: dict[int, Span] = field(default_factory=dict)
    key: Span | None = None
    properties: list[tuple[Span, Span]] = field(default_factory=list)

    @staticmethod
    def of(metadata: bytes) -> Shape:
        """That of an entry's metadata. Raises Unlike if the parser has to look at it."""
        data = np.frombuffer(metadata, np.uint8)
        shape = Shape(len(metadata), np.full(len(metadata), 0xFF, np.uint8), data.copy())
        seen = set[int]()
        for number, kind, at, length in _fields(metadata, 0, len(metadata)):
            if number in seen and number != PROPERTIES:
                raise Unlike
            seen.add(number)
            if kind == 0 and number in _NUMBERS | _NUMBERS_UNUSED:
                shape._take_number(number, at, length, metadata)
            elif kind == 2 and number in _BYTES | _BYTES_UNUSED:
                shape._take_bytes(number, at, length, metadata)
            else:
                raise Unlike
        if not seen >= _REQUIRED:
            raise Unlike
        shape.expected &= shape.mask
        return shape

    def _take_number(self, number: int, at: int, length: int, metadata: bytes) -> None:
        if number in (COMPRESSION, BASE64):
            if metadata[at : at + length] != b"\0":
                raise Unlike
            return  # it stays as it is
        if length > VARINT_BYTES_MAX:
            raise Unlike
        self.mask[at : at + length] = 0x80
        self.numbers[number] = at, length

    def _take_bytes(self, number: int, at: int, length: int, metadata: bytes) -> None:
        if number == PRODUCER:
            try:
                self.producer = metadata[at : at + length].decode()
            except UnicodeDecodeError:
                raise Unlike from None
            return  # one producer, one shape
        if number == SCHEMA:
            self.schema_version = schema_version_of(metadata[at : at + length])
            return  # one version, one shape
        if number == PROPERTIES:
            parts = list(_fields(metadata, at, at + length))
            if [(part[0], part[1]) for part in parts] != [(1, 2), (2, 2)]:
                raise Unlike
            key, value = ((place, size) for _, _, place, size in parts)
            self.properties.append((key, value))
            for place, size in (key, value):
                self.mask[place : place + size] = 0
            return
        self.mask[at : at + length] = 0
        if number == KEY:
            self.key = at, length

    def number(self, found: Bytes, of: int) -> Numbers:
        """A field of entries whose metadata are the rows of `found`; 0 where it is absent."""
        values = np.zeros(len(found), np.int64)
        at, length = self.numbers.get(of, (0, 0))
        for place in range(length):
            values |= (found[:, at + place] & 0x7F).astype(np.int64) << 7 * place
        return values


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(number, wire type, place, length) of the fields of a message. Raises Unlike if it is cut
    off, or has others than numbers and bytes."""
    while at < end:
        tag, at = _shortest(data, at, end)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            start = at
            _, at = _varint(data, at, end)
            yield number, kind, start, at - start
        elif kind == 2:
            length, at = _shortest(data, at, end)
            if at + length > end:
                raise Unlike
            yield number, kind, at, length
            at += length
        else:
            raise Unlike


def _shortest(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A number that takes no more bytes than it must, as tags and lengths of every encoder do."""
    value, behind = _varint(data, at, end)
    if behind - at != max(1, (value.bit_length() + 6) // 7):
        raise Unlike
    return value, behind


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if not byte & 0x80:
            return value, at
        shift += 7
    raise Unlike


@dataclass(frozen=True, slots=True)
class Opened:
    """The fields of a stretch's entries; entry i's payload is [starts[i], ends[i]) of the rows'.
    Times are milliseconds, an absent event time is 0. `properties` are None if they were not asked
    for."""

    keys: pa.Array
    producers: pa.Array
    sequences: Numbers
    publish_times: Numbers
    event_times: Numbers
    schema_versions: pa.Array
    properties: pa.Array | None
    starts: Numbers
    ends: Numbers


class Opener:
    """Opens stretches; remembers shapes that it has met. `properties`: whether they are wanted."""

    def __init__(self, *, properties: bool) -> None:
        self._properties = properties
        self._known: dict[int, list[Shape]] = {}

    def opened(self, rows: Rows, low: int, high: int) -> Opened:
        """The entries [low, high) of rows. Raises Unlike if one of them must be parsed."""
        data = np.frombuffer(rows.payload, np.uint8)
        offsets = rows.offsets[low : high + 1].astype(np.int64)
        starts, ends = offsets[:-1], offsets[1:]
        if not (ends - starts >= HEAD_BYTES).all():
            raise Unlike
        head = data[starts[:, None] + np.arange(HEAD_BYTES)]
        sizes = np.zeros(len(starts), np.int64)
        for place in range(CHECKSUM_BYTES, HEAD_BYTES):
            sizes = sizes << 8 | head[:, place]
        magic = np.frombuffer(CHECKSUM_MAGIC, np.uint8)
        if not (
            (head[:, : len(magic)] == magic).all() and (starts + HEAD_BYTES + sizes <= ends).all()
        ):
            raise Unlike
        parts: list[tuple[Numbers, Shape, Bytes]] = []
        for size in np.unique(sizes).tolist():
            chosen = np.flatnonzero(sizes == size)
            found = data[(starts[chosen] + HEAD_BYTES)[:, None] + np.arange(size)]
            parts += self._by_shape(size, chosen, found)
            if len(parts) > SHAPES_MAX:
                raise Unlike
        return self._together(parts, starts + HEAD_BYTES + sizes, ends)

    def _by_shape(
        self, size: int, chosen: Numbers, found: Bytes
    ) -> Iterator[tuple[Numbers, Shape, Bytes]]:
        """Which of the chosen entries, with metadata of this size, have which shape."""
        known = self._known.setdefault(size, [])
        for shape in known[:SHAPES_MAX]:
            alike = ((found & shape.mask) == shape.expected).all(axis=1)
            if alike.any():
                yield chosen[alike], shape, found[alike]
                chosen, found = chosen[~alike], found[~alike]
        met = 0
        while len(chosen):
            met += 1
            if met > SHAPES_MAX:
                raise Unlike
            shape = Shape.of(found[0].tobytes())
            known.insert(0, shape)
            alike = ((found & shape.mask) == shape.expected).all(axis=1)
            yield chosen[alike], shape, found[alike]
            chosen, found = chosen[~alike], found[~alike]
        del known[SHAPES_MAX:]

    def _together(
        self, parts: list[tuple[Numbers, Shape, Bytes]], starts: Numbers, ends: Numbers
    ) -> Opened:
        """The fields of all parts, in the order of the entries."""
        order = np.argsort(np.concatenate([chosen for chosen, _, _ in parts]))
        ordered = pa.array(order) if len(parts) > 1 else None

        def numbers(of: int) -> Numbers:
            return np.concatenate([shape.number(found, of) for _, shape, found in parts])[order]

        def arrays(made: list[pa.Array]) -> pa.Array:
            return made[0] if ordered is None else pa.concat_arrays(made).take(ordered)

        return Opened(
            keys=arrays([_keys(shape, found) for _, shape, found in parts]),
            producers=arrays(
                [
                    pa.repeat(pa.scalar(shape.producer, pa.string()), len(found))
                    for _, shape, found in parts
                ]
            ),
            sequences=numbers(SEQUENCE),
            publish_times=numbers(PUBLISHED),
            event_times=numbers(EVENT),
            schema_versions=arrays(
                [
                    pa.repeat(pa.scalar(shape.schema_version, pa.int64()), len(found))
                    for _, shape, found in parts
                ]
            ),
            properties=(
                arrays([_properties(shape, found) for _, shape, found in parts])
                if self._properties
                else None
            ),
            starts=starts,
            ends=ends,
        )


def _keys(shape: Shape, found: Bytes) -> pa.Array:
    if shape.key is None:
        return pa.nulls(len(found), pa.binary())
    return _slices(found, [shape.key])


def _slices(found: Bytes, spans: list[Span]) -> pa.Array:
    """These bytes of each row, row by row, as values of their own."""
    lengths = [length for _, length in spans]
    offsets = np.zeros(len(found) * len(spans) + 1, np.int32)
    np.cumsum(np.tile(np.array(lengths, np.int32), len(found)), out=offsets[1:])
    data = np.concatenate([found[:, at : at + length] for at, length in spans], axis=1).tobytes()
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _properties(shape: Shape, found: Bytes) -> pa.Array:
    """Raises Unlike for what is no text."""
    each = len(shape.properties)
    offsets = pa.array(np.arange(len(found) + 1, dtype=np.int32) * each)
    if not each:
        none = pa.array([], pa.string())
        return pa.MapArray.from_arrays(offsets, none, none)
    try:
        keys, values = (
            _slices(found, [pair[side] for pair in shape.properties]).cast(pa.string())
            for side in (0, 1)
        )
    except pa.ArrowInvalid:
        raise Unlike from None
    return pa.MapArray.from_arrays(offsets, keys, values)
