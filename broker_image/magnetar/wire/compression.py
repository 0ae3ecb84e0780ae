"""Compression of payloads, as Pulsar clients do it.

Owns: the four codecs of `MessageMetadata.compression`. Imports: errors, zlib; cramjam, on first use.
Source: Pulsar's protocol. LZ4 is the raw block (its size is `uncompressed_size`), ZLIB a zlib
stream, ZSTD frames, SNAPPY the raw format. Invariants: at most the announced size is produced, and
at most `UNCOMPRESSED_BYTES_MAX` (a small message must not unpack into gigabytes); damaged or
unknown input raises ProtocolError.
"""

from __future__ import annotations

import mmap
import zlib

from magnetar.errors import ProtocolError
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.checksum import Buffer

UNCOMPRESSED_BYTES_MAX = 64 << 20
PART_BYTES = 256 << 10


def compress(kind: int, payload: bytes) -> bytes:
    """`payload` in compression type `kind` of the protocol."""
    if kind == api.NONE:
        return payload
    if kind == api.ZLIB:
        return zlib.compress(payload)
    import cramjam  # 5 ms that only those pay who use it

    if kind == api.LZ4:
        return bytes(cramjam.lz4.compress_block(payload, store_size=False))
    if kind == api.ZSTD:
        return bytes(cramjam.zstd.compress(payload))
    assert kind == api.SNAPPY, kind
    return bytes(cramjam.snappy.compress_raw(payload))


def decompress(kind: int, payload: memoryview, size: int) -> Buffer:
    """The `size` bytes that `payload` holds in compression type `kind`. Raises ProtocolError."""
    if size > UNCOMPRESSED_BYTES_MAX:
        raise ProtocolError(
            f"uncompressed_size: {size} is too large; at most {UNCOMPRESSED_BYTES_MAX} bytes are "
            "opened"
        )
    opened = _inflated(payload, size + 1) if kind == api.ZLIB else _filled(kind, payload, size)
    if len(opened) != size:
        raise ProtocolError(
            f"payload decompresses to {len(opened)} bytes or more; its metadata says {size}"
        )
    return opened


def _filled(kind: int, payload: memoryview, size: int) -> Buffer:
    """A buffer of `size` bytes, filled as far as the content goes: the codecs write no further."""
    import cramjam

    opened = bytearray(size)
    try:
        if kind == api.LZ4:
            end = cramjam.lz4.decompress_block_into(payload, opened)
        elif kind == api.ZSTD:
            end = cramjam.zstd.decompress_into(payload, opened)
        elif kind == api.SNAPPY:
            end = cramjam.snappy.decompress_raw_into(payload, opened)
        else:
            raise ProtocolError(f"compression: {kind} is not known; upgrade this component")
    except cramjam.DecompressionError as failure:
        raise _damaged(kind, payload, failure) from failure
    return opened if end == size else memoryview(opened)[:end]


def _inflated(payload: memoryview, size_max: int) -> Buffer:
    """At most so many bytes. Large ones are collected in a mapping, whose pages come as they are
    written: nothing else runs while a large block is cleared or copied, and zlib's own blocks grow
    up to 32 MiB, which the allocator keeps once they are free.
    """
    stream = zlib.decompressobj()
    try:
        if size_max <= PART_BYTES:
            return stream.decompress(payload, size_max)
        collected, end, rest = memoryview(mmap.mmap(-1, size_max)), 0, bytes(payload)
        while end < size_max and (part := stream.decompress(rest, min(PART_BYTES, size_max - end))):
            collected[end : end + len(part)] = part
            end += len(part)
            rest = stream.unconsumed_tail
    except zlib.error as failure:
        raise _damaged(api.ZLIB, payload, failure) from failure
    return collected[:end]


def _damaged(kind: int, payload: memoryview, failure: Exception) -> ProtocolError:
    return ProtocolError(
        f"payload of {len(payload)} bytes is damaged (compression type {kind}): {failure}"
    )
