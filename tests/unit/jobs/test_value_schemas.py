"""Values of a topic as its schema says: the version of a query, and payloads that do not fit."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest

from magnetar.errors import CorruptData, InvalidRequest
from magnetar.schemas.history import History, Registered
from magnetar.schemas.types import Schema, SchemaType
from magnetar_jobs.value_schemas import SCHEMA_VERSION, SLICE_BYTES, TopicValues, ValueDecoder
from tests.support.avro_records import schema, written

TOPIC = "persistent://public/default/readings"
FIRST = schema({"name": "n", "type": "int"})
SECOND = schema({"name": "n", "type": "int"}, {"name": "s", "type": "string", "default": "-"})
UNION = schema({"name": "n", "type": ["int", "string"]})


def history(*schemas: Schema | None) -> History:
    return History(
        [
            Registered(number, found or Schema(SchemaType.NONE), 0, deleted=found is None)
            for number, found in enumerate(schemas)
        ]
    )


def batch_of(*rows: tuple[bytes | None, int | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.nulls(len(rows), pa.binary()),
            "value": pa.array([value for value, _ in rows], pa.binary()),
            SCHEMA_VERSION: pa.array([version for _, version in rows], pa.int64()),
            "ledger": pa.array([17] * len(rows), pa.int64()),
            "entry": pa.array(range(len(rows)), pa.int64()),
        }
    )


def test_a_query_keeps_the_type_that_it_began_with() -> None:
    """The latest version of that type, also when others came later or the schema was deleted and
    made again."""
    found = history(FIRST, SECOND, UNION)
    wanted = TopicValues.of(TOPIC, history(FIRST, SECOND)).column.name
    assert wanted == "struct<n:int,s:string>"
    assert TopicValues.of(TOPIC, found, wanted).wanted == 1
    assert TopicValues.of(TOPIC, found, "struct<n:int>").wanted == 0
    again = TopicValues.of(TOPIC, history(FIRST, None, FIRST))
    assert (again.wanted, set(again.versions)) == (2, {0, 2})
    with pytest.raises(InvalidRequest, match="no schema whose values are struct<n:bigint>"):
        TopicValues.of(TOPIC, found, "struct<n:bigint>")


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ((), "has no schema; read with option value=bytes"),
        ((FIRST, None), "has no schema"),
        ((FIRST, UNION), "are no column: value.n is a union of several types"),
    ],
)
def test_a_topic_without_columns_says_why(versions: tuple[Schema | None, ...], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        TopicValues.of(TOPIC, history(*versions))


def test_each_payload_is_read_with_its_own_version() -> None:
    """One without a version with that of the query; a null value stays null, in any slice."""
    decoder = ValueDecoder(TopicValues.of(TOPIC, history(FIRST, SECOND)), skip=False)
    long = "x" * (SLICE_BYTES // 2)
    rows = [
        (written({"n": 1}, FIRST), 0),
        (written({"n": 2, "s": long}, SECOND), 1),
        (written({"n": 3, "s": long}, SECOND), None),
        (None, 1),
        (written({"n": 4}, FIRST), 0),
    ]
    assert decoder.decoded(batch_of(*rows))["value"].to_pylist() == [
        {"n": 1, "s": "-"},
        {"n": 2, "s": long},
        {"n": 3, "s": long},
        None,
        {"n": 4, "s": "-"},
    ]
    assert decoder.decoded(batch_of()).num_rows == 0


NUMBERS = schema({"name": "n", "type": "int"}, kind=SchemaType.JSON)
BAD = [
    (b"", 0),
    (b"[1]", 0),
    (b'{"n": "a"}', 0),
    (b'{"n": 1e3}', 0),
    (b'{"n": true}', 0),
    (b'{"n": 99999999999}', 0),
    (b"[" * 100_000, 0),
    (b'{"n": 1}', 7),
]


@pytest.mark.parametrize("bad", BAD, ids=[str(row[0][:20]) for row in BAD])
def test_a_value_that_does_not_fit_fails_the_query_or_is_left_out(bad: tuple[bytes, int]) -> None:
    """It is named by its entry, and not quoted."""
    values = TopicValues.of(TOPIC, history(NUMBERS))
    batch = batch_of((b'{"n": 1}', 0), bad, (b'{"n": 2}', 0))
    with pytest.raises(CorruptData, match=r"value of entry 17:1 cannot be read") as caught:
        ValueDecoder(values, skip=False).decoded(batch)
    assert not bad[0] or bad[0][:30].decode() not in str(caught.value)
    found = ValueDecoder(values, skip=True).decoded(batch)
    assert found["value"].to_pylist() == [{"n": 1}, {"n": 2}]
    assert found["entry"].to_pylist() == [0, 2]


def test_no_avro_payload_harms_others() -> None:
    """Random bytes, and messages that are cut off or have bytes left over."""
    kind = schema(
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "raw", "type": "bytes"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4}},
    )
    chance = random.Random(5)
    good = written({"tags": ["a"], "counts": {"b": 1}, "raw": b"c", "at": 5, "d": b"\x01"}, kind)
    rows: list[tuple[bytes | None, int | None]] = [(good[:-1], 0), (good + b"\x00", 0), (good, 0)]
    for _ in range(3000):
        damaged = bytearray(good * chance.randrange(1, 3))
        for _ in range(chance.randrange(1, 6)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        rows.append((bytes(damaged), 0))
    rows.append((good, 0))
    found = ValueDecoder(TopicValues.of(TOPIC, history(kind)), skip=True).decoded(batch_of(*rows))
    entries = found["entry"].to_pylist()
    assert {2, len(rows) - 1} <= set(entries)
    assert not {0, 1} & set(entries)


def test_definitions_of_another_kind_are_not_mixed() -> None:
    """A topic whose schema was deleted and made again as JSON still has Avro messages."""
    values = TopicValues.of(TOPIC, history(FIRST, None, NUMBERS))
    rows = batch_of((written({"n": 1}, FIRST), 0), (json.dumps({"n": 2}).encode(), 2))
    with pytest.raises(CorruptData, match="it was written as AVRO"):
        ValueDecoder(values, skip=False).decoded(rows)
