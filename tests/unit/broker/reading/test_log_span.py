"""Runs that lie near one another are read together, and nothing else changes."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.reading.entry_index import Run
from magnetar.broker.reading.log_span import GAP_BYTES_MAX, LogSpan, bytes_ahead
from magnetar.storage.volumes.volume import Volume


class CountedVolume:
    """A volume of one file that counts its reads."""

    def __init__(self, data: bytes) -> None:
        self.data, self.reads, self.longest = data, 0, 0

    async def read(self, _name: str, offset: int, size: int) -> bytes:
        self.reads += 1
        self.longest = max(self.longest, size)
        return self.data[offset : offset + size]


def as_volume(volume: CountedVolume) -> Volume:
    return volume  # type: ignore[return-value]  # only `read` is used


def runs_of(gaps: list[int], sizes: list[int]) -> list[Run]:
    """One entry each, `gaps` bytes of others before each."""
    runs, offset = [], 0
    for number, (gap, size) in enumerate(zip(gaps, sizes, strict=True)):
        runs.append(Run(number, "broker-0.1", 0, offset + gap, [size], [1]))
        offset += gap + size
    return runs


async def read_all(volume: CountedVolume, runs: list[Run], bytes_max: int) -> list[bytes]:
    span, found = LogSpan(as_volume(volume)), []
    for at, run in enumerate(runs):
        ahead = partial(bytes_ahead, runs, at, len(runs) - at - 1, bytes_max)
        found.append(bytes(await span.bytes_of(run, 0, run.bytes, ahead)))
    return found


@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(1, 300)), min_size=1, max_size=30),
    st.integers(0, 2000),
)
def test_what_is_read_together_is_what_each_run_holds(
    layout: list[tuple[int, int]], bytes_max: int
) -> None:
    """Whatever the gaps are; and no read exceeds what one run needs and the limit."""
    runs = runs_of([gap for gap, _ in layout], [size for _, size in layout])
    data = bytes(number % 251 for number in range(runs[-1].offset + runs[-1].bytes))
    volume = CountedVolume(data)
    found = asyncio.run(read_all(volume, runs, bytes_max))
    assert found == [data[run.offset : run.offset + run.bytes] for run in runs]
    assert volume.longest <= 300 + bytes_max


@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(1, 300)), min_size=1, max_size=30),
    st.randoms(),
    st.integers(0, 2000),
)
def test_runs_lie_in_any_order(
    layout: list[tuple[int, int]], random: Random, bytes_max: int
) -> None:
    """What transactions have published lies before what was published before their commit."""
    runs = runs_of([gap for gap, _ in layout], [size for _, size in layout])
    data = bytes(number % 251 for number in range(runs[-1].offset + runs[-1].bytes))
    random.shuffle(runs)
    found = asyncio.run(read_all(CountedVolume(data), runs, bytes_max))
    assert found == [data[run.offset : run.offset + run.bytes] for run in runs]


async def test_a_thousand_small_runs_take_one_read() -> None:
    runs = runs_of([150] * 1000, [100] * 1000)
    volume = CountedVolume(bytes(250_000))
    await read_all(volume, runs, 1 << 20)
    assert volume.reads == 1


def test_runs_far_apart_or_in_memory_are_not_read_along() -> None:
    far = runs_of([0, GAP_BYTES_MAX + 1], [10, 10])
    assert bytes_ahead(far, 0, 1, 1 << 20) == 0
    near = runs_of([0, 5, 5], [10, 10, 10])
    assert bytes_ahead(near, 0, 2, 1 << 20) == 30
    assert bytes_ahead(near, 0, 1, 1 << 20) == 15
    near[1].payload = bytes(10)
    assert bytes_ahead(near, 0, 2, 1 << 20) == 0


def test_a_file_that_ends_inside_an_entry_shows_there_and_nowhere_else() -> None:
    runs = runs_of([0, 5], [10, 10])
    assert asyncio.run(read_all(CountedVolume(bytes(20)), runs, 100)) == [bytes(10), bytes(5)]
    assert asyncio.run(read_all(CountedVolume(bytes(12)), runs[:1], 100)) == [bytes(10)]
