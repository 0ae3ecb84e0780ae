"""Versions of schemas from storage alone: from logs and checkpoints, beside a backup, and of topics
that were made again."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from magnetar.metadata import keys
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    CheckpointPointer,
    LogPosition,
    SchemaRecord,
)
from magnetar.metadata.topic_schemas import KEPT_PREFIX, kept, kept_in
from magnetar.names import BundleName, TopicName
from magnetar.schemas.history import Registered
from magnetar.schemas.types import Schema, SchemaType
from magnetar.storage import names
from magnetar.storage.log.format import TopicOperation, TopicRecord
from magnetar.storage.restore.log_copies import LogFacts, _note
from magnetar.storage.restore.schema_copies import rebuilt_schemas

TOPIC = "persistent://t/n/topic"
NAMESPACE = {"namespaces/t/n": b""}
CREATE, UPDATE, DELETE = TopicOperation.CREATE, TopicOperation.UPDATE, TopicOperation.DELETE
CHECKPOINT = names.checkpoint(BundleName.parse("t/n/0x00000000_0xffffffff"), 5, 1)


def version(number: int, kind: SchemaType = SchemaType.STRING) -> tuple[str, str]:
    return kept(Registered(number, Schema(kind), 17))


def key(number: int, topic: str = TOPIC) -> str:
    return keys.schema_version(TopicName.parse(topic), number)


def logs(*said: tuple[TopicOperation, Mapping[str, str]], topic: str = TOPIC) -> LogFacts:
    """One record after another, under epoch 5."""
    facts = LogFacts({})
    for at, (operation, properties) in enumerate(said):
        record = TopicRecord(5, topic, operation, dict(properties))
        _note(facts, "b.1", [(record, (5, 0, at), LogPosition(0, at + 1))])
    return facts


def pointed_at(offset: int) -> BundleRecord:
    """A bundle whose checkpoint holds everything before that place."""
    pointer = CheckpointPointer(CHECKPOINT, "b.1", LogPosition(0, offset))
    return BundleRecord(BundleState.FREE, 5, checkpoint=pointer)


def types_of(found: Mapping[str, bytes]) -> dict[str, str]:
    return {name: SchemaRecord.decode(value).type for name, value in found.items()}


def test_a_version_is_kept_as_the_store_has_it() -> None:
    name, value = version(3)
    assert (name, kept_in({name: value, "policies": "{}"})) == (
        f"{KEPT_PREFIX}3",
        {3: value.encode()},
    )
    assert SchemaRecord.decode(value.encode()).timestamp_ms == 17


def test_versions_come_from_logs_and_from_checkpoints() -> None:
    """Where a log has another record of a version, it is the younger one."""
    facts = logs((UPDATE, dict([version(1)])), (UPDATE, dict([version(1, SchemaType.INT8)])))
    checkpoints = {CHECKPOINT: {TOPIC: {0: version(0)[1].encode(), 1: version(1)[1].encode()}}}
    found = rebuilt_schemas({TOPIC}, [pointed_at(9)], checkpoints, facts, NAMESPACE)
    assert types_of(found) == {key(0): "STRING", key(1): "INT8"}


def test_partitions_share_the_schemas_of_their_topic() -> None:
    part = f"{TOPIC}-partition-1"
    facts = logs((UPDATE, dict([version(0)])), topic=part)
    assert list(rebuilt_schemas({part}, [], {}, facts, NAMESPACE)) == [key(0)]


@pytest.mark.parametrize("younger", [0, 1])
def test_of_what_partitions_say_of_a_version_the_younger_record_counts(younger: int) -> None:
    """The versions of a topic begin at 0 again when they are deleted by force."""
    parts, facts = [f"{TOPIC}-partition-{number}" for number in range(2)], LogFacts({})
    for number, part in enumerate(parts):
        kind, made_ms = (SchemaType.INT8, 18) if number == younger else (SchemaType.STRING, 17)
        said = kept(Registered(0, Schema(kind), made_ms))
        record = TopicRecord(5, part, UPDATE, dict([said]))
        _note(facts, "b.1", [(record, (5, 0, number), LogPosition(0, 1))])
    assert types_of(rebuilt_schemas(parts, [], {}, facts, NAMESPACE)) == {key(0): "INT8"}


def test_a_backup_is_not_contradicted() -> None:
    """Its version, and its deletion, stay; the versions after it come from the log."""
    facts = logs((UPDATE, dict([version(0), version(1), version(2)])))
    found = rebuilt_schemas({TOPIC}, [], {}, facts, {**NAMESPACE, key(0): b"", key(1): b""})
    assert list(found) == [key(2)]


@pytest.mark.parametrize("place", ["log", "checkpoint"])
def test_what_an_earlier_topic_of_that_name_had_stays_gone(place: str) -> None:
    again = (DELETE, {}), (CREATE, {}), (UPDATE, dict([version(0, SchemaType.INT8)]))
    if place == "log":
        facts, records, checkpoints = logs((UPDATE, dict([version(1)])), *again), [], {}
    else:
        facts, records = logs(*again), [pointed_at(0)]
        checkpoints = {CHECKPOINT: {TOPIC: {1: version(1)[1].encode()}}}
    assert types_of(rebuilt_schemas({TOPIC}, records, checkpoints, facts, NAMESPACE)) == {
        key(0): "INT8"
    }


def test_nothing_comes_back_without_its_topic_or_namespace() -> None:
    facts = logs((UPDATE, dict([version(0)])))
    assert rebuilt_schemas((), [], {}, facts, NAMESPACE) == {}
    assert rebuilt_schemas({TOPIC}, [], {}, facts, {}) == {}
