"""Samples of load as a DataFrame.

Owns: `SAMPLE_SCHEMA`, the task that reads objects of the history, and the choice of objects.
Imports: pyarrow, pyspark (on first use), balance.load_history, files. Invariants: a damaged line or
object costs itself, and is counted in a row of the kind `damaged`; no object makes memory grow beyond
`OBJECT_BYTES_MAX`; a sample that two objects hold counts once.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from magnetar.balance.load import Rates
from magnetar.balance.load_history import LoadSample, read_lines
from magnetar.balance.planner import cost
from magnetar.balance.settings import Settings
from magnetar.errors import StorageError, StoreError
from magnetar.storage.names import load_history_place
from magnetar_jobs.files import VolumeFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OBJECT_BYTES_MAX = 256 << 20
"""Of an object once it is unpacked."""
TASKS_PER_SLOT = 4
BROKER, BUNDLE, TOPIC, DAMAGED = "broker", "bundle", "topic", "damaged"
_COLUMNS = {
    "kind": "string",
    "at_ms": "bigint",
    "seconds": "double",
    "broker": "string",
    "bundle": "string",
    "topic": "string",
    "position": "bigint",
    "hot": "boolean",
    "messages_in": "double",
    "messages_out": "double",
    "bytes_in": "double",
    "bytes_out": "double",
    "load": "double",
    "cpu": "double",
    "cpu_limit": "double",
    "memory_share": "double",
}
SAMPLE_SCHEMA = ", ".join(f"`{name}` {kind}" for name, kind in _COLUMNS.items())
_ARROW = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
}
ARROW_SCHEMA = pa.schema([(name, _ARROW[kind]) for name, kind in _COLUMNS.items()])


def chosen(listed: Iterable[str], from_ms: int, to_ms: int) -> list[str]:
    """Of the names in storage those of objects with samples of this time, in order."""
    places = {name: place for name in listed if (place := load_history_place(name)) is not None}
    return sorted(
        name for name, place in places.items() if place.to_ms >= from_ms and place.from_ms <= to_ms
    )


def read_samples(
    session: SparkSession,
    volume: str | Path,
    objects: Sequence[str],
    settings: Settings,
    parallelism: int,
) -> DataFrame:
    """Rows of all samples in these objects: brokers, their bundles, and hot topics of these."""
    tasks = max(1, min(len(objects), TASKS_PER_SLOT * parallelism))
    names = session.createDataFrame([(name,) for name in objects], "name string")
    rows = names.repartition(tasks).mapInArrow(SampleReader(str(volume), settings), SAMPLE_SCHEMA)
    return rows.dropDuplicates(["kind", "broker", "at_ms", "bundle", "topic"])


@dataclass(frozen=True, slots=True)
class SampleReader:
    """What a task does: from names of objects to rows."""

    volume: str
    settings: Settings

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        plain = replace(self.settings, bundle_cost=0.0)
        with VolumeFiles(self.volume) as files:
            for batch in batches:
                for name in batch.column("name").to_pylist():
                    rows = self._rows(files, name, plain)
                    yield pa.RecordBatch.from_pylist(list(rows), schema=ARROW_SCHEMA)

    def _rows(self, files: VolumeFiles, name: str, plain: Settings) -> Iterator[dict[str, Any]]:
        try:
            data = unpacked(files.read(name))
        except FileNotFoundError:
            return  # the leader has collected it since it was listed
        except (StorageError, StoreError):
            yield _damaged(name, 0)
            return
        for at, sample in enumerate(read_lines(data)):
            if isinstance(sample, StoreError):
                yield _damaged(name, at)
            else:
                yield from _rows_of(sample, self.settings, plain)


def unpacked(data: bytes) -> bytes:
    """The lines of an object. Raises StoreError if it is damaged or unpacks to too much."""
    unpacking = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        lines = unpacking.decompress(data, OBJECT_BYTES_MAX)
    except zlib.error as error:
        raise StoreError(f"load history: an object is damaged: {error}") from error
    if not unpacking.eof:
        raise StoreError(f"load history: an object is cut off, or above {OBJECT_BYTES_MAX} bytes")
    return lines


def _damaged(name: str, line: int) -> dict[str, Any]:
    return {"kind": DAMAGED, "at_ms": line, "broker": name}


def _rows_of(sample: LoadSample, settings: Settings, plain: Settings) -> Iterator[dict[str, Any]]:
    when = {"at_ms": sample.at_ms, "seconds": sample.seconds, "broker": sample.broker}
    yield when | {
        "kind": BROKER,
        **_rates(sample.rates, plain),
        "cpu": sample.cpu,
        "cpu_limit": sample.cpu_limit,
        "memory_share": sample.memory / sample.memory_limit if sample.memory_limit else 0.0,
    }
    for bundle in sample.bundles:
        which = when | {"bundle": bundle.name}
        rates = _rates(bundle.rates, settings)
        yield which | {"kind": BUNDLE, "hot": bool(bundle.hot), **rates}
        for topic in bundle.hot:
            yield which | {
                "kind": TOPIC,
                "topic": topic.name,
                "position": topic.position,
                **_rates(topic.rates, plain),
            }


def _rates(rates: Rates, settings: Settings) -> dict[str, float]:
    return {
        "messages_in": rates.messages_in,
        "messages_out": rates.messages_out,
        "bytes_in": rates.bytes_in,
        "bytes_out": rates.bytes_out,
        "load": cost(rates, settings),
    }
