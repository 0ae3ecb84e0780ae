"""Entries that are opened together come out as those that are parsed one by one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from magnetar.errors import CorruptData
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.entries import encode_entry
from magnetar_jobs.bounds import Bounds
from magnetar_jobs.rows import Rows
from magnetar_jobs.unfolding import MESSAGE_COLUMNS, Chunks, Selection, Unfolding
from magnetar_jobs.uniform import Opener, Shape, Unlike

TOPIC = "persistent://a/b/c"
Change = Callable[[api.MessageMetadata, random.Random], None]


def rows_of(entries: list[bytes], first: int = 0) -> Rows:
    count = len(entries)
    numbers = np.arange(first, first + count, dtype=np.int64)
    none, false = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    return Rows(
        object="logs/b/0",
        start=0,
        ledgers=np.full(count, 3, np.int64),
        entries=numbers,
        publish_times=none,
        event_times=none,
        append_times=numbers + 1_700_000_000_000,
        message_counts=none + 1,
        flags=none,
        offsets=np.cumsum([0, *map(len, entries)]).astype(np.int32),
        payload=memoryview(b"".join(entries)),
        keys=pa.nulls(count, pa.binary()),
        plain=false,
        empty=false,
    )


def metadata(number: int, chance: random.Random) -> api.MessageMetadata:
    return api.MessageMetadata(
        producer_name=chance.choice(["standalone-1f-1", "p"]),
        sequence_id=number,
        publish_time=chance.choice([0, 1, 1_700_000_000_000 + number, (1 << 62) + number]),
    )


def keyed(found: api.MessageMetadata, chance: random.Random) -> None:
    found.partition_key = chance.choice(["", "k", f"key-{chance.randrange(1000)}"])


def timed(found: api.MessageMetadata, chance: random.Random) -> None:
    found.event_time = chance.choice([0, 5, 1_700_000_000_000])


def described(found: api.MessageMetadata, chance: random.Random) -> None:
    for _ in range(chance.randrange(3)):
        found.properties.add(
            key=chance.choice(["a", "colour"]), value=chance.choice(["", "é", "x"])
        )


def as_java_sends(found: api.MessageMetadata, chance: random.Random) -> None:
    found.uncompressed_size = chance.randrange(1000)
    found.compression = api.NONE
    found.schema_version = b"\0\0\0\1"
    found.partition_key_b64_encoded = False
    found.ordering_key = b"o"


def transactional(found: api.MessageMetadata, chance: random.Random) -> None:
    found.txnid_most_bits, found.txnid_least_bits = 1, chance.randrange(300)


ALIKE: list[Change] = [keyed, timed, described, as_java_sends, transactional]


def base64_key(found: api.MessageMetadata, _: random.Random) -> None:
    found.partition_key, found.partition_key_b64_encoded = "a2V5", True


def null_value(found: api.MessageMetadata, _: random.Random) -> None:
    found.null_value = True


def null_key(found: api.MessageMetadata, _: random.Random) -> None:
    found.partition_key, found.null_partition_key = "", True


def marker(found: api.MessageMetadata, _: random.Random) -> None:
    found.marker_type = 21


def latest_sequence(found: api.MessageMetadata, _: random.Random) -> None:
    found.sequence_id = (1 << 63) - 1


UNLIKE: list[Change] = [base64_key, null_value, null_key, marker]


def entries_of(seed: int, count: int, changes: list[Change], odd: Change | None) -> list[bytes]:
    """Random entries, every third or so with each of the changes; one is `odd`."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        one = metadata(number * chance.choice([1, 1, 1 << 20]), chance)
        for change in changes:
            if chance.random() < 0.3:
                change(one, chance)
        if odd is not None and number == count // 2:
            odd(one, chance)
        found.append(encode_entry(one, chance.randbytes(chance.randrange(20))))
    return found


def unfolded(
    stretches: list[Rows], selection: Selection | None = None, columns: Any = MESSAGE_COLUMNS
) -> list[dict[str, Any]]:
    unfolding = Unfolding(TOPIC, 2, tuple(columns), selection or Selection(), Chunks())
    return [row for batch in unfolding.batches(iter(stretches)) for row in plain(batch)]


