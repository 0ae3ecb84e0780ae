"""Level-0 indexes: golden bytes, look-up against a model, damage noticed."""

from __future__ import annotations

import sys
from array import array
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import CorruptData
from magnetar.storage.log.format import EntriesRecord, decode_records
from magnetar.storage.log.framing import RECORD_HEADER_BYTES
from magnetar.storage.log.index import IndexBuilder, LevelZeroIndex, TopicExtent
from tests.support.logs import TOPIC, numbered

GOLDEN = (
    "4d41474e4944580001000b000200000000000100000000000200000002000000030000000000000062726f6b65722d302e35661200000001"
    "0000000100000000000000280000000000000070657273697374656e743a2f2f612f622f631d000000010000000200000000000000500000"
    "000000000070657273697374656e743a2f2f7075626c69632f64656661756c742f7401000000000000000900000000000000010000000000"
    "0000e9030000000000007b1000000000000001000000010000000000000003000000000000000700000000000000ef03000000000000ee13"
    "0000000000000200000028000000280000002800000001000000010000000100000009f12db8"
)


def golden_index() -> bytes:
    builder = IndexBuilder("broker-0.5f", 2)
    builder.add_head(numbered(7, count=2).buffers[0], 5000)
    builder.add_head(numbered(1, count=1, topic="persistent://a/b/c", ledger=9).buffers[0], 4144)
    return builder.encode(65536)


def test_golden_index() -> None:
    """Version 1 never changes."""
    assert golden_index().hex() == GOLDEN


def test_extents_and_epochs() -> None:
    index = LevelZeroIndex.decode(golden_index(), "i")
    assert index.topics() == ["persistent://a/b/c", TOPIC]
    assert index.extent(TOPIC) == TopicExtent(TOPIC, (1,), (3, 7), (3, 8), 2, 2, 80, 1007, 1007)


def test_an_entry_of_another_file_is_missed_without_decoding_a_run() -> None:
    """A reader of a long stretch asks every file of its term for each entry; only the one that
    has it is decoded, and kept."""
    index = LevelZeroIndex.decode(golden_index(), "i")
    for position in ((3, 6), (3, 9), (2, 7), (4, 0)):
        assert index.run_of(TOPIC, *position) is None
    assert index.run_of("persistent://a/b/missing", 3, 7) is None
    assert index.runs_held == 0
    assert index.run_of(TOPIC, 3, 8) is not None
    assert index.runs_held == 1


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(1, 3), st.integers(1, 5), st.integers(0, 3)),
        max_size=20,
    )
)
def test_find_agrees_with_a_model(runs: list[tuple[str, int, int, int]]) -> None:
    """Every entry that was added is found where it lies, with holes between runs, and no other."""
    from_heads, from_scan = IndexBuilder("i", 0), IndexBuilder("i", 0)
    where: dict[tuple[str, int, int], tuple[int, int]] = {}
    following: dict[tuple[str, int], int] = {}
    offset = 4096
    for topic, ledger, count, hole in runs:
        first = following.get((topic, ledger), 0) + hole
        following[topic, ledger] = first + count
        encoded = numbered(first, topic=topic, ledger=ledger, count=count)
        payload_offset = offset + RECORD_HEADER_BYTES
        from_heads.add_head(encoded.buffers[0], payload_offset)
        [(_, record)] = decode_records(memoryview(b"".join(encoded.buffers)))
        assert isinstance(record, EntriesRecord)
        from_scan.add(record, payload_offset)
        for number in range(count):
            where[topic, ledger, first + number] = (
                payload_offset + encoded.entries_offset + 40 * number,
                40,
            )
        offset += encoded.size
    data = from_heads.encode(offset)
    assert data == from_scan.encode(offset), "writer's memory and scan give the same index"
    index = LevelZeroIndex.decode(data, "i")
    for topic in "abc":
        for ledger in range(5):
            for entry in range(-1, 90):
                assert index.find(topic, ledger, entry) == where.get((topic, ledger, entry))
    assert sum(len(run.lengths) for topic in index.topics() for run in index.runs(topic)) == len(
        where
    )


def test_the_order_in_which_runs_come_says_nothing() -> None:
    """Equal contents, equal bytes: also where a scan or a file's writer comes to a later run
    first."""
    heads = [
        (numbered(number, count=2, ledger=ledger).buffers[0], 5000 + 100 * number)
        for ledger in (3, 5)
        for number in (1, 7, 40)
    ]
    built = []
    for order in (heads, heads[::-1], heads[3:] + heads[:3]):
        builder = IndexBuilder("i", 0)
        for head, place in order:
            builder.add_head(head, place)
        built.append(builder.encode(65536))
    assert built == built[:1] * 3
    runs = LevelZeroIndex.decode(built[0], "i").runs(TOPIC)
    assert [(run.ledger, run.first_entry) for run in runs] == [
        (ledger, number) for ledger in (3, 5) for number in (1, 7, 40)
    ]


def test_putting_an_index_together_takes_no_step_per_run() -> None:
    """A file of tiny runs has hundreds of thousands, and the loop stands still concurrently: each
    was laid out when it came."""

    def steps(runs: int) -> int:
        builder, count = IndexBuilder("i", 0), 0
        for number in range(runs):
            builder.add_head(numbered(number, count=1).buffers[0], 4096 + 100 * number)

        def profile(_frame: FrameType, event: str, _argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(profile)
        try:
            data = builder.encode(1 << 20)
        finally:
            sys.setprofile(None)
        assert len(LevelZeroIndex.decode(data, "i").runs(TOPIC)) == runs
        return count

    assert steps(1000) == steps(10)


def test_every_damaged_byte_is_found() -> None:
    data = golden_index()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(CorruptData):
            LevelZeroIndex.decode(bytes(damaged), "i")
        with pytest.raises(CorruptData):
            LevelZeroIndex.decode(data[:at], "i")


def test_lengths_are_shared_arrays() -> None:
    run = LevelZeroIndex.decode(golden_index(), "i").runs(TOPIC)[0]
    assert (run.lengths, run.message_counts, run.last_entry) == (
        array("I", [40, 40]),
        array("I", [1, 1]),
        8,
    )
