"""Compression of batch payloads, as Pulsar clients do it.

Owns: the four codecs of `MessageMetadata.compression`. Imports: errors, zlib; pyarrow, which not
every image has, on first use. Source: Pulsar's protocol; LZ4 is the raw block (its size is `uncompressed_size`), ZLIB a zlib
stream, ZSTD one frame, SNAPPY the raw format. Invariants: what a peer claims never makes memory
grow beyond `UNCOMPRESSED_BYTES_MAX`; damaged or unknown input raises ProtocolError, a codec that is not installed here NotAllowed.
"""

from __future__ import annotations

import importlib
import zlib
from functools import lru_cache
from typing import Any

from magnetar.errors import NotAllowed, ProtocolError
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.checksum import Buffer

UNCOMPRESSED_BYTES_MAX = 256 << 20
_ARROW_NAMES = {api.LZ4: "lz4_raw", api.ZSTD: "zstd", api.SNAPPY: "snappy"}


@lru_cache(maxsize=8)
def _arrow_codec(kind: int) -> Any:
    name = _ARROW_NAMES[kind]  # type: ignore[index]
    try:
        return importlib.import_module("pyarrow").Codec(name)
    except ImportError as missing:
        raise NotAllowed(
            f"a batch is compressed with {name}, and pyarrow is not installed here; compact the "
            "topic with a DataJob of type compaction"
        ) from missing


def decompress(kind: int, payload: memoryview, size: int) -> Buffer:
    """The `size` bytes that `payload` holds in compression type `kind`. Raises ProtocolError,
    NotAllowed."""
    if not 0 <= size <= UNCOMPRESSED_BYTES_MAX:
        raise ProtocolError(
            f"uncompressed_size: {size} is out of range; at most {UNCOMPRESSED_BYTES_MAX} bytes "
            "are opened"
        )
    try:
        if kind == api.ZLIB:
            return zlib.decompressobj().decompress(payload, size) if size else b""
        if kind in _ARROW_NAMES:
            return memoryview(_arrow_codec(kind).decompress(payload, size)) if size else b""
    except (zlib.error, OSError, ValueError) as error:
        raise ProtocolError(
            f"payload of {len(payload)} bytes does not decompress (compression type {kind}): "
            f"{error}"
        ) from error
    raise ProtocolError(f"compression: {kind} is not known; upgrade this component")


def compress(kind: int, payload: bytes) -> bytes:
    """`payload` in compression type `kind`, which `decompress` has accepted before."""
    if kind == api.NONE:
        return payload
    if kind == api.ZLIB:
        return zlib.compress(payload)
    return bytes(_arrow_codec(kind).compress(payload, asbytes=True))