def plain(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows with times as numbers: a peer may send one that no date has."""
    arrays = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for column in batch.columns
    ]
    found: list[dict[str, Any]] = pa.RecordBatch.from_arrays(
        arrays, names=batch.schema.names
    ).to_pylist()
    return found


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Compare: how many stretches were opened at once."""
    opened, together = Opener.opened, 0

    def counted(opener: Opener, *arguments: Any) -> Any:
        nonlocal together
        found = opened(opener, *arguments)
        together += 1
        return found

    def never(*_: Any) -> Any:
        raise Unlike

    def compare(stretches: list[Rows], *more: Any) -> int:
        nonlocal together
        together = 0
        monkeypatch.setattr(Opener, "opened", counted)
        found = unfolded(stretches, *more)
        monkeypatch.setattr(Opener, "opened", never)
        assert found == unfolded(stretches, *more)
        return together

    return compare


@pytest.mark.parametrize(
    "change", [None, *ALIKE, latest_sequence], ids=lambda found: str(found and found.__name__)
)
def test_entries_of_one_kind_are_opened_together(
    both: Callable[..., int], change: Change | None
) -> None:
    stretches = [
        rows_of(entries_of(seed, 40, [change] if change else [], None), 40 * seed)
        for seed in range(3)
    ]
    assert both(stretches) == 3


@pytest.mark.parametrize("odd", UNLIKE, ids=lambda found: found.__name__)
def test_an_entry_that_is_another_thing_is_parsed_with_its_stretch(
    both: Callable[..., int], odd: Change
) -> None:
    """Those of the stretches beside it are opened together."""
    stretches = [rows_of(entries_of(1, 20, [keyed], None)), rows_of(entries_of(2, 20, [], odd), 20)]
    assert both(stretches) == 1


@pytest.mark.parametrize("seed", range(30))
def test_any_mixture_comes_out_as_parsed(both: Callable[..., int], seed: int) -> None:
    chance = random.Random(seed)
    changes = [change for change in [*ALIKE, *UNLIKE] if chance.random() < 0.4]
    stretches, first = [], 0
    for number in range(4):
        entries = entries_of(100 * seed + number, chance.randrange(1, 60), changes, None)
        stretches.append(rows_of(entries, first))
        first += len(entries)
    low = chance.choice([None, 1, 1_700_000_000_010])
    bounds = Bounds()
    for column in ("publish_time", "event_time"):
        if chance.random() < 0.5:
            bounds = bounds.narrowed(column, chance.choice([-1, 1, 6]), 1_700_000_000_020)
    selection = Selection(bounds, (low, chance.choice([None, 1_700_000_000_030])))
    columns = chance.sample(sorted(MESSAGE_COLUMNS), chance.randrange(1, len(MESSAGE_COLUMNS)))
    both(stretches, selection, columns)
    both(stretches)


def test_a_batch_and_a_chunk_are_left_to_the_parser() -> None:
    for fields in (
        {"num_messages_in_batch": 1},
        {"num_chunks_from_msg": 2, "chunk_id": 0, "uuid": "u"},
        {"compression": api.LZ4},
        {"encryption_algo": "x"},
        {"compacted_batch_indexes": [1]},
    ):
        found = api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **fields)
        with pytest.raises(Unlike):
            Shape.of(found.SerializeToString())


def test_damaged_metadata_are_left_to_the_parser_at_every_byte() -> None:
    """Cut off, or with any byte changed: whatever is opened at once has the fields that the parser
    finds."""
    found = api.MessageMetadata(
        producer_name="p", sequence_id=300, publish_time=1_700_000_000_000, partition_key="key"
    )
    found.properties.add(key="a", value="b")
    whole = found.SerializeToString()
    for length in range(len(whole)):
        if _parses(whole[:length]) is None:
            with pytest.raises(Unlike):
                Shape.of(whole[:length])
    opener = Opener(properties=True)
    for at in range(len(whole)):
        for bit in range(8):
            changed = bytearray(whole)
            changed[at] ^= 1 << bit
            parsed = _parses(bytes(changed))
            entry = b"\x0e\x01" + bytes(4) + len(changed).to_bytes(4, "big") + bytes(changed)
            try:
                one = opener.opened(rows_of([entry, entry]), 0, 2)
            except Unlike:
                continue
            assert parsed is not None
            assert one.sequences.tolist() == [parsed.sequence_id] * 2
            assert one.publish_times.tolist() == [parsed.publish_time] * 2
            assert one.producers.to_pylist() == [parsed.producer_name] * 2


def _parses(data: bytes) -> api.MessageMetadata | None:
    try:
        return api.MessageMetadata.FromString(data)
    except Exception:
        return None


def test_an_entry_that_cannot_be_opened_is_named_as_before() -> None:
    entries = [*entries_of(1, 5, [], None), b"\x0e\x01short"]
    with pytest.raises(CorruptData, match="entry 3:5 cannot be opened"):
        unfolded([rows_of(entries)])
