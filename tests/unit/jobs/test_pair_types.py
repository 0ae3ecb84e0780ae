"""KeyValue schemas as column types: both encodings, versions of both parts, and what is no pair."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from magnetar.errors import CorruptData
from magnetar.schemas import key_values
from magnetar.schemas.history import History, Registered
from magnetar.schemas.types import Schema, SchemaType
from magnetar_jobs.pair_types import split, type_of
from magnetar_jobs.value_schemas import SCHEMA_VERSION, TopicValues, ValueDecoder
from magnetar_jobs.value_types import NotAColumn
from tests.support.avro_records import schema, written

ORDER = schema({"name": "id", "type": "long"}, name="Order")
LATER_ORDER = schema(
    {"name": "id", "type": "long"},
    {"name": "note", "type": "string", "default": "-"},
    name="Order",
)
TEXT = Schema(SchemaType.STRING)
NULL = b"\xff\xff\xff\xff"


def pair(key: Schema, value: Schema, encoding: str = "") -> Schema:
    """As Java's client registers it."""
    properties = {"key.schema.type": key.type.name, "value.schema.type": value.type.name}
    if encoding:
        properties["kv.encoding.type"] = encoding
    return Schema(SchemaType.KEY_VALUE, key_values.joined(key.data, value.data), properties)


def inline(*parts: bytes | None) -> bytes:
    return b"".join(NULL if part is None else len(part).to_bytes(4, "big") + part for part in parts)


def decoded(
    versions: list[Schema], *rows: tuple[bytes | None, bytes | None, int | None], skip: bool = False
) -> list[Any]:
    """Values of messages with a key, a payload and a version."""
    history = History([Registered(number, found, 0) for number, found in enumerate(versions)])
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([key for key, _, _ in rows], pa.binary()),
            "value": pa.array([payload for _, payload, _ in rows], pa.binary()),
            SCHEMA_VERSION: pa.array([version for _, _, version in rows], pa.int64()),
            "ledger": pa.array([17] * len(rows), pa.int64()),
            "entry": pa.array(range(len(rows)), pa.int64()),
        }
    )
    decoder = ValueDecoder(TopicValues.of("t", history), skip=skip)
    return list(decoder.decoded(batch)["value"].to_pylist())


def test_a_pair_is_a_column_of_its_parts() -> None:
    assert type_of(pair(TEXT, ORDER)).column.name == "struct<key:string,value:struct<id:bigint>>"
    plain = Schema(SchemaType.NONE)
    assert type_of(pair(plain, plain)).column.name == "struct<key:binary,value:binary>"


def test_inline_pairs_have_both_parts_in_the_payload() -> None:
    """Either part may be null, and the whole value."""
    row = written({"id": 7}, ORDER)
    assert decoded(
        [pair(TEXT, ORDER, "INLINE")],
        (b"routing", inline(b"a", row), 0),
        (None, inline(None, row), 0),
        (None, inline(b"b", None), None),
        (b"gone", None, 0),
    ) == [
        {"key": "a", "value": {"id": 7}},
        {"key": None, "value": {"id": 7}},
        {"key": "b", "value": None},
        None,
    ]


def test_separated_pairs_have_their_key_in_the_messages_key() -> None:
    """A null value keeps its key: it is how changes are captured that delete a row."""
    row = written({"id": 7}, ORDER)
    assert decoded(
        [pair(ORDER, ORDER, "SEPARATED")], (row, row, 0), (row, None, 0), (None, row, 0)
    ) == [
        {"key": {"id": 7}, "value": {"id": 7}},
        {"key": {"id": 7}, "value": None},
        {"key": None, "value": {"id": 7}},
    ]


def test_each_part_is_read_with_its_own_version_and_encoding() -> None:
    row = written({"id": 7}, ORDER)
    later = written({"id": 8, "note": "x"}, LATER_ORDER)
    assert decoded(
        [pair(TEXT, ORDER, "INLINE"), pair(TEXT, LATER_ORDER, "SEPARATED")],
        (None, inline(b"a", row), 0),
        (b"b", later, 1),
    ) == [
        {"key": "a", "value": {"id": 7, "note": "-"}},
        {"key": "b", "value": {"id": 8, "note": "x"}},
    ]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\0\0\0",
        inline(b"a"),
        inline(b"a", b"b")[:-1],
        inline(b"a", b"b", b"c"),
        b"\x7f\xff\xff\xff" + b"a",
    ],
)
def test_what_is_no_pair_fails_the_query_or_is_left_out(payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"cut off|left over"):
        split(payload)
    rows = (None, inline(b"a", b"b"), 0), (None, payload, 0)
    texts = pair(TEXT, TEXT)
    with pytest.raises(CorruptData, match="entry 17:1 cannot be read"):
        decoded([texts], *rows)
    assert decoded([texts], *rows, skip=True) == [{"key": "a", "value": "b"}]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Schema(SchemaType.KEY_VALUE, b"{}"), "no KeyValue definition"),
        (pair(TEXT, Schema(SchemaType.TIME)), "type TIME has no columns"),
        (
            pair(schema({"name": "n", "type": ["int", "string"]}), TEXT),
            "value.key.n is a union of several types",
        ),
    ],
)
def test_a_pair_without_columns_says_which_part(wrong: Schema, said: str) -> None:
    with pytest.raises(NotAColumn, match=said):
        type_of(wrong)


def test_what_was_written_as_another_type_is_not_read_as_a_pair() -> None:
    with pytest.raises(NotAColumn, match="it was written as STRING"):
        type_of(pair(TEXT, TEXT)).reader(TEXT)
