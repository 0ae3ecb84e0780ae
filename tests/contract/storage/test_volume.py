"""What every volume promises."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from magnetar.errors import Fenced, StorageError
from magnetar.names import PART_LENGTH_MAX, BundleName
from magnetar.storage import names
from magnetar.storage.volumes.volume import Recycling, Volume
from tests.contract.storage.volumes import CASES, Script, VolumeCase

pytestmark = pytest.mark.timeout(600)  # the first use of the S3 server installs what it runs on
HEADER = b"header"
CAPACITY = 64 * 1024
LOGS = "logs/a"
LOG = "logs/a/00000000.log"
NEXT = "logs/a/00000001.log"
CLAIM = "claims/a"


async def end(volume: Volume) -> None:
    """What a new owner does first."""
    await volume.remove(CLAIM)
    await volume.end_log(LOGS)


async def readable(volume: Volume, name: str = LOG) -> bytes:
    """What is in a log file, without the zeros that some volumes reserve behind it."""
    return (await volume.read(name)).rstrip(b"\0")


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> VolumeCase:
    found: VolumeCase = request.param
    return found


def play(case: VolumeCase, script: Script, directory: Path) -> None:
    case.run(script, directory)


def test_put_if_absent_creates_once_and_never_changes(case: VolumeCase, tmp_path: Path) -> None:
    async def script(volume: Volume) -> None:
        assert await volume.put_if_absent("a/b/c", b"first")
        assert not await volume.put_if_absent("a/b/c", b"second")
        assert await volume.read("a/b/c") == b"first"
        assert await volume.exists("a/b/c")
        assert not await volume.exists("a/b/d")

    play(case, script, tmp_path)


def test_of_concurrent_puts_exactly_one_wins(case: VolumeCase, tmp_path: Path) -> None:
    async def script(volume: Volume) -> None:
        values = [b"%d" % number * 100 for number in range(8)]
        won = await asyncio.gather(*(volume.put_if_absent("x/seal", value) for value in values))
        assert sum(won) == 1
        assert await volume.read("x/seal") == values[won.index(True)]

    play(case, script, tmp_path)


def test_reads_are_clipped_to_the_file(case: VolumeCase, tmp_path: Path) -> None:
    async def script(volume: Volume) -> None:
        await volume.put_if_absent("f", b"0123456789")
        assert await volume.read("f", 3) == b"3456789"
        assert await volume.read("f", 3, 4) == b"3456"
        assert await volume.read("f", 8, 100) == b"89"
        assert await volume.read("f", 10, 5) == b""
        assert await volume.read("f", 0, 0) == b""
        with pytest.raises(FileNotFoundError):
            await volume.read("missing", 0, 5)
        with pytest.raises(FileNotFoundError):
            await volume.read("missing")

    play(case, script, tmp_path)


def test_remove_says_whether_it_was_there(case: VolumeCase, tmp_path: Path) -> None:
    async def script(volume: Volume) -> None:
        await volume.put_if_absent("d/f", b"x")
        assert await volume.remove("d/f")
        assert not await volume.remove("d/f")
        assert not await volume.remove("no/such/directory")
        assert not await volume.exists("d/f")
        assert await volume.put_if_absent("d/f", b"y")

    play(case, script, tmp_path)


def test_list_is_recursive_sorted_and_by_directory(case: VolumeCase, tmp_path: Path) -> None:
    async def script(volume: Volume) -> None:
        for name in ("b/2", "b/1/x", "a", "bb/1"):
            await volume.put_if_absent(name, b"")
        assert await volume.list("b") == ["b/1/x", "b/2"]
        assert await volume.list("") == ["a", "b/1/x", "b/2", "bb/1"]
        assert await volume.list("none") == []

    play(case, script, tmp_path)


def test_a_log_is_created_once_zeroed_behind_its_header(case: VolumeCase, tmp_path: Path) -> None:
    async def script(volume: Volume) -> None:
        handle = await volume.create_log(LOG, CAPACITY, HEADER)
        assert (handle.name, handle.capacity) == (LOG, CAPACITY)
        assert len(await volume.read(LOG)) <= CAPACITY
        assert await readable(volume) == HEADER
        assert await volume.exists(LOG)
        assert await volume.list("logs") == [LOG]
        with pytest.raises(StorageError):
            await volume.create_log(LOG, CAPACITY, HEADER)
        await handle.close()

    play(case, script, tmp_path)


def test_appends_land_one_behind_another(case: VolumeCase, tmp_path: Path) -> None:
    async def script(volume: Volume) -> None:
        await volume.put_if_absent(CLAIM, b"")
        handle = await volume.create_log(LOG, CAPACITY, HEADER)
        many = [b"%05d" % number for number in range(2000)]
        await handle.append(6, [b"one", memoryview(b"two"), bytearray(b"three")], CLAIM)
        assert await volume.read(LOG, 6, 11) == b"onetwothree"
        await handle.append(17, many, CLAIM)
        assert not handle.full
        assert await volume.read(LOG, 17, 10_000) == b"".join(many)
        assert await volume.read(LOG, 12, 15) == b"three0000000001"
        assert (await volume.read(LOG, 9_000, 1_000_000)).rstrip(b"\0") == b"".join(many)[
            9_000 - 17 :
        ]
        await handle.close()
        assert await volume.read(LOG, 0, len(HEADER)) == HEADER

    play(case, script, tmp_path)


def test_after_the_end_of_its_log_an_append_is_fenced_permanently(
    case: VolumeCase, tmp_path: Path
) -> None:
    async def script(volume: Volume) -> None:
        await volume.put_if_absent(CLAIM, b"")
        handle = await volume.create_log(LOG, CAPACITY, HEADER)
        await handle.append(6, [b"ok"], CLAIM)
        await end(volume)
        before = await readable(volume)
        with pytest.raises(Fenced):
            await handle.append(8, [b"late"], CLAIM)
        await volume.put_if_absent(CLAIM, b"")
        with pytest.raises(StorageError):
            await handle.append(8, [b"later"], CLAIM)
        await handle.close()
        assert before == HEADER + b"ok"

    play(case, script, tmp_path)


def test_after_the_end_of_its_log_a_further_file_is_of_no_use(
    case: VolumeCase, tmp_path: Path
) -> None:
    """Either it cannot be created, or nothing can be appended to it; the end may be declared
    again and again."""

    async def script(volume: Volume) -> None:
        await volume.put_if_absent(CLAIM, b"")
        first = await volume.create_log(LOG, CAPACITY, HEADER)
        await asyncio.gather(end(volume), end(volume))
        await end(volume)
        with pytest.raises(Fenced):
            await (await volume.create_log(NEXT, CAPACITY, HEADER)).append(6, [b"late"], CLAIM)
        with pytest.raises(Fenced):
            await first.append(6, [b"late"], CLAIM)

    play(case, script, tmp_path)


def test_a_collected_log_stays_ended(case: VolumeCase, tmp_path: Path) -> None:
    """An owner that slept through takeover and clean-up acknowledges nothing; what was collected
    is not shown."""

    async def script(volume: Volume) -> None:
        await volume.put_if_absent(CLAIM, b"")
        handle = await volume.create_log(LOG, CAPACITY, HEADER)
        await handle.append(6, [b"one"], CLAIM)
        await handle.append(9, [b"two"], CLAIM)
        await end(volume)
        assert await volume.list("logs") == [LOG]
        assert await volume.remove(LOG)
        assert not await volume.exists(LOG)
        assert await volume.list("logs") == []
        with pytest.raises(FileNotFoundError):
            await volume.read(LOG, 0, 100)
        with pytest.raises(Fenced):
            await handle.append(12, [b"late"], CLAIM)
        with pytest.raises(Fenced):
            await (await volume.create_log(NEXT, CAPACITY, HEADER)).append(6, [b"late"], CLAIM)

    play(case, script, tmp_path)


def test_the_end_of_a_log_leaves_others_alone(case: VolumeCase, tmp_path: Path) -> None:
    async def script(volume: Volume) -> None:
        await volume.put_if_absent("claims/b", b"")
        other = await volume.create_log("logs/b/00000000.log", CAPACITY, HEADER)
        await end(volume)
        await other.append(6, [b"ok"], "claims/b")
        assert await readable(volume, "logs/b/00000000.log") == HEADER + b"ok"

    play(case, script, tmp_path)


def test_make_durable_leaves_the_bytes_as_they_are(case: VolumeCase, tmp_path: Path) -> None:
    async def script(volume: Volume) -> None:
        await volume.put_if_absent(CLAIM, b"")
        handle = await volume.create_log(LOG, CAPACITY, HEADER)
        await handle.append(6, [b"tail"], CLAIM)
        before = await volume.read(LOG)
        await volume.make_durable(LOG, 6, await volume.read(LOG, 6, 4))
        assert await volume.read(LOG) == before
        await handle.close()

    play(case, script, tmp_path)


def test_shrinking_gives_back_what_lies_behind_the_length(case: VolumeCase, tmp_path: Path) -> None:
    """What lies before it stays; a file that is gone is no error."""

    async def script(volume: Volume) -> None:
        await volume.put_if_absent(CLAIM, b"")
        handle = await volume.create_log(LOG, CAPACITY, HEADER)
        await handle.append(6, [b"kept"], CLAIM)
        await handle.close()
        await volume.shrink(LOG, 10)
        assert await volume.read(LOG) == HEADER + b"kept"
        await volume.shrink("logs/a/none", 0)

    play(case, script, tmp_path)


# --- recycling ------------------------------------------------------------------------------------

SPARE = "logs/a/00000000.spare"
RECYCLE = ("posix", "simulated")


@pytest.fixture(params=[case for case in CASES if case.name in RECYCLE], ids=lambda case: case.name)
def recycles(request: pytest.FixtureRequest) -> VolumeCase:
    found: VolumeCase = request.param
    return found


def recycling(volume: Volume) -> Recycling:
    assert isinstance(volume, Recycling)
    return volume


def test_who_recycles_log_files(case: VolumeCase, tmp_path: Path) -> None:
    """Those that reserve space for them; a faulty volume and slots go without."""

    async def script(volume: Volume) -> None:
        assert isinstance(volume, Recycling) == (case.name in RECYCLE)

    play(case, script, tmp_path)


def test_a_log_file_that_is_set_aside_has_its_new_name_only(
    recycles: VolumeCase, tmp_path: Path
) -> None:
    async def script(volume: Volume) -> None:
        await (await volume.create_log(LOG, CAPACITY, HEADER)).close()
        assert await recycling(volume).set_aside(LOG, SPARE, CAPACITY)
        assert await volume.list("logs") == [SPARE]
        with pytest.raises(FileNotFoundError):
            await volume.read(LOG)
        assert not await recycling(volume).set_aside(LOG, SPARE, CAPACITY)

    play(recycles, script, tmp_path)


def test_a_file_of_another_size_is_not_set_aside(recycles: VolumeCase, tmp_path: Path) -> None:
    async def script(volume: Volume) -> None:
        await (await volume.create_log(LOG, CAPACITY, HEADER)).close()
        await volume.shrink(LOG, CAPACITY // 4)
        assert not await recycling(volume).set_aside(LOG, SPARE, CAPACITY)
        assert await volume.list("logs") == [LOG]

    play(recycles, script, tmp_path)


def test_a_log_made_of_a_spare_one_is_a_log(recycles: VolumeCase, tmp_path: Path) -> None:
    """Its header is the new one, what was written is read back, what follows is what was there."""

    async def script(volume: Volume) -> None:
        await volume.put_if_absent(CLAIM, b"")
        handle = await volume.create_log(LOG, CAPACITY, HEADER)
        await handle.append(len(HEADER), [b"first life" * 100], CLAIM)
        await handle.close()
        await recycling(volume).set_aside(LOG, SPARE, CAPACITY)
        handle = await recycling(volume).create_log_from(SPARE, NEXT, len(HEADER) + 1000, b"HEADER")
        assert (handle.name, handle.capacity) == (NEXT, CAPACITY)
        assert await volume.list("logs") == [NEXT]
        await handle.append(len(HEADER), [b"second"], CLAIM)
        found = await volume.read(NEXT)
        assert found[: len(HEADER) + 6] == b"HEADERsecond"
        assert found[len(HEADER) + 10 : len(HEADER) + 1000] == b"first life" * 99
        assert found[len(HEADER) + 1000 :] == bytes(CAPACITY - len(HEADER) - 1000)
        await handle.close()

    play(recycles, script, tmp_path)


def test_a_name_that_is_taken_stays_what_it_is(recycles: VolumeCase, tmp_path: Path) -> None:
    async def script(volume: Volume) -> None:
        for name in (LOG, NEXT):
            await (await volume.create_log(name, CAPACITY, HEADER)).close()
        await recycling(volume).set_aside(LOG, SPARE, CAPACITY)
        with pytest.raises(StorageError):
            await recycling(volume).create_log_from(SPARE, NEXT, CAPACITY, b"HEADER")
        assert await volume.read(NEXT, 0, len(HEADER)) == HEADER
        with pytest.raises(FileNotFoundError):
            await recycling(volume).create_log_from(
                "logs/a/00000007.spare", "logs/a/00000008.log", CAPACITY, b"HEADER"
            )
        assert not await volume.exists("logs/a/00000008.log")

    play(recycles, script, tmp_path)


@pytest.mark.parametrize("part", ["a" * PART_LENGTH_MAX, "...a", "=", ":", "-", "A_b.C"])
def test_every_namespace_that_names_allow_has_a_place(
    case: VolumeCase, tmp_path: Path, part: str
) -> None:
    """What the table of names accepts, storage accepts: otherwise a bundle of it could neither
    be written nor freed."""
    bundle = BundleName.parse(f"{part}/{part}/0x00000000_0xffffffff")
    places = [
        names.manifest(bundle, 1, 2),
        names.checkpoint(bundle, 3, 4),
        names.segment(bundle, "l1-5"),
    ]

    async def script(volume: Volume) -> None:
        for place in places:
            assert await volume.put_if_absent(place, b"x")
        assert await volume.list(names.manifests_of(bundle)) == [places[0]]

    play(case, script, tmp_path)
