"""The log on a simulated disk: takeover at any step, of an owner that is paused, dead or alive, then a power loss.

The disk tears writes, fails flushes and keeps what a failed flush left readable (see the kernel's fault model), so a taker meets bytes that
were never flushed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial

import pytest

from magnetar.errors import StorageError
from magnetar.metadata.records import LogPosition
from magnetar.storage.fencing import SealedFile, fence
from magnetar.storage.log import LogWriter, RecordPlace
from magnetar.storage.volume import Buffer
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.volume import SimLogHandle, SimVolume
from tests.simulation.kernel.world import Environment, World
from tests.unit.storage.logs import INCARNATION, numbered, read_numbers

FILE_BYTES = 16 * 1024
IN_FLIGHT = 3
FAULTS = Faults(flush_error_probability=0.01, partial_write_probability=0.3, slow_flush_probability=0.02, slow_flush_s=(0.01, 0.5))
SEEDS = 60


async def own(acknowledged: dict[int, RecordPlace], environment: Environment) -> None:
    """Append one record after another until fenced."""
    over = asyncio.get_running_loop().create_future()
    writer = LogWriter(
        environment.volume,
        environment.clock,
        INCARNATION,
        file_bytes=FILE_BYTES,
        block_bytes_max=FILE_BYTES // 4,
        on_fenced=lambda _: over.set_result(None),
    )
    await writer.open()
    following = iter(range(1 << 30))

    def append() -> None:
        number = next(following)
        encoded = numbered(number, 8 + environment.clock.random_bits(10))

        def durable(place: RecordPlace) -> None:
            acknowledged[number] = place
            append()

        writer.append(encoded.buffers, encoded.size, 1, durable)

    for _ in range(IN_FLIGHT):
        append()
    await over
    await writer.close()


async def fence_patiently(volume: SimVolume) -> list[SealedFile]:
    """As a broker does: a failed attempt says nothing, so again."""
    while True:
        try:
            return await fence(volume, INCARNATION)
        except StorageError:
            await asyncio.sleep(0.01)


def lost_records(seed: int) -> tuple[set[int], int]:
    """One story: (what was acknowledged and cannot be read after it, number of records acknowledged)."""
    chance = random.Random(seed)
    acknowledged: dict[int, RecordPlace] = {}
    with World(seed, FAULTS) as world:
        world.node("owner", partial(own, acknowledged), tolerated=(StorageError,))
        world.run_until(lambda: bool(acknowledged) or not world.alive("owner"), within_s=60.0)
        world.run(chance.uniform(0.0, 0.5))
        fate = chance.choice(("paused", "dead", "alive"))
        if fate == "paused":
            world.pause("owner")
        elif fate == "dead":
            world.crash("owner")
        takers = [world.outsider(f"taker-{number}") for number in range(2)]
        sealed = [world.complete(fence_patiently(taker.volume), within_s=60.0) for taker in takers]
        assert sealed[0] == sealed[1][: len(sealed[0])]
        if fate == "paused":
            world.resume("owner")
        world.run(2.0)
        if chance.random() < 0.7:
            world.power_loss()
        if not sealed[0]:
            assert not acknowledged
            return set(), 0
        end = LogPosition(sealed[0][-1].number, sealed[0][-1].length)
        read = world.complete(read_numbers(world.outsider("reader").volume, end), within_s=60.0)
    return {number for number, place in acknowledged.items() if read.get(number) != place}, len(acknowledged)


def check_seeds(seeds: int = SEEDS) -> None:
    total = 0
    for seed in range(seeds):
        lost, count = lost_records(seed)
        assert not lost, f"seed {seed}: {sorted(lost)[:5]}"
        total += count
    assert total > seeds


@pytest.mark.slow
def test_what_was_acknowledged_is_read_after_any_takeover() -> None:
    """Whatever the owner's state, two takers agree, nothing acknowledged is missing, and what they sealed survives a power loss."""
    check_seeds()


@pytest.mark.slow
def test_a_taker_that_does_not_flush_what_it_seals_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken variant of sealing: some seed shows a sealed length above what survived the power loss."""

    async def nothing(_self: SimVolume, _name: str, _offset: int, _data: Buffer) -> None:
        return

    monkeypatch.setattr(SimVolume, "make_durable", nothing)
    with pytest.raises(StorageError, match="damaged"):
        check_seeds(seeds=4 * SEEDS)  # a flush that fails leaves less behind than it used to


@pytest.mark.slow
def test_an_owner_that_looks_for_its_claim_before_it_writes_loses_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken variant of the order: a claim found before the flush says nothing about what the taker reads."""
    look_for_claim, append = SimVolume.look_for_claim, SimVolume.append

    async def look_then_append(self: SimVolume, handle: SimLogHandle, offset: int, buffers: Sequence[Buffer], claim: str) -> None:
        await look_for_claim(self, claim)
        await append(self, handle, offset, buffers, claim)

    async def nothing(_self: SimVolume, _claim: str) -> None:
        return

    monkeypatch.setattr(SimVolume, "append", look_then_append)
    monkeypatch.setattr(SimVolume, "look_for_claim", nothing)
    with pytest.raises(AssertionError, match="seed"):
        check_seeds(seeds=20 * SEEDS)  # it must be stopped within a few system calls, so it takes more of them


@pytest.mark.slow
def test_an_owner_that_does_not_look_for_its_claim_loses_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken variant of acknowledging."""

    async def nothing(_self: SimVolume, _claim: str) -> None:
        return

    monkeypatch.setattr(SimVolume, "look_for_claim", nothing)
    with pytest.raises(AssertionError, match="seed"):
        check_seeds()
