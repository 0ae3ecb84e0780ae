"""Rolling the log on purpose: shared rolls, small files, what a returned position promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from magnetar.broker.bundles.log_rolling import AFTER_RELEASE_S, SMALL_FILE_BYTES_MAX, LogRoller
from magnetar.broker.incarnation import Broker
from magnetar.errors import ServiceNotReady, StorageError
from magnetar.metadata.records import BundleRecord, BundleState, LogPosition, LogRange
from magnetar.storage import names
from magnetar.storage.log.blocks import FILE_HEADER_BYTES
from magnetar.storage.log.seals import read_seal
from magnetar.wire import requests
from tests.support.brokers import Peer, Type, entry, open_peer, running_broker


class World:
    """A broker with one producer, and a roller of our own on its log."""

    def __init__(self, broker: Broker, peer: Peer) -> None:
        self.broker, self.peer = broker, peer
        self.log = broker.context.log
        self.roller = LogRoller(broker.context)
        self.sealed: list[int] = []
        self.log.on_sealed = self._on_sealed

    def _on_sealed(self, number: int, length: int, _topics: dict[str, list[int]]) -> None:
        self.sealed.append(number)
        self.roller.file_sealed(number, length)

    async def fill(self, size: int) -> None:
        """Publish one message of about `size` bytes."""
        self.peer.write(requests.send(1, 0, entry(bytes(size))))
        await self.peer.answer(Type.SEND_RECEIPT)

    async def wishes_while_sealing(
        self,
    ) -> tuple[asyncio.Task[LogPosition], asyncio.Task[LogPosition], list[tuple[int, int]]]:
        """A roll that has left its file, a wish for what was written since, and the seals that
        were not reported to the roller yet."""
        await self.fill(100)
        held = list[tuple[int, int]]()
        self.log.on_sealed = lambda number, length, _topics: held.append((number, length))
        first = asyncio.create_task(self.roller.roll("first", always=True))
        while self.log.position.file == 0 or not held:
            await asyncio.sleep(0)
        await self.fill(100)
        return first, asyncio.create_task(self.roller.roll("second", always=True)), held

    async def is_complete(self, position: LogPosition) -> bool:
        """Whether every file before `position` is sealed and has its index."""
        volume, incarnation = self.broker.context.volume, self.broker.incarnation
        for number in range(position.file):
            if await read_seal(volume, incarnation, number) is None or not await volume.exists(
                names.index(incarnation, number)
            ):
                return False
        return True


@asynccontextmanager
async def world(directory: Path) -> AsyncIterator[World]:
    async with running_broker(directory) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce()
        yield World(broker, peer)


async def test_wishes_at_the_same_time_share_one_roll(tmp_path: Path) -> None:
    """Many bundles that want a checkpoint at once cost one file; everything before the position
    is sealed and indexed."""

    async with world(tmp_path) as found:
        await found.fill(2 * SMALL_FILE_BYTES_MAX)
        positions = set(await asyncio.gather(*(found.roller.roll("test") for _ in range(10))))
        assert positions == {LogPosition(1, FILE_HEADER_BYTES)}
        assert found.sealed == [0]
        assert await found.is_complete(LogPosition(1, 0))


async def test_a_roll_that_has_left_its_file_takes_nothing_later_in(tmp_path: Path) -> None:
    """What is written while the file before is being sealed has a roll of its own. Naive: every
    wish shares the roll under way, and the position promises what is in no sealed file."""

    async with world(tmp_path) as found:
        first, second, held = await found.wishes_while_sealing()
        found.log.on_sealed = found._on_sealed
        await asyncio.sleep(0)
        for sealed in held:
            found.roller.file_sealed(*sealed)
        assert await first == LogPosition(1, FILE_HEADER_BYTES)
        position = await second
        assert position == LogPosition(2, FILE_HEADER_BYTES)
        assert await found.is_complete(position)


async def test_a_file_that_the_log_leaves_by_itself_needs_no_roll(tmp_path: Path) -> None:
    """It was full while a wish waited for the roll before. Naive: a roll begins in the next file,
    which is empty and is not left, and waits for a seal that never comes."""

    async with world(tmp_path) as found:
        first, second, held = await found.wishes_while_sealing()
        await asyncio.sleep(0)
        await found.log.roll("full")
        while len(held) < 2:
            await asyncio.sleep(0.001)
        for sealed in held:
            found.roller.file_sealed(*sealed)
        assert await first == LogPosition(1, FILE_HEADER_BYTES)
        assert await asyncio.wait_for(second, 120) == LogPosition(2, FILE_HEADER_BYTES)


async def test_a_small_file_is_left_alone_unless_it_must_not_be(tmp_path: Path) -> None:
    """Without `always` its start is the answer; with it a file that holds anything is rolled, an
    empty one is not."""

    async with world(tmp_path) as found:
        await found.fill(100)
        assert await found.roller.roll("test") == LogPosition(0, FILE_HEADER_BYTES)
        assert found.sealed == []
        assert await found.roller.roll("test", always=True) == LogPosition(1, FILE_HEADER_BYTES)
        assert await found.roller.roll("test", always=True) == LogPosition(1, FILE_HEADER_BYTES)
        assert found.sealed == [0]


async def test_one_caller_who_gives_up_does_not_take_the_roll_from_the_others(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as found:
        await found.fill(2 * SMALL_FILE_BYTES_MAX)
        first, second = (asyncio.create_task(found.roller.roll("test")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == LogPosition(1, FILE_HEADER_BYTES)
        assert first.cancelled()


async def test_no_roll_begins_in_a_broker_that_stops(tmp_path: Path) -> None:
    """The log is closed next: a roll that is under way is an answer for its caller, and no later
    one reaches the log."""

    async with world(tmp_path) as found:
        await found.fill(2 * SMALL_FILE_BYTES_MAX)
        waiting = asyncio.create_task(found.roller.roll("test"))
        await asyncio.sleep(0)
        found.roller.stop()
        with pytest.raises(ServiceNotReady):
            await waiting
        await found.log.close()
        with pytest.raises(ServiceNotReady):
            await found.roller.roll("test", always=True)


@pytest.mark.slow
async def test_bundles_that_leave_one_after_another_cause_one_roll(tmp_path: Path) -> None:
    """A drain of many bundles leaves one sealed file, some time after the first."""

    async with world(tmp_path) as found:
        await found.fill(100)
        for _ in range(5):
            found.roller.roll_soon()
        await asyncio.sleep(2 * AFTER_RELEASE_S)
        await found.roller.roll("wait", always=True)
        assert found.sealed == [0]


@pytest.mark.slow
async def test_a_fenced_log_ends_the_wait(tmp_path: Path) -> None:
    """Nobody waits for a seal that will never come."""

    async with world(tmp_path) as found:
        await found.fill(2 * SMALL_FILE_BYTES_MAX)
        found.log.on_sealed = None
        await found.broker.context.volume.remove(names.claim(found.broker.incarnation))
        with pytest.raises(StorageError):
            await asyncio.wait_for(found.roller.roll("test"), 120)
        assert not found.broker.ready


async def test_the_length_of_a_chain_counts_all_its_ranges(tmp_path: Path) -> None:
    """Closed ranges within a file and over files, and the open one up to the log's end."""

    async with world(tmp_path) as found:
        size, end = found.broker.context.settings.log_file_bytes, found.log.position
        closed = LogRange("other.1", LogPosition(3, 5000), LogPosition(5, 6000))
        opened = LogRange(found.broker.incarnation, LogPosition(0, FILE_HEADER_BYTES), None)
        record = BundleRecord(BundleState.OWNED, 7, chain=(closed, opened), epochs=(5, 7))
        assert found.roller.chain_bytes(record) == 2 * size + 1000 + end.offset - FILE_HEADER_BYTES
        assert found.roller.chain_bytes(BundleRecord(BundleState.FREE, 0)) == 0
        await found.roller.roll("test", always=True)
        before, end = end.offset, found.log.position
        own = BundleRecord(BundleState.OWNED, 7, chain=(opened,), epochs=(7,))
        assert found.roller.chain_bytes(own) == before + end.offset - FILE_HEADER_BYTES, (
            "a file that was rolled early is short"
        )
