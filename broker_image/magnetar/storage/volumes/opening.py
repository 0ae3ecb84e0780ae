"""Which volume a location means.

Owns: the spelling of locations and the start-up probe of each kind. Imports: clock, errors, the
volumes (S3 and links when asked for).
  /path or a relative one            a directory on a coherent file system
  link:///path                       a directory on one that caches what other machines change (NFS)
  s3://bucket/prefix?endpoint=http://host:port&region=name
Invariants: a volume that owners write to is returned only after its probe has passed; a location holds no credentials.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from magnetar.clock import Clock
from magnetar.errors import InvalidRequest, StorageError
from magnetar.storage.volumes.posix import PosixVolume
from magnetar.storage.volumes.slots import SlotVolume

S3_SCHEME, LINK_SCHEME = "s3", "link"
_S3_PARAMETERS = {"endpoint", "region"}


def is_directory(location: str) -> bool:
    """Whether the location is a directory whose files are the volume's, for readers of
    plain files."""
    return "://" not in location


def check_location(location: str) -> None:
    """Raises InvalidRequest saying what is wrong with a location and what would be right."""
    if is_directory(location):
        return
    parts = urlsplit(location)
    if parts.scheme == S3_SCHEME:
        if "@" in parts.netloc:
            # Not quoted: what stands there may be a secret.
            raise InvalidRequest(
                "storage: an s3:// location holds no credentials; set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY"
            )
        unknown = {
            name for name, _ in parse_qsl(parts.query, keep_blank_values=True)
        } - _S3_PARAMETERS
        if not parts.netloc or unknown:
            raise InvalidRequest(
                f"storage: {location!r} is no S3 location; use "
                "s3://bucket/prefix?endpoint=https://host&region=name"
            )
    elif parts.scheme == LINK_SCHEME:
        if parts.netloc or not parts.path.strip("/"):
            raise InvalidRequest(f"storage: {location!r} names no directory; use link:///path")
    else:
        raise InvalidRequest(
            f"storage: {location!r} is not known; use a directory, link:///path or "
            "s3://bucket/prefix"
        )


def volume_at(location: str, clock: Clock, reserve_bytes: int = 0) -> PosixVolume | SlotVolume:
    """The volume there as it is, not probed: for readers of what owners have written. Raises
    InvalidRequest."""
    check_location(location)
    if is_directory(location):
        return PosixVolume(Path(location), reserve_bytes)
    parts = urlsplit(location)
    if parts.scheme == LINK_SCHEME:
        from magnetar.storage.volumes.linked import LinkedObjects

        return SlotVolume(LinkedObjects(Path(parts.path)), clock)
    from magnetar.storage.volumes.objects import RetryingObjects
    from magnetar.storage.volumes.s3 import S3Client

    parameters = dict(parse_qsl(parts.query))
    client = S3Client(
        parts.netloc,
        parts.path.strip("/"),
        endpoint=parameters.get("endpoint", ""),
        region=parameters.get("region", ""),
    )
    return SlotVolume(RetryingObjects(client, clock), clock)


@asynccontextmanager
async def opened_at(location: str, clock: Clock) -> AsyncIterator[PosixVolume | SlotVolume]:
    """As `volume_at`, closed in the end. Raises InvalidRequest."""
    volume = volume_at(location, clock)
    try:
        yield volume
    finally:
        await volume.close()


async def open_volume(
    location: str, clock: Clock, reserve_bytes: int = 0
) -> PosixVolume | SlotVolume:
    """The volume there, found fit to carry the fence. Raises InvalidRequest, StorageError saying
    what to do.

    `reserve_bytes` of a directory are kept for when it is full; other kinds of volumes have no
    reserve.
    """
    volume = volume_at(location, clock, reserve_bytes)
    if isinstance(volume, PosixVolume):
        volume.probe_coherence()
        return volume
    try:
        await volume.probe()
    except StorageError as error:
        await volume.close()
        raise StorageError(f"{location} cannot be used: {error}") from error
    except BaseException:
        await volume.close()
        raise
    return volume
