"""Messages as the official Java and Go clients describe them.

Owns: `Id`, `Received`, `StreamAnswer`, and how they stand in an answer of a driver. Imports: the
standard library. Invariant: bytes travel in base64.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Id:
    """A message id; `raw` is how the client serializes it."""

    raw: str
    ledger: int
    entry: int
    partition: int
    batch_index: int

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Id:
        return cls(**{name: answer[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Received:
    """A message, its value and what came with it; `decoded` is the record that the client made of
    the value, if it was asked to decode."""

    handle: int
    id: Id
    value: bytes
    key: str | None
    ordering_key: str | None
    properties: dict[str, str]
    topic: str
    redelivery_count: int
    publish_time_ms: int
    event_time_ms: int
    producer: str
    index: int | None
    broker_publish_time_ms: int | None
    schema_version: int | None
    decoded: dict[str, Any] | None

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Received:
        fields = {"decoded": None} | answer
        return cls(
            **{name: fields[name] for name in cls.__dataclass_fields__}
            | {
                "id": Id.of(answer["id"]),
                "value": base64.b64decode(answer["value"] or ""),
                "properties": answer["properties"] or {},
            }
        )


@dataclass(frozen=True)
class StreamAnswer:
    """What became of one message of a stream, and when (`time.time()`); `id` is None if it
    failed."""

    number: int
    at: float
    id: Id | None
    error: str

    @classmethod
    def of(cls, answer: dict[str, Any]) -> StreamAnswer:
        return cls(
            answer["number"],
            answer["at_ms"] / 1000,
            Id.of(answer["id"]) if "id" in answer else None,
            str(answer.get("error", "")),
        )
