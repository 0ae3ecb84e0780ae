"""The journal's bytes: golden, cut where they are torn, refused where acknowledged data is
damaged."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import CorruptData
from magnetar.metadata.backends import journal
from magnetar.metadata.backends.core import Change, Snapshot, Write
from magnetar.metadata.store import KeyValue

SALT = 0x1122334455667788
SNAPSHOT = Snapshot(7, (KeyValue("k", b"v", 2, 3, 4, 5),))
CHANGES = [Change(8, (Write("a", b"xy", 9), Write("ä", None))), Change(9, (Write("b", b""),))]
GOLDEN_HEADER = "4d41474e4d455441010000008877665544332211d97240e0"
GOLDEN_SNAPSHOT = "f54d4a01360000000000000000000000971e452b"
GOLDEN_CHANGES = "f54d4a014e00000001000000000000000e673000"

numbers = st.integers(0, (1 << 63) - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
items = st.builds(KeyValue, text, st.binary(max_size=50), numbers, numbers, numbers, numbers)
writes = st.builds(Write, text, st.none() | st.binary(max_size=50), numbers)
changes = st.builds(Change, numbers, st.lists(writes, max_size=4).map(tuple))


def file_bytes() -> bytes:
    """A journal with a snapshot and three frames of changes."""
    frames = [
        journal.encode_snapshot(SNAPSHOT),
        *(journal.encode_changes(CHANGES) for _ in range(3)),
    ]
    return journal.encode_header(SALT) + b"".join(
        journal.encode_frame(SALT, n, payload) for n, payload in enumerate(frames)
    )


def frame_ends() -> list[int]:
    return [
        position for position in range(len(file_bytes()) + 1) if _is_whole(file_bytes()[:position])
    ]


def _is_whole(data: bytes) -> bool:
    try:
        return journal.recover(data, "test").length == len(data)
    except CorruptData:
        return False


def test_golden_bytes_of_version_1() -> None:
    assert journal.encode_header(SALT).hex() == GOLDEN_HEADER
    assert journal.encode_snapshot(SNAPSHOT).hex() == (
        "070000000000000001000000" "0100000001000000" "0200000000000000" "0300000000000000" "0400000000000000" "0500000000000000" "6b76"
    )  # fmt: skip
    assert journal.encode_changes(CHANGES).hex() == (
        "080000000000000002000000"
        "0100000002000000" "0900000000000000" "617879"
        "02000000ffffffff" "0000000000000000" "c3a4"
        "090000000000000001000000"
        "0100000000000000" "0000000000000000" "62"
    )  # fmt: skip
    assert (
        journal.encode_frame(SALT, 0, journal.encode_snapshot(SNAPSHOT))
        .hex()
        .startswith(GOLDEN_SNAPSHOT)
    )
    assert (
        journal.encode_frame(SALT, 1, journal.encode_changes(CHANGES))
        .hex()
        .startswith(GOLDEN_CHANGES)
    )


@pytest.mark.slow
@given(numbers, st.lists(items, max_size=5), st.lists(changes, max_size=5))
def test_payloads_survive_the_journey(
    revision: int, found: list[KeyValue], made: list[Change]
) -> None:
    snapshot = Snapshot(revision, tuple(found))
    assert journal.decode_snapshot(journal.encode_snapshot(snapshot)) == snapshot
    assert journal.decode_changes(journal.encode_changes(made)) == made


def test_a_whole_file_is_recovered() -> None:
    recovered = journal.recover(file_bytes(), "test")
    assert recovered.snapshot == SNAPSHOT
    assert list(recovered.changes) == CHANGES * 3
    assert recovered.frames == 4
    assert recovered.length == len(file_bytes())


def test_a_torn_tail_is_cut_at_every_byte() -> None:
    whole = file_bytes()
    ends = frame_ends()
    assert len(ends) == 4
    for length in range(ends[0], len(whole) + 1):
        for garbage in (b"", b"\0" * 100, b"\xf5MJ\x01" * 9):
            recovered = journal.recover(whole[:length] + garbage, "test")
            assert recovered.length == max(end for end in ends if end <= length)


def test_damage_before_the_last_frame_is_refused_at_every_byte() -> None:
    whole = file_bytes()
    last_frame = frame_ends()[-2]
    for position in range(last_frame):
        damaged = bytearray(whole)
        damaged[position] ^= 0x40
        with pytest.raises(CorruptData, match="test: damaged"):
            journal.recover(bytes(damaged), "test")


def test_a_shortened_snapshot_is_refused() -> None:
    for length in range(frame_ends()[0]):
        with pytest.raises(CorruptData):
            journal.recover(file_bytes()[:length], "test")


def test_a_later_version_is_refused_by_name() -> None:
    header = journal._HEADER.pack(journal.MAGIC, 2, SALT)
    with pytest.raises(CorruptData, match="version 2"):
        journal.recover(
            header + journal._CRC.pack(crc32c(header)) + file_bytes()[journal.HEADER_BYTES :],
            "test",
        )


def test_a_frame_inside_a_torn_value_is_not_mistaken_for_data() -> None:
    """A value may hold bytes of another journal: its salt differs."""
    foreign = journal.encode_frame(SALT + 1, 9, journal.encode_changes(CHANGES))
    payload = journal.encode_changes([Change(8, (Write("k", foreign),))])
    whole = journal.encode_header(SALT) + journal.encode_frame(
        SALT, 0, journal.encode_snapshot(SNAPSHOT)
    )
    torn = journal.encode_frame(SALT, 1, payload)[:-1]
    assert journal.recover(whole + torn, "test").length == len(whole)


def test_appending_after_a_cut_continues_the_file(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(file_bytes()[:-3])
    file, recovered = journal.JournalFile.open(path)
    assert len(recovered.changes) == 4
    file.append([Change(99, (Write("new", b"1"),))], threading.Event())
    file.close()
    assert journal.recover(path.read_bytes(), "test").changes[-1].revision == 99
    assert file.size == os.stat(path).st_size


@pytest.mark.parametrize("frames", [1, 4])
def test_what_was_read_is_made_durable_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frames: int
) -> None:
    """After a flush that failed the last frame is read from the cache but is not on disk, and no
    flush will bring it there unless it is written."""
    ends = frame_ends()
    path, begin, end = tmp_path / "j", ends[frames - 2] if frames > 1 else 0, ends[frames - 1]
    path.write_bytes(file_bytes()[:end] + b"torn")
    done: list[tuple[str, int, int]] = []
    write, fsync, synced = os.write, os.fsync, journal.sync_directory

    def writes(descriptor: int, data: memoryview) -> int:
        done.append(("write", os.lseek(descriptor, 0, os.SEEK_CUR), len(data)))
        return write(descriptor, data)

    def flushes(descriptor: int) -> None:
        done.append(("fsync", os.fstat(descriptor).st_size, 0))
        fsync(descriptor)

    def syncs(directory: Path) -> None:
        synced(directory)
        done.append(("directory", 0, 0))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", writes)
        patch.setattr(os, "fsync", flushes)
        patch.setattr(journal, "sync_directory", syncs)
        file, _ = journal.JournalFile.open(path)
    file.close()
    assert [step for step in done if step[0] != "fsync" or step[1] == end] == [
        ("write", begin, end - begin),
        ("fsync", end, 0),
        ("directory", 0, 0),
    ]
    assert path.read_bytes() == file_bytes()[:end]


def test_a_new_file_whose_name_may_not_last_is_an_error_that_nobody_goes_on_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No space for the directory's entry: the older file has no name any more, so it must not be
    taken for one that was not shortened."""
    file = journal.JournalFile.create(tmp_path / "j", SALT, SNAPSHOT)
    failed = threading.Event()
    errors: list[OSError] = []

    def fails(error: OSError) -> None:
        errors.append(error)
        failed.set()

    def no_space(directory: Path) -> None:
        raise OSError(errno.ENOSPC, f"no space in {directory}")

    monkeypatch.setattr(journal, "sync_directory", no_space)
    writer = journal.JournalWriter(file, lambda *_: None, lambda _: None, fails, lambda: None)
    writer.replace(SNAPSHOT)
    assert failed.wait(30)
    assert errors[0].errno == errno.EIO
    assert "could not be made durable" in str(errors[0])


def test_replacing_leaves_one_file_that_starts_with_the_snapshot(tmp_path: Path) -> None:
    file = journal.JournalFile.create(tmp_path / "j", SALT, SNAPSHOT)
    file.append(CHANGES, threading.Event())
    fresh = file.replace(Snapshot(9, ()))
    fresh.append([Change(10, (Write("a", b"1"),))], threading.Event())
    fresh.close()
    assert {entry.name for entry in tmp_path.iterdir()} == {"j", journal.RESERVE_NAME}
    recovered = journal.recover((tmp_path / "j").read_bytes(), "test")
    assert recovered.snapshot == Snapshot(9, ())
    assert [change.revision for change in recovered.changes] == [10]
    assert recovered.salt != SALT
