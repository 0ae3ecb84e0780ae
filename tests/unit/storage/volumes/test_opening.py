"""Which volume a location means, and what is refused before anything is touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from magnetar.errors import InvalidRequest, StorageError
from magnetar.storage.volumes import coherence
from magnetar.storage.volumes import linked as linked_objects
from magnetar.storage.volumes.opening import check_location, is_directory, open_volume
from magnetar.storage.volumes.posix import PosixVolume
from magnetar.storage.volumes.slots import SlotVolume
from tests.support.logs import CLOCK

NFS = 0x6969


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("gs://bucket/prefix", "not known"),
        ("s3:///prefix", "no S3 location"),
        ("s3://bucket/prefix?endpoint=http://h&secret=x", "no S3 location"),
        ("s3://key:hidden@bucket/prefix", "AWS_ACCESS_KEY_ID"),
        ("link://host/path", "link:///path"),
        ("link:///", "link:///path"),
    ],
)
def test_a_location_that_means_nothing_is_refused(location: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        check_location(location)
    assert "hidden" not in str(refused.value)


def test_what_is_a_directory_and_what_is_not() -> None:
    for location in ("data", "/var/lib/magnetar", "s3", "link"):
        check_location(location)
        assert is_directory(location)
    for location in (
        "link:///data",
        "s3://bucket",
        "s3://bucket/a/b?endpoint=http://127.0.0.1:9000&region=x",
    ):
        check_location(location)
        assert not is_directory(location)


async def test_a_directory_and_a_directory_of_links_are_opened(tmp_path: Path) -> None:
    for location, kind in (
        (str(tmp_path / "a"), PosixVolume),
        (f"link://{tmp_path}/b", SlotVolume),
    ):
        volume = await open_volume(location, CLOCK)
        assert isinstance(volume, kind)
        assert await volume.list("") == []
        await volume.close()


def test_nfs_is_refused_as_a_directory_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"on NFS .* link://"):
        coherence.check_file_system(NFS, tmp_path)
    coherence.check_linked_file_system(NFS, tmp_path)


async def test_an_unknown_file_system_is_refused_for_links_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linked_objects, "file_system_magic", lambda _path: 0x65735546)
    with pytest.raises(StorageError, match=r"FUSE .* s3://"):
        await open_volume(f"link://{tmp_path}/b", CLOCK)


def test_obstore_is_imported_only_for_a_volume_on_s3() -> None:
    code = (
        "import sys; import magnetar.broker.process, magnetar.storage.volumes.slots; "
        "sys.exit('obstore' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
