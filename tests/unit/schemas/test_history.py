"""The versions of one topic: what becomes one, what keeps its own, what is refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import IncompatibleSchema, InvalidSchema
from magnetar.schemas import key_values
from magnetar.schemas.compatibility import check_compatible
from magnetar.schemas.definitions import LEVELS_MAX, check, content
from magnetar.schemas.history import History, Registered
from magnetar.schemas.strategies import Strategy
from magnetar.schemas.types import Schema, SchemaType, version_bytes, version_of

COMPARING = [
    Strategy.BACKWARD,
    Strategy.FORWARD,
    Strategy.FULL,
    Strategy.BACKWARD_TRANSITIVE,
    Strategy.FORWARD_TRANSITIVE,
    Strategy.FULL_TRANSITIVE,
]
AVRO_TYPES = st.sampled_from([SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF])
FIELDS = st.lists(
    st.tuples(
        st.sampled_from("abcde"),
        st.sampled_from(["int", "long", "string", "double", "boolean"]),
        st.booleans(),
    ),
    max_size=5,
    unique_by=lambda found: found[0],
)
DEFAULTS = {"int": 1, "long": 1, "string": "x", "double": 1.0, "boolean": True}


def record(
    fields: list[tuple[str, str, bool]],
    kind: SchemaType = SchemaType.AVRO,
    name: str = "R",
    **extra: Any,
) -> Schema:
    listed = [
        {"name": field, "type": of, **({"default": DEFAULTS[of]} if has_default else {})}
        for field, of, has_default in fields
    ]
    document = {"type": "record", "name": name, "fields": listed, **extra}
    return Schema(kind, json.dumps(document).encode())


SCHEMAS = st.builds(record, FIELDS)


def fits(strategy: Strategy, earlier: list[Schema], new: Schema) -> bool:
    try:
        check_compatible(strategy, earlier, new)
    except IncompatibleSchema:
        return False
    return True


def history_of(*schemas: Schema | None) -> History:
    """None is a deletion."""
    return History(
        [
            Registered(number, schema or Schema(SchemaType.NONE), 0, schema is None)
            for number, schema in enumerate(schemas)
        ]
    )


@given(st.integers(-1, 2**63 - 1))
def test_a_version_comes_back_from_its_bytes(number: int) -> None:
    data = version_bytes(number)
    assert len(data) == 8
    assert version_of(data) == number


@pytest.mark.parametrize("data", [b"", b"\0" * 7, b"\0" * 9])
def test_other_bytes_are_no_version(data: bytes) -> None:
    with pytest.raises(IncompatibleSchema):
        version_of(data)


@given(SCHEMAS, SCHEMAS)
def test_full_is_both_directions(old: Schema, new: Schema) -> None:
    """And what may follow under BACKWARD is what may be followed under FORWARD."""
    backward, forward = (fits(found, [old], new) for found in (Strategy.BACKWARD, Strategy.FORWARD))
    assert fits(Strategy.FULL, [old], new) == (backward and forward)
    assert fits(Strategy.FORWARD, [new], old) == backward


@given(st.lists(SCHEMAS, min_size=1, max_size=4), SCHEMAS, st.sampled_from(COMPARING))
def test_transitive_means_each_of_them(
    earlier: list[Schema], new: Schema, strategy: Strategy
) -> None:
    alone = [fits(strategy, [old], new) for old in earlier]
    assert fits(strategy, earlier, new) == (all(alone) if strategy.transitive else alone[-1])


@given(SCHEMAS, SCHEMAS, AVRO_TYPES)
def test_backward_means_that_new_fields_have_defaults(
    old: Schema, new: Schema, kind: SchemaType
) -> None:
    """Against a rule written out here, for records of plain fields."""
    old, new = Schema(kind, old.data), Schema(kind, new.data)
    before = {found["name"]: found for found in json.loads(old.data)["fields"]}
    widened = {
        ("int", "long"),
        ("int", "double"),
        ("long", "double"),
    }
    expected = all(
        "default" in field
        if field["name"] not in before
        else before[field["name"]]["type"] == field["type"]
        or (before[field["name"]]["type"], field["type"]) in widened
        for field in json.loads(new.data)["fields"]
    )
    assert fits(Strategy.BACKWARD, [old], new) == expected


@given(SCHEMAS, st.sampled_from(COMPARING))
def test_a_schema_follows_itself_whatever_it_is_called(schema: Schema, strategy: Strategy) -> None:
    """Layout, documentation and the record's name do not matter."""
    renamed = {**json.loads(schema.data), "name": "Other", "doc": "text"}
    assert fits(strategy, [schema], Schema(schema.type, json.dumps(renamed).encode()))


@given(SCHEMAS)
def test_layout_and_documentation_make_no_version(schema: Schema) -> None:
    document = json.loads(schema.data)
    loose = json.dumps({**dict(reversed(document.items())), "doc": "text"}, indent=3).encode()
    history = history_of(schema)
    found = history.admit(Schema(schema.type, loose), Strategy.FULL, updates=True)
    assert found is not None
    assert found.version == 0
    other = Schema(SchemaType.JSON, schema.data)
    assert history.find(other) is None


