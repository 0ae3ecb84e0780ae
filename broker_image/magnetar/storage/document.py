"""Small JSON files that prove their own integrity (version 1).

Owns: the framing shared by claims, seals, manifests, checkpoints and the storage id: one line of
canonical JSON with `kind` and `version`, then one line `crc32c=xxxxxxxx` over the first, newline
included. Imports: errors, crc32c, json. Pure. Invariants: equal bodies have equal bytes; a file of
another kind or version, cut short or altered is refused, never guessed at.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from crc32c import crc32c

from magnetar.errors import CorruptData

T = TypeVar("T")

PIECE_ITEMS = 500
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_TRAILER = b"crc32c="
_TRAILER_BYTES = len(_TRAILER) + 8 + 1


def encode_document(kind: str, version: int, body: dict[str, Any]) -> bytes:
    """The file's bytes. `body` must not use the keys `kind` and `version`."""
    assert not {"kind", "version"} & body.keys(), sorted(body)
    return close_document([document_json({"kind": kind, "version": version, **body})])


def document_json(value: Any) -> bytes:
    """A value as documents have it: keys sorted, no spaces."""
    return _ENCODER.encode(value).encode()


def json_items(values: Sequence[T], plain: Callable[[T], Any]) -> Iterator[bytes]:
    """The inside of a list of `plain` values, in pieces that take a millisecond or so each."""
    for at in range(0, len(values), PIECE_ITEMS):
        piece = document_json(list(map(plain, values[at : at + PIECE_ITEMS])))[1:-1]
        yield b"," + piece if at else piece


def close_document(pieces: Iterable[bytes]) -> bytes:
    """The file's bytes from its JSON, which may come in pieces and has all keys."""
    line = [*pieces, b"\n"]
    checksum = 0
    for piece in line:
        checksum = crc32c(piece, checksum)
    return b"".join((*line, b"%s%08x\n" % (_TRAILER, checksum)))


def decode_document(kind: str, version: int, data: bytes, name: str) -> dict[str, Any]:
    """The body of file `name`, without `kind` and `version`. Raises CorruptData naming the file
    and what is wrong."""
    line, trailer = data[:-_TRAILER_BYTES], data[-_TRAILER_BYTES:]
    if not line.endswith(b"\n") or trailer != b"%s%08x\n" % (_TRAILER, crc32c(line)):
        raise CorruptData(
            f"{name}: {len(data)} bytes fail their checksum; restore this file from a backup"
        )
    body = json.loads(line)
    found = (body.pop("kind", None), body.pop("version", None))
    if found != (kind, version):
        raise CorruptData(
            f"{name}: holds {found[0]} version {found[1]}, not {kind} version {version}; upgrade "
            "this component"
        )
    assert isinstance(body, dict)
    return body
