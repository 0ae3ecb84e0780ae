"""Taking images out of the OCI layout.

Owns: reading the layout and writing archives of its images. May import: dev.kube.oci.
Invariant: an archive is complete unless the caller names blobs the receiver has already.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

from dev.kube import oci

SMALL_BLOB_BYTES_MAX = 1 << 20


class NotInLayout(LookupError):
    """The layout has no image of that name."""


def manifest_of(layout: Path, name: str) -> dict[str, Any]:
    """The index entry of an image."""
    for entry in _entries(layout):
        if entry["annotations"][oci.REFERENCE_ANNOTATION] == name:
            return entry
    raise NotInLayout(f"{name} has not been built")


def blobs_of(layout: Path, entry: dict[str, Any]) -> list[str]:
    """Digests of manifest, configuration and layers."""
    manifest: dict[str, Any] = json.loads(_blob(layout, entry["digest"]).read_text())
    return [
        entry["digest"],
        manifest["config"]["digest"],
        *(layer["digest"] for layer in manifest["layers"]),
    ]


def write(
    layout: Path, names: Collection[str], output: IO[bytes], *, without: Collection[str] = ()
) -> int:
    """Write an archive of images to a stream, leaving out some blobs; returns the bytes of its
    blobs."""
    entries = {name: manifest_of(layout, name) for name in names}
    described = {
        name: {key: entry[key] for key in ("mediaType", "digest", "size")}
        for name, entry in entries.items()
    }
    written = 0
    with tarfile.open(fileobj=output, mode="w|") as archive:
        _add(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(archive, "index.json", json.dumps(oci.index_of(described)).encode())
        for digest in dict.fromkeys(
            digest for entry in entries.values() for digest in blobs_of(layout, entry)
        ):
            # Manifest and configuration are small and always go along: the receiver reads them
            # first.
            if digest not in without or _blob(layout, digest).stat().st_size < SMALL_BLOB_BYTES_MAX:
                archive.add(
                    _blob(layout, digest), f"blobs/{digest.replace(':', '/')}", recursive=False
                )
                written += _blob(layout, digest).stat().st_size
    return written


def unpacked_bytes(layout: Path, name: str) -> int:
    """What the files of all layers hold."""
    manifest: dict[str, Any] = json.loads(
        _blob(layout, manifest_of(layout, name)["digest"]).read_text()
    )
    total = 0
    for layer in manifest["layers"]:
        with tarfile.open(_blob(layout, layer["digest"])) as files:
            total += sum(member.size for member in files if member.isfile())
    return total


def names_in(layout: Path) -> list[str]:
    """Every image in the layout."""
    return [entry["annotations"][oci.REFERENCE_ANNOTATION] for entry in _entries(layout)]


def prune(layout: Path, keep: Collection[str]) -> int:
    """Forget all other images, then remove the blobs nobody names any more; returns the bytes
    freed."""
    kept = [
        entry
        for entry in _entries(layout)
        if entry["annotations"][oci.REFERENCE_ANNOTATION] in keep
    ]
    # The index first: interrupted after it, the next call removes the blobs.
    unfinished = layout / "index.json.unfinished"
    unfinished.write_text(json.dumps({"schemaVersion": 2, "manifests": kept}))
    unfinished.replace(layout / "index.json")
    needed = {_blob(layout, digest) for entry in kept for digest in blobs_of(layout, entry)}
    unneeded = [blob for blob in (layout / "blobs" / "sha256").glob("*") if blob not in needed]
    freed = sum(blob.stat().st_size for blob in unneeded)
    for blob in unneeded:
        blob.unlink()
    return freed


def _entries(layout: Path) -> list[dict[str, Any]]:
    index = layout / "index.json"
    entries: list[dict[str, Any]] = (
        json.loads(index.read_text())["manifests"] if index.exists() else []
    )
    return [entry for entry in entries if oci.REFERENCE_ANNOTATION in entry.get("annotations", {})]


def _blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / digest.replace(":", "/")


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