def test_a_default_named_like_an_attribute_counts() -> None:
    """`doc` inside a default is a value."""
    of = {"type": "map", "values": "int"}
    one, two = (
        Schema(
            SchemaType.AVRO,
            json.dumps(
                {
                    "type": "record",
                    "name": "R",
                    "fields": [{"name": "a", "type": of, "default": {"doc": value}}],
                }
            ).encode(),
        )
        for value in (1, 2)
    )
    assert content(one) != content(two)


@pytest.mark.parametrize("kind", [found for found in SchemaType if found.is_primitive])
def test_types_without_a_definition_are_equal_or_not(kind: SchemaType) -> None:
    """Clients fill in different data where there is nothing to define: Python's sends "null"."""
    if kind is SchemaType.AUTO_CONSUME:
        with pytest.raises(InvalidSchema):
            check(Schema(kind))
        return
    history = history_of(Schema(kind))
    found = history.admit(Schema(kind, b"null"), Strategy.FULL, updates=False)
    assert found is not None
    other = SchemaType.INT8 if kind is not SchemaType.INT8 else SchemaType.INT16
    with pytest.raises(IncompatibleSchema, match=kind.name):
        history.admit(Schema(other), Strategy.FULL, updates=True)
    assert history.admit(Schema(other), Strategy.ALWAYS_COMPATIBLE, updates=True) is None


def test_the_first_schema_needs_no_strategy_but_permission() -> None:
    schema = record([("a", "int", False)])
    assert History().admit(schema, Strategy.ALWAYS_INCOMPATIBLE, updates=True) is None
    with pytest.raises(IncompatibleSchema, match="isAllowAutoUpdateSchema"):
        History().admit(schema, Strategy.ALWAYS_COMPATIBLE, updates=False)


def test_a_deletion_ends_what_counts_and_numbers_go_on() -> None:
    one, two = record([("a", "int", False)]), Schema(SchemaType.STRING)
    history = history_of(one, None)
    assert history.latest is None
    assert history.next_version == 2
    assert history.admit(two, Strategy.FULL, updates=True) is None
    assert history.version(0) is not None
    assert history.version(1) is None
    again = history_of(one, None, two)
    assert [found.version for found in again.live] == [2]
    assert again.find(one) is None


def test_a_consumer_must_read_what_is_there() -> None:
    """Whatever producers may do: under FORWARD, too."""
    old, new = record([("a", "int", False)]), record([("a", "int", False), ("b", "int", False)])
    history = history_of(old, new)
    for strategy in (Strategy.BACKWARD, Strategy.FORWARD, Strategy.FULL):
        history.check_consumer(old, strategy)
    with pytest.raises(IncompatibleSchema):
        history.check_consumer(record([("c", "int", False)]), Strategy.FORWARD)
    with pytest.raises(IncompatibleSchema):
        history_of(old, new).check_consumer(new, Strategy.BACKWARD_TRANSITIVE)
    history.check_consumer(old, Strategy.ALWAYS_INCOMPATIBLE)
    with pytest.raises(IncompatibleSchema):
        history.check_consumer(record([]), Strategy.ALWAYS_INCOMPATIBLE)


# --- key and value --------------------------------------------------------------------------------


def pair(key: Schema, value: Schema) -> Schema:
    return Schema(
        SchemaType.KEY_VALUE,
        key_values.joined(key.data, value.data),
        {"key.schema.type": key.type.name, "value.schema.type": value.type.name},
    )


@given(SCHEMAS, SCHEMAS, SCHEMAS, SCHEMAS, st.sampled_from(COMPARING))
def test_a_pair_fits_if_both_parts_do(
    key: Schema, value: Schema, next_key: Schema, next_value: Schema, strategy: Strategy
) -> None:
    old, new = pair(key, value), pair(next_key, next_value)
    assert key_values.split(old) == (key, value)
    assert fits(strategy, [old], new) == (
        fits(strategy, [key], next_key) and fits(strategy, [value], next_value)
    )


@given(SCHEMAS)
def test_a_pair_comes_back_from_the_text_of_rest(value: Schema) -> None:
    schema = pair(Schema(SchemaType.STRING), value)
    again = Schema(
        schema.type, key_values.data_of(key_values.text_of(schema)), dict(schema.properties)
    )
    assert content(again) == content(schema)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_pair_or_refused(data: bytes) -> None:
    try:
        key, value = key_values.split(Schema(SchemaType.KEY_VALUE, data))
    except InvalidSchema:
        return
    assert len(key.data) + len(value.data) + 8 == len(data) or b"\xff\xff\xff\xff" in data


# --- Protobuf's own descriptors -------------------------------------------------------------------


def native(root: str, *, file_name: str = "f.proto", package: str = "p") -> Schema:
    """A file with message M, which has N inside."""
    files = FileDescriptorSet()
    file = files.file.add(name="f.proto", package=package)
    file.message_type.add(name="M").nested_type.add(name="N")
    document = {
        "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
        "rootMessageTypeName": root,
        "rootFileDescriptorName": file_name,
    }
    return Schema(SchemaType.PROTOBUF_NATIVE, json.dumps(document).encode())


