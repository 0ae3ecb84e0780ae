"""The versions of one topic's schema.

Owns: `Registered`, `History`, and what a new schema makes of it. Imports: errors and siblings. Pure.
Invariants: versions only grow; a schema whose content is registered since the last deletion keeps
its version; nothing that does not fit becomes a version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from magnetar.errors import IncompatibleSchema
from magnetar.schemas.compatibility import check_compatible
from magnetar.schemas.definitions import check, content
from magnetar.schemas.strategies import Strategy
from magnetar.schemas.types import Schema


@dataclass(frozen=True, slots=True)
class Registered:
    """One version. `deleted`: it ends those before it, and is no schema itself."""

    version: int
    schema: Schema
    timestamp_ms: int
    deleted: bool = False


class History:
    """All versions of a topic's schema, oldest first, as of one revision of the store."""

    def __init__(self, versions: Sequence[Registered] = ()) -> None:
        self.versions = tuple(versions)

    @cached_property
    def live(self) -> tuple[Registered, ...]:
        """The versions since the last deletion: those that new schemas are compared with."""
        first = max(
            (index + 1 for index, found in enumerate(self.versions) if found.deleted), default=0
        )
        return self.versions[first:]

    @property
    def latest(self) -> Registered | None:
        return self.live[-1] if self.live else None

    @property
    def next_version(self) -> int:
        return self.versions[-1].version + 1 if self.versions else 0

    def version(self, number: int) -> Registered | None:
        """A version, also one before a deletion: messages may still carry it."""
        return next(
            (found for found in self.versions if found.version == number and not found.deleted),
            None,
        )

    def same(self, schema: Schema) -> Registered | None:
        """The version with the same type and data, byte by byte."""
        return next(
            (
                found
                for found in self.live
                if found.schema.data == schema.data
                and found.schema.type is schema.type
                and found.schema.properties == schema.properties
            ),
            None,
        )

    def find(self, schema: Schema) -> Registered | None:
        """The version of the same content. Raises InvalidSchema if the definition is none."""
        wanted = content(schema)
        pairs = zip(self.live, self._contents, strict=True)
        return next((found for found, known in pairs if known == wanted), None)

    @cached_property
    def _contents(self) -> tuple[tuple[Any, ...], ...]:
        return tuple(content(found.schema) for found in self.live)

    def admit(self, schema: Schema, strategy: Strategy, *, updates: bool) -> Registered | None:
        """The version that a producer's schema has; None if it may become the next one. `updates`:
        whether clients register schemas. Raises IncompatibleSchema."""
        check(schema)
        if (found := self.find(schema)) is not None:
            return found
        if not updates:
            raise IncompatibleSchema(
                "schema: it is not registered, and clients may not register it "
                "(isAllowAutoUpdateSchema); have an administrator upload it"
            )
        if self.live:
            check_compatible(strategy, [found.schema for found in self.live], schema)
        return None

    def check_consumer(self, schema: Schema, strategy: Strategy) -> None:
        """Whether a consumer's schema reads what the topic has. Raises IncompatibleSchema.

        Under ALWAYS_INCOMPATIBLE it must be a registered one.
        """
        check(schema)
        if strategy is Strategy.ALWAYS_INCOMPATIBLE and self.find(schema) is not None:
            return
        check_compatible(strategy.for_consumers, [found.schema for found in self.live], schema)
