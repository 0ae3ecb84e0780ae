"""Image archives made without an image builder.

Owns: one-layer images from a few static files (pause, etcd). May import: the standard library.
Invariant: equal files give an equal archive, byte for byte, so importing it again changes nothing.
"""

from __future__ import annotations

import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
NAME_ANNOTATION = "io.containerd.image.name"
REFERENCE_ANNOTATION = "org.opencontainers.image.ref.name"


def write_scratch_image(
    destination: Path, name: str, files: Mapping[str, Path], entrypoint: Sequence[str]
) -> None:
    """Write an archive of an image that holds exactly these executables."""
    layer = _layer(files)
    config = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint), "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
    }
    encoded_config = json.dumps(config).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": descriptor(CONFIG_TYPE, encoded_config),
        "layers": [descriptor(LAYER_TYPE, layer)],
    }
    encoded_manifest = json.dumps(manifest).encode()
    index = index_of({name: descriptor(MANIFEST_TYPE, encoded_manifest)})
    blobs = [layer, encoded_config, encoded_manifest]
    members = {f"blobs/sha256/{sha256(blob).hexdigest()}": blob for blob in blobs}
    members |= {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": json.dumps(index).encode(),
    }
    destination.write_bytes(_tar(members, mode=0o644))


def index_of(images: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    """An index naming images, each by its manifest, the way containerd and buildah both read it."""
    manifests = [
        {**manifest, "annotations": {NAME_ANNOTATION: name, REFERENCE_ANNOTATION: name}}
        for name, manifest in images.items()
    ]
    return {"schemaVersion": 2, "manifests": manifests}


def descriptor(media_type: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": digest(blob), "size": len(blob)}


def digest(blob: bytes) -> str:
    return f"sha256:{sha256(blob).hexdigest()}"


def _layer(files: Mapping[str, Path]) -> bytes:
    return _tar({target: source.read_bytes() for target, source in files.items()}, mode=0o755)


def _tar(members: Mapping[str, bytes], mode: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in sorted(members.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
