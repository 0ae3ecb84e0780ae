"""Copies of the metadata store.

Owns: `Backup`, its bytes (version 1), and reading one from a store. Imports: metadata siblings,
errors, crc32c, json. Format: JSON lines: a header {format, version, storage_id, restore, revision,
created_ms}, one {key, value} per durable key in key order (the value as text, which all records
are), a trailer {count, crc32c} over everything before it. Invariants: a copy is of one revision and
holds durable keys only; what is cut short, altered or of another version is refused, never guessed
at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from crc32c import crc32c

from magnetar.errors import CorruptData, StoreError
from magnetar.metadata import keys
from magnetar.metadata.records import RESTORE_STRIDE, ClusterRecord
from magnetar.metadata.store import MetadataStore

FORMAT, VERSION = "magnetar-metadata-backup", 1
PART_ENTRIES = 500


@dataclass(frozen=True, slots=True)
class Backup:
    """The durable keys of a store as of `revision`; `restore` is the store's restore number."""

    storage_id: str
    restore: int
    revision: int
    created_ms: int
    items: Mapping[str, bytes]

    @property
    def epoch(self) -> int:
        """No term of this copy has a higher epoch; every term that began after it has one."""
        return self.restore * RESTORE_STRIDE + self.revision


def encode_backup(backup: Backup) -> bytes:
    """The copy's bytes."""
    return b"".join(encoded_parts(backup))


def encoded_parts(backup: Backup) -> Iterator[bytes]:
    """The copy's bytes, `PART_ENTRIES` entries at a time: a millisecond or two of work each, so
    that the event loop serves others in between."""
    header: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "storage_id": backup.storage_id,
        "restore": backup.restore,
        "revision": backup.revision,
        "created_ms": backup.created_ms,
    }
    rows = ({"key": key, "value": value.decode()} for key, value in sorted(backup.items.items()))
    lines, checksum = map(_line, chain((header,), rows)), 0
    while part := b"".join(islice(lines, PART_ENTRIES)):
        checksum = crc32c(part, checksum)
        yield part
    yield _line({"count": len(backup.items), "crc32c": f"{checksum:08x}"})


def _line(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def decode_backup(data: bytes, name: str) -> Backup:
    """Parse the copy `name`. Raises CorruptData naming it and what is wrong."""
    body_end = data.rstrip(b"\n").rfind(b"\n") + 1
    try:
        trailer = json.loads(data[body_end:])
        lines = data[:body_end].splitlines()
        header = json.loads(lines[0])
        if header["format"] != FORMAT or header["version"] != VERSION:
            raise CorruptData(
                f"{name}: is {header['format']} version {header['version']}, not {FORMAT} version "
                f"{VERSION}; upgrade this program"
            )
        if (
            trailer["crc32c"] != f"{crc32c(data[:body_end]):08x}"
            or trailer["count"] != len(lines) - 1
        ):
            raise CorruptData(
                f"{name}: the backup is cut short or altered (its checksum does not fit); use "
                "another one"
            )
        rows = [json.loads(line) for line in lines[1:]]
        items = {row["key"]: row["value"].encode() for row in rows}
        return Backup(
            header["storage_id"], header["restore"], header["revision"], header["created_ms"], items
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise CorruptData(
            f"{name}: is not a whole backup of the metadata store ({error!r}); use another one"
        ) from error


async def read_backup(store: MetadataStore, created_ms: int) -> Backup:
    """A copy of the store as it is now. Raises StoreError, also for a store that no broker has
    ever used."""
    found = await store.range("")
    items = {
        item.key: item.value for item in found.items if not item.lease and keys.is_durable(item.key)
    }
    if keys.CLUSTER not in items:
        raise StoreError(
            f"the metadata store has no key {keys.CLUSTER!r}: it holds no cluster, or it was "
            "lost; nothing was copied"
        )
    cluster = ClusterRecord.decode(items[keys.CLUSTER])
    return Backup(cluster.storage_id, cluster.restore, found.revision, created_ms, items)
