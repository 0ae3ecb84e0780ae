"""Records: what is encoded comes back equal, equal records have equal bytes, and nothing else is
taken for a record."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from magnetar.errors import StoreError
from magnetar.metadata.codec import Record
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    CheckpointPointer,
    ClusterRecord,
    CoordinatorRecord,
    CoordinatorState,
    LogPosition,
    LogRange,
    NamespaceRecord,
)

OWNED = BundleRecord(
    state=BundleState.OWNED,
    incarnation="broker-0.0123456789abcdef",
    epoch=7,
    checkpoint=CheckpointPointer(
        "checkpoints/a", "broker-0.0123456789abcdef", LogPosition(3, 4096)
    ),
    chain=(
        LogRange("broker-1.aaaaaaaaaaaaaaaa", LogPosition(0, 4096), LogPosition(1, 5000)),
        LogRange("broker-0.0123456789abcdef", LogPosition(3, 4096), None),
    ),
    epochs=(5, 7),
    reason="lookup",
)
NAMESPACE = NamespaceRecord(
    (0, 1 << 31, 0xFFFFFFFF),
    {"retention_policies": {"retentionTimeInMinutes": -1, "nested": [1, None]}},
)


@dataclass(frozen=True, slots=True)
class Every(Record):
    """Each kind of member that records have."""

    numbers: tuple[int, ...]
    pair: tuple[str, float]
    maybe: LogPosition | None
    by_name: dict[str, LogPosition]
    anything: dict[str, Any]
    flag: bool


COORDINATOR = CoordinatorRecord(
    "tx-coordinator-0.a",
    3,
    CoordinatorState.SERVING,
    2,
    CheckpointPointer("coordinators/00/x", "tx-coordinator-0.a", LogPosition(0, 4096)),
    (LogRange("tx-coordinator-0.a", LogPosition(0, 4096), None),),
)
EVERY = Every(
    (1, 2), ("a", 0.5), LogPosition(1, 2), {"x": LogPosition(3, 4)}, {"y": [1, {"z": None}]}, True
)
VALID: dict[str, Any] = json.loads(EVERY.encode())


@pytest.mark.parametrize(
    "record",
    [OWNED, NAMESPACE, ClusterRecord("id", 1, 2), COORDINATOR, EVERY],
    ids=lambda record: type(record).__name__,
)
def test_a_record_survives_its_encoding_and_the_encoding_is_canonical(record: Record) -> None:
    encoded = record.encode()
    assert type(record).decode(encoded) == record
    body = json.loads(encoded)
    assert json.dumps(body, sort_keys=True, separators=(",", ":")).encode() == encoded
    assert body["schema"] == type(record).SCHEMA
    assert type(record).decode(encoded).encode() == encoded


@pytest.mark.parametrize(
    "change",
    [
        {"numbers": [1, "2"]},
        {"numbers": 5},
        {"numbers": [True]},
        {"pair": ["a", 0.5, 1]},
        {"pair": ["a"]},
        {"maybe": 7},
        {"maybe": "text"},
        {"maybe": {"file": 1}},
        {"maybe": {"file": 1, "offset": 2, "more": 3}},
        {"by_name": [1]},
        {"by_name": {"x": None}},
        {"anything": 3},
        {"flag": 1},
        {"unknown": 1},
        {"schema": 1},
        {"schema": 3},
    ],
    ids=str,
)
def test_anything_else_is_refused(change: dict[str, Any]) -> None:
    """With an error of the store's, whatever is wrong and however deep it lies."""
    with pytest.raises(StoreError, match="Every"):
        Every.decode(json.dumps({**VALID, **change}).encode())


@pytest.mark.parametrize("left_out", sorted(VALID))
def test_a_record_with_a_member_missing_is_refused(left_out: str) -> None:
    body = {name: value for name, value in VALID.items() if name != left_out}
    with pytest.raises(StoreError, match="Every"):
        Every.decode(json.dumps(body).encode())


@pytest.mark.parametrize("data", [b"", b"7", b"null", b"[]", b'"text"', b"{}", b"\xff"])
def test_what_is_no_record_at_all_is_refused(data: bytes) -> None:
    with pytest.raises(StoreError):
        ClusterRecord.decode(data)


def test_only_what_cannot_change_is_given_to_two_who_decode_the_same_bytes() -> None:
    """A bundle's record is decoded once; the policies of a namespace are everybody's own, since
    they are a dictionary."""
    assert BundleRecord.decode(OWNED.encode()) is BundleRecord.decode(OWNED.encode())
    policies = NamespaceRecord((0, 1 << 32), {"deduplicationEnabled": True}).encode()
    NamespaceRecord.decode(policies).policies.clear()
    assert NamespaceRecord.decode(policies).policies == {"deduplicationEnabled": True}


def test_an_unknown_state_is_refused() -> None:
    body = {**json.loads(OWNED.encode()), "state": "Elsewhere"}
    with pytest.raises(StoreError, match="Elsewhere"):
        BundleRecord.decode(json.dumps(body).encode())
