"""Values of a topic as its schema says.

Owns: `TopicValues`, the schemas that a task needs, and `ValueDecoder`, which turns payloads of Arrow
batches into columns. Imports: pyarrow, errors, schemas, pair_types, value_types, topic_options. Invariants: a
payload is read with the version that it was written with, and becomes a value of one version for the
whole query; one that cannot be read costs its own row or the query, as the options say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from magnetar.errors import CorruptData, InvalidRequest
from magnetar.schemas.history import History
from magnetar.schemas.types import Schema
from magnetar_jobs.cluster import shown
from magnetar_jobs.pair_types import PairType, type_of
from magnetar_jobs.topic_options import NAME
from magnetar_jobs.value_types import Column, MessageRead, NotAColumn

SCHEMA_VERSION = "schema_version"
NEEDED = ("key", "value", SCHEMA_VERSION, "ledger", "entry")
"""Columns of the batches that are decoded."""
SLICE_BYTES = 1 << 20
"""Of payloads that are Python objects at once: they take up to forty times as much."""


@dataclass(frozen=True, slots=True)
class TopicValues:
    """Versions of a topic's schema; values become those of version `wanted`."""

    topic: str
    wanted: int
    versions: Mapping[int, Schema]

    @staticmethod
    def of(topic: str, history: History, type_name: str = "") -> TopicValues:
        """The latest version, or the latest whose column has that type. Raises InvalidRequest."""
        versions = {found.version: found.schema for found in history.versions if not found.deleted}
        for found in reversed(history.live):
            try:
                column = type_of(found.schema).column
            except NotAColumn as error:
                if not type_name:
                    raise InvalidRequest(
                        f"{NAME}: values of topic {topic} are no column: {error}; read with option "
                        "value=bytes"
                    ) from error
                continue
            if not type_name or column.name == type_name:
                return TopicValues(topic, found.version, versions)
        if not history.live:
            raise InvalidRequest(
                f"{NAME}: topic {topic} has no schema; read with option value=bytes"
            )
        raise InvalidRequest(
            f"{NAME}: topic {topic} has no schema whose values are {type_name}; read topics of other "
            "schemas by queries of their own, and one whose schema was replaced by a new query"
        )

    @property
    def column(self) -> Column:
        return type_of(self.versions[self.wanted]).column


class ValueDecoder:
    """Decodes the values of one topic."""

    def __init__(self, values: TopicValues, *, skip: bool) -> None:
        self._values, self._skip = values, skip
        self._type = type_of(values.versions[values.wanted])
        self._readers: dict[int, MessageRead] = {}

    def decoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with a column `value` of the schema. Raises CorruptData."""
        payloads, versions = batch["value"], batch[SCHEMA_VERSION].to_pylist()
        good, parts = [True] * len(versions), list[pa.Array]()
        for low, high in _slices(payloads):
            parts.append(self._slice(batch, low, high, versions[low:high], good))
        place = batch.schema.get_field_index("value")
        values = pa.concat_arrays(parts) if parts else pa.array([], self._type.column.arrow)
        found = batch.set_column(place, pa.field("value", self._type.column.arrow), values)
        return found if all(good) else found.filter(pa.array(good))

    def _slice(
        self,
        batch: pa.RecordBatch,
        low: int,
        high: int,
        versions: list[int | None],
        good: list[bool],
    ) -> pa.Array:
        payloads = batch["value"].slice(low, high - low).to_pylist()
        pairs = isinstance(self._type, PairType)
        keys = batch["key"].slice(low, high - low).to_pylist() if pairs else [None] * len(payloads)
        values = []
        for row, (key, payload) in enumerate(zip(keys, payloads, strict=True)):
            value = None
            if payload is not None or pairs:
                try:
                    value = self._read(versions[row])(key, payload)
                except Exception as error:  # whatever a payload may cause is its own
                    good[low + row] = self._passed_over(batch, low + row, versions[row], error)
            values.append(value)
        try:
            return pa.array(values, self._type.column.arrow)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            return pa.concat_arrays(
                [
                    self._single(batch, low + row, value, versions[row], good)
                    for row, value in enumerate(values)
                ]
            )

    def _single(
        self, batch: pa.RecordBatch, row: int, value: object, version: int | None, good: list[bool]
    ) -> pa.Array:
        """One value, which may not fit into the column although it was read."""
        try:
            return pa.array([value], self._type.column.arrow)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            good[row] = self._passed_over(batch, row, version, error)
            return pa.nulls(1, self._type.column.arrow)

    def _read(self, version: int | None) -> MessageRead:
        """Without a version it was written with that of the query."""
        number = version if version is not None else self._values.wanted
        found = self._readers.get(number)
        if found is None:
            found = self._readers[number] = self._reader(number)
        return found

    def _reader(self, number: int) -> MessageRead:
        """Once for each version, also if nothing of it can be read."""
        written = self._values.versions.get(number)
        try:
            if written is None:
                raise NotAColumn("the version is not there any more")
            return self._type.reader(written)
        except NotAColumn as error:
            return _refusing(str(error))

    def _passed_over(
        self, batch: pa.RecordBatch, row: int, version: int | None, error: Exception
    ) -> bool:
        """False if rows may be left out. Raises CorruptData. What the payload holds is not said."""
        if self._skip:
            return False
        place = shown((batch["ledger"][row].as_py(), batch["entry"][row].as_py()))
        said = str(error) if isinstance(error, NotAColumn) else type(error).__name__
        raise CorruptData(
            f"{self._values.topic}: the value of entry {place} cannot be read with schema version "
            f"{version if version is not None else 'none'} ({said}); leave such messages out with "
            "option undecodable=skip, or read bytes with value=bytes"
        ) from error


def _refusing(reason: str) -> MessageRead:
    def read(_key: bytes | None, _payload: bytes | None) -> NoReturn:
        raise NotAColumn(reason)

    return read


def _slices(payloads: pa.Array) -> Iterator[tuple[int, int]]:
    """Rows [low, high) with SLICE_BYTES of payload, or one row."""
    sizes = pc.fill_null(pc.binary_length(payloads), 0).to_pylist()
    low = 0
    while low < len(sizes):
        high, size = low + 1, sizes[low]
        while high < len(sizes) and size + sizes[high] <= SLICE_BYTES:
            size += sizes[high]
            high += 1
        yield low, high
        low = high