def test_the_root_message_of_a_native_schema_stays() -> None:
    for root in ("p.M", "p.M.N"):
        check(native(root))
    assert fits(
        Strategy.FULL, [native("p.M")], Schema(native("p.M").type, native("p.M").data + b" ")
    )
    assert not fits(Strategy.BACKWARD, [native("p.M")], native("p.M.N"))
    assert fits(Strategy.ALWAYS_COMPATIBLE, [native("p.M")], native("p.M.N"))
    for bad in (native("p.X"), native("p.M", file_name="g.proto"), native("M")):
        with pytest.raises(InvalidSchema, match="rootMessageTypeName"):
            check(bad)


# --- definitions that are none --------------------------------------------------------------------

DEEP = b"[" * (LEVELS_MAX + 1) + b"]" * (LEVELS_MAX + 1)


@pytest.mark.parametrize("kind", [SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF_NATIVE])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        b"1",
        b"[]]",
        b'{"type":"record"}',
        b'{"type":"object"}',
        DEEP,
        b"[" * 10**5,
    ],
)
def test_what_is_no_definition_is_refused(kind: SchemaType, data: bytes) -> None:
    with pytest.raises(InvalidSchema, match=f"Invalid schema definition data for {kind.name}"):
        check(Schema(kind, data))


@given(st.binary(max_size=200), st.sampled_from(list(SchemaType)))
def test_no_bytes_break_the_check(data: bytes, kind: SchemaType) -> None:
    """Whatever a client sends is a schema or refused as one."""
    schema = Schema(kind, data)
    try:
        check(schema)
    except IncompatibleSchema:
        return
    assert content(schema) == content(schema)


def test_names_of_java_and_unknown_logical_types_are_accepted() -> None:
    """Without a warning, which would be an error here."""
    of = {"type": "int", "logicalType": "unheard-of"}
    check(record([], name="Outer$Inner", namespace="a.b$"))
    document = {"type": "record", "name": "R", "fields": [{"name": "a", "type": of}]}
    check(Schema(SchemaType.AVRO, json.dumps(document).encode()))


def test_long_chains_of_definitions_are_refused_not_fatal() -> None:
    """A reader that contains itself descends through all of the writer's definitions."""

    def named(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
        listed = [{"name": field, "type": of} for field, of in fields]
        return {"type": "record", "name": name, "fields": listed}

    chain = [("d0", named("W0"))]
    chain += [(f"d{n}", named(f"W{n}", ("a", f"W{n - 1}"))) for n in range(1, 600)]
    writer, reader = (
        Schema(SchemaType.AVRO, json.dumps(found).encode())
        for found in (
            named("Top", *chain, ("a", "W599")),
            named("Top", ("a", named("R", ("a", "R")))),
        )
    )
    check(writer)
    with pytest.raises(IncompatibleSchema, match="too deeply"):
        check_compatible(Strategy.BACKWARD, [writer], reader)


WORDS = st.sampled_from(
    [
        *("null", "boolean", "int", "long", "float", "double", "bytes", "string"),
        *("record", "error", "enum", "array", "map", "fixed", "union", "error_union", "request"),
        *("R", "a", "b", "", "a.b", "decimal", "uuid", "date", "duration", "ignore"),
    ]
)
KEYS = st.sampled_from(
    [
        *("type", "name", "namespace", "fields", "items", "values", "symbols", "size", "default"),
        *("aliases", "order", "doc", "logicalType", "precision", "scale"),
    ]
)
NEARLY_AVRO = st.recursive(
    WORDS | st.integers(-1, 20) | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)
NAMED = st.sampled_from(["record", "error", "enum", "fixed", "array", "map"]).flatmap(
    lambda kind: st.fixed_dictionaries(
        {
            "type": st.just(kind),
            "name": st.sampled_from(["R", "S"]),
            "size": st.integers(0, 3),
            "symbols": st.lists(st.sampled_from("xyz"), unique=True, max_size=3),
            "items": WORDS,
            "values": NEARLY_AVRO,
            "fields": st.lists(
                st.fixed_dictionaries(
                    {"name": st.sampled_from("abc"), "type": NEARLY_AVRO},
                    optional={"default": NEARLY_AVRO, "aliases": NEARLY_AVRO},
                ),
                max_size=3,
            ),
        },
        optional={"default": WORDS, "aliases": NEARLY_AVRO, "logicalType": WORDS},
    )
)
DOCUMENTS = NEARLY_AVRO | NAMED | st.lists(NAMED | NEARLY_AVRO, max_size=3)


@given(DOCUMENTS, DOCUMENTS, st.sampled_from(COMPARING))
def test_whatever_looks_like_avro_is_a_schema_or_refused_as_one(
    first: Any, second: Any, strategy: Strategy
) -> None:
    """The library's errors of all kinds are refusals, when it reads and when it compares."""
    schemas = [Schema(SchemaType.AVRO, json.dumps(found).encode()) for found in (first, second)]
    for schema in schemas:
        try:
            check(schema)
        except InvalidSchema:
            return
    fits(strategy, schemas[:1], schemas[1])
