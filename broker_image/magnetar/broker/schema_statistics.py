"""What is done with the schemas of namespaces.

Owns: `SchemaStatistics`, counts and times by namespace. Imports: clock, errors, names, views. Source:
Pulsar's SchemaRegistryStats. Invariants: an operation is counted once, when it ends; a namespace has
counts of its own only while it exists, so requests for names that do not exist take no memory.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from magnetar.clock import Clock
from magnetar.errors import IncompatibleSchema, InvalidSchema
from magnetar.hosting.views import StoreView
from magnetar.metadata.records import NamespaceRecord
from magnetar.names import TopicName


class Kind(enum.StrEnum):
    """Of operations, as metrics name them."""

    GET = "get"
    PUT = "put"
    DELETE = "del"


@dataclass(slots=True)
class Operations:
    """Those of one kind. `ms` is what the successful ones took together."""

    succeeded: int = 0
    failed: int = 0
    ms: float = 0.0


@dataclass(slots=True)
class SchemaCounts:
    """Of one namespace. `compatible` and `incompatible` are checks of schemas, by how they ended."""

    operations: Mapping[Kind, Operations] = field(
        default_factory=lambda: {kind: Operations() for kind in Kind}
    )
    compatible: int = 0
    incompatible: int = 0


@dataclass(slots=True)
class Counting:
    """Something under way. `counted`: whether it is counted when it ends."""

    counted: bool = True


class SchemaStatistics:
    """Of one broker."""

    def __init__(self, clock: Clock, namespaces: StoreView[NamespaceRecord]) -> None:
        self._clock, self._namespaces = clock, namespaces
        self._known: dict[str, SchemaCounts] = {}
        self.unknown = SchemaCounts()
        """Of all namespaces that do not exist."""
        namespaces.listen(self._changed)

    @property
    def by_namespace(self) -> Mapping[str, SchemaCounts]:
        """Of namespaces that exist, if anything was counted."""
        return self._known

    @contextmanager
    def timed(self, topic: TopicName, kind: Kind) -> Iterator[Counting]:
        """Count one operation. An incompatible schema is no failure."""
        counting, begin = Counting(), self._clock.monotonic()
        try:
            yield counting
        except IncompatibleSchema:
            raise
        except Exception:
            if counting.counted:
                self._of(topic).operations[kind].failed += 1
            raise
        if counting.counted:
            operations = self._of(topic).operations[kind]
            operations.succeeded += 1
            operations.ms += 1000 * (self._clock.monotonic() - begin)

    @contextmanager
    def checking(self, topic: TopicName) -> Iterator[Counting]:
        """Count one check of compatibility. An invalid definition is compared with nothing."""
        counting = Counting()
        try:
            yield counting
        except InvalidSchema:
            raise
        except IncompatibleSchema:
            if counting.counted:
                self._of(topic).incompatible += 1
            raise
        if counting.counted:
            self._of(topic).compatible += 1

    def _of(self, topic: TopicName) -> SchemaCounts:
        name = str(topic.namespace_name)
        if self._namespaces.get(name) is None:
            return self.unknown
        return self._known.setdefault(name, SchemaCounts())

    def _changed(self, names: list[str]) -> None:
        for name in names:
            if self._namespaces.get(name) is None:
                self._known.pop(name, None)
