"""Compression of payloads.

Owns: the codecs by the protocol's numbers. Imports: zlib; pyarrow only when a message needs LZ4, ZSTD or SNAPPY.
Invariant: at most the announced size is produced, and at most `uncompressed_bytes_max` (a small message must not unpack into gigabytes).
"""

from __future__ import annotations

import enum
import importlib
import zlib

from magnetar.errors import NotAllowed, ProtocolError
from magnetar.wire import pulsar_api_pb2 as api

UNCOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
_PYARROW_CODECS: dict[int, str] = {api.LZ4: "lz4_raw", api.ZSTD: "zstd", api.SNAPPY: "snappy"}


class Compression(enum.Enum):
    """What a producer may compress with; consumers read all of the protocol's."""

    NONE = "none"
    ZLIB = "zlib"


def compress(kind: Compression, payload: bytes) -> tuple[api.CompressionType.ValueType, bytes]:
    """The protocol's number of the codec and the compressed payload."""
    if kind is Compression.ZLIB:
        return api.ZLIB, zlib.compress(payload)
    return api.NONE, payload


def decompress(kind: int, payload: memoryview, size: int) -> bytes:
    """The payload of `size` bytes. Raises ProtocolError if it is damaged, NotAllowed if its codec is not installed here."""
    if size > UNCOMPRESSED_BYTES_MAX:
        raise ProtocolError(f"payload claims {size} bytes uncompressed; the limit is {UNCOMPRESSED_BYTES_MAX}")
    if kind == api.ZLIB:
        stream = zlib.decompressobj()
        try:
            return stream.decompress(payload, size + 1)  # one more than announced: the caller sees that the size is wrong
        except zlib.error as failure:
            raise ProtocolError(f"zlib payload of {len(payload)} bytes is damaged: {failure}") from failure
    name = _PYARROW_CODECS.get(kind)
    if name is None:
        raise ProtocolError(f"compression type {kind} is not in the protocol")
    try:
        pyarrow = importlib.import_module("pyarrow")
    except ImportError as failure:
        raise NotAllowed(f"reading {name} messages needs pyarrow; install it beside magnetar") from failure
    try:
        return bytes(pyarrow.Codec(name).decompress(payload, size, asbytes=True))
    except (OSError, ValueError) as failure:
        raise ProtocolError(f"{name} payload of {len(payload)} bytes is damaged: {failure}") from failure
