"""Compression: what other clients compress is opened here and the reverse; damage and bombs are
refused."""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Callable

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import ProtocolError
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.compression import UNCOMPRESSED_BYTES_MAX, compress, decompress

ARROW = {api.LZ4: "lz4_raw", api.ZSTD: "zstd", api.SNAPPY: "snappy"}
KINDS = (api.ZLIB, *ARROW)
PAYLOAD = bytes(random.Random(3).choices(b"abcd", k=5000))


def _compressed_elsewhere(kind: int, payload: bytes) -> bytes:
    if kind == api.ZLIB:
        return zlib.compress(payload)
    return bytes(pyarrow.Codec(ARROW[kind]).compress(payload, asbytes=True))


def _opened_elsewhere(kind: int, packed: bytes, size: int) -> bytes:
    if kind == api.ZLIB:
        return zlib.decompress(packed)
    return bytes(pyarrow.Codec(ARROW[kind]).decompress(packed, size, asbytes=True))


@pytest.mark.parametrize("kind", KINDS)
@given(payload=st.binary(max_size=3000))
def test_other_implementations_agree(kind: int, payload: bytes) -> None:
    """Apache Arrow's codecs, which are those of the C libraries, in both directions."""
    packed = compress(kind, payload)
    if payload:
        assert _opened_elsewhere(kind, packed, len(payload)) == payload
    assert bytes(decompress(kind, memoryview(packed), len(payload))) == payload
    theirs = memoryview(_compressed_elsewhere(kind, payload))
    assert bytes(decompress(kind, theirs, len(payload))) == payload


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_size_other_than_the_announced_one_is_refused(kind: int, wrong: int) -> None:
    packed = memoryview(compress(kind, PAYLOAD))
    with pytest.raises(ProtocolError):
        decompress(kind, packed, len(PAYLOAD) + wrong)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", [lambda _: b"\xff" * 40, lambda packed: packed[:-9]])
def test_damage_is_typed(kind: int, damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(ProtocolError):
        decompress(kind, memoryview(damage(compress(kind, PAYLOAD))), len(PAYLOAD))


@pytest.mark.parametrize("kind", KINDS)
@given(packed=st.binary(max_size=200), size=st.integers(0, 500))
def test_whatever_a_peer_sends_only_typed_errors_come_out(
    kind: int, packed: bytes, size: int
) -> None:
    with contextlib.suppress(ProtocolError):
        assert len(decompress(kind, memoryview(packed), size)) == size


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_message_never_becomes_gigabytes(kind: int) -> None:
    """A bomb stops at the announced size, and the announced size has a limit."""
    bomb = memoryview(compress(kind, bytes(1_000_000)))
    with pytest.raises(ProtocolError):
        decompress(kind, bomb, 10)
    with pytest.raises(ProtocolError, match="too large"):
        decompress(kind, bomb, UNCOMPRESSED_BYTES_MAX + 1)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ProtocolError, match="99 is not known"):
        decompress(99, memoryview(b"abc"), 10)
