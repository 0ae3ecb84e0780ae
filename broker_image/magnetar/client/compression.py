"""Compression of payloads.

Owns: the codecs by the protocol's numbers. Imports: zlib; pyarrow only when a message needs LZ4,
ZSTD or SNAPPY. Invariant: at most the announced size is produced, and at most
`uncompressed_bytes_max` (a small message must not unpack into gigabytes).
"""

from __future__ import annotations

import enum
import importlib
import mmap
import zlib
from typing import Any

from magnetar.errors import NotAllowed, ProtocolError
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.checksum import Buffer

UNCOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
PART_BYTES = 256 << 10
_PYARROW_CODECS: dict[int, str] = {api.LZ4: "lz4_raw", api.ZSTD: "zstd", api.SNAPPY: "snappy"}


class Compression(enum.Enum):
    """What a producer may compress with; all but ZLIB need pyarrow beside magnetar, for
    consumers too."""

    NONE = "none"
    ZLIB = "zlib"
    LZ4 = "lz4"
    ZSTD = "zstd"
    SNAPPY = "snappy"


_NUMBERS = {Compression.LZ4: api.LZ4, Compression.ZSTD: api.ZSTD, Compression.SNAPPY: api.SNAPPY}


def available(kind: Compression) -> Compression:
    """`kind`. Raises NotAllowed if it is not installed here."""
    if kind in _NUMBERS:
        _pyarrow(kind.value)
    return kind


def compress(kind: Compression, payload: bytes) -> tuple[api.CompressionType.ValueType, bytes]:
    """The protocol's number of the codec and the compressed payload. Raises NotAllowed if the
    codec is not installed here."""
    if kind is Compression.ZLIB:
        return api.ZLIB, zlib.compress(payload)
    number = _NUMBERS.get(kind)
    if number is None:
        return api.NONE, payload
    return number, bytes(
        _pyarrow(kind.value).Codec(_PYARROW_CODECS[number]).compress(payload, asbytes=True)
    )


def _pyarrow(codec: str) -> Any:
    try:
        return importlib.import_module("pyarrow")
    except ImportError as failure:
        raise NotAllowed(
            f"{codec} messages need pyarrow; install it beside magnetar, or use zlib"
        ) from failure


def decompress(kind: int, payload: memoryview, size: int) -> Buffer:
    """The payload of `size` bytes. Raises ProtocolError if it is damaged, NotAllowed if its
    codec is not installed here."""
    if size > UNCOMPRESSED_BYTES_MAX:
        raise ProtocolError(
            f"payload claims {size} bytes uncompressed; the limit is {UNCOMPRESSED_BYTES_MAX}"
        )
    if kind == api.ZLIB:
        try:
            # one more than announced: the caller sees that the size is wrong
            return _inflated(payload, size + 1)
        except zlib.error as failure:
            raise ProtocolError(
                f"zlib payload of {len(payload)} bytes is damaged: {failure}"
            ) from failure
    name = _PYARROW_CODECS.get(kind)
    if name is None:
        raise ProtocolError(f"compression type {kind} is not in the protocol")
    pyarrow = _pyarrow(name)
    try:
        return bytes(pyarrow.Codec(name).decompress(payload, size, asbytes=True))
    except (OSError, ValueError) as failure:
        raise ProtocolError(
            f"{name} payload of {len(payload)} bytes is damaged: {failure}"
        ) from failure


def _inflated(payload: memoryview, size_max: int) -> Buffer:
    """At most so many bytes. Large ones are collected in a mapping, whose pages come as they are
    written: nothing else runs while a large block is cleared or copied, and zlib's own blocks grow
    up to 32 MiB, which the allocator keeps once they are free.
    """
    stream = zlib.decompressobj()
    if size_max <= PART_BYTES:
        return stream.decompress(payload, size_max)
    collected, end, rest = memoryview(mmap.mmap(-1, size_max)), 0, bytes(payload)
    while end < size_max and (part := stream.decompress(rest, min(PART_BYTES, size_max - end))):
        collected[end : end + len(part)] = part
        end += len(part)
        rest = stream.unconsumed_tail
    return collected[:end]
