"""The data source `magnetar-segments`: stored entries as a DataFrame.

Owns: options, schema, partitions and push-down of the PySpark data source. Imports: pyspark,
pyarrow, inputs, rows, bounds. Options:
    volume   the cluster's volume, at the same place on driver and executors topic
    full name of the topic plan     what to read, `inputs.encode_plan(groups)`: the driver has
    chosen it from manifests and sealed log files view     `entries` (default): a row per stored
    entry; `messages`: a row per decidable message (see phases), without payload columns
    comma-separated columns of the `entries` view (default: all but payload); there is no other way
    to prune columns here pushdown `true` lets filters on ledger, entry, event_time and publish_time
    skip what cannot match (`entries` view only). Use such a
             DataFrame in one query: PySpark 4.3 keeps a relation's pushed filters for later queries
             of the same DataFrame, which then miss rows. Off by default for that reason.
Invariants: one partition per group of the plan, so that phase 2 finds the rows phase 1 has
numbered; filters only skip what cannot match; everything that travels to executors is plain data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from magnetar.errors import InvalidRequest
from magnetar_jobs.bounds import Bounds, bounds_of
from magnetar_jobs.group_reading import read_group
from magnetar_jobs.inputs import Group, decode_plan, encode_plan
from magnetar_jobs.phases import MESSAGE_SCHEMA
from magnetar_jobs.rows import ENTRY_COLUMNS, entry_batch, message_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

NAME = "magnetar-segments"
ENTRIES, MESSAGES = "entries", "messages"
METADATA_COLUMNS = frozenset({"key", "event_time", "publish_time"})
DEFAULT_COLUMNS = tuple(column for column in ENTRY_COLUMNS if column != "payload")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options, parsed."""

    volume: str
    topic: str
    groups: tuple[Group, ...]
    view: str
    columns: tuple[str, ...]
    pushdown: bool = False

    @staticmethod
    def parse(options: dict[str, str]) -> SourceOptions:
        """Raises InvalidRequest naming option, value and remedy."""
        missing = [name for name in ("volume", "topic", "plan") if not options.get(name)]
        if missing:
            raise InvalidRequest(
                f"{NAME}: option {missing[0]!r} is not set; give volume, topic and plan"
            )
        view = options.get("view", ENTRIES)
        if view not in (ENTRIES, MESSAGES):
            raise InvalidRequest(
                f"{NAME}: view {view!r} is not offered; use {ENTRIES} or {MESSAGES}"
            )
        columns = (
            tuple(options["columns"].split(",")) if options.get("columns") else DEFAULT_COLUMNS
        )
        unknown = [column for column in columns if column not in ENTRY_COLUMNS]
        if unknown:
            raise InvalidRequest(
                f"{NAME}: column {unknown[0]!r} is not known; choose from "
                f"{', '.join(ENTRY_COLUMNS)}"
            )
        return SourceOptions(
            options["volume"],
            options["topic"],
            decode_plan(options["plan"]),
            view,
            columns,
            options.get("pushdown") == "true",
        )


class GroupPartition(InputPartition):  # type: ignore[misc]  # pyspark's own annotations stop at Any
    """One group: the unit of a task."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.number)
        self.group = group


class SegmentReader(DataSourceReader):  # type: ignore[misc]  # pyspark's own annotations stop at Any
    """Plans groups on the driver and reads them on executors."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._bounds = Bounds()

    def partitions(self) -> list[InputPartition]:
        return [GroupPartition(group) for group in self._options.groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, GroupPartition)
        options, group = self._options, partition.group
        if options.view == MESSAGES:
            yield from message_batches(
                read_group(
                    options.volume, options.topic, group, Bounds(), metadata=False, deciding=True
                ),
                group.number,
            )
            return
        metadata = not METADATA_COLUMNS.isdisjoint(options.columns)
        for rows in read_group(
            options.volume, options.topic, group, self._bounds, metadata=metadata
        ):
            yield entry_batch(rows, options.topic, options.columns)


class FilteringSegmentReader(SegmentReader):
    """Also takes filters. Only for the `entries` view: the other one numbers its rows, so
    nothing may be skipped there."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow what is read. Every filter is given back: statistics skip stretches, Spark
        decides about rows."""
        self._bounds = bounds_of(filters)
        return filters


class SegmentSource(DataSource):  # type: ignore[misc]  # pyspark's own annotations stop at Any
    """`spark.read.format("magnetar-segments")`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        options = SourceOptions.parse(dict(self.options))
        if options.view == MESSAGES:
            return MESSAGE_SCHEMA
        return ", ".join(f"`{column}` {ENTRY_COLUMNS[column]}" for column in options.columns)

    def reader(self, schema: StructType) -> SegmentReader:  # noqa: ARG002 - the schema is this class's own
        options = SourceOptions.parse(dict(self.options))
        return (
            FilteringSegmentReader(options)
            if options.pushdown and options.view == ENTRIES
            else SegmentReader(options)
        )


def register_source(session: SparkSession) -> None:
    """Make the source known, once per session."""
    session.dataSource.register(SegmentSource)


def read_topic(
    session: SparkSession,
    volume: str | Path,
    topic: str,
    groups: Iterable[Group],
    *,
    view: str = ENTRIES,
    columns: Iterable[str] = DEFAULT_COLUMNS,
    pushdown: bool = False,
) -> DataFrame:
    """A topic's stored entries, or messages, as a DataFrame of a session that knows the source."""
    reader = (
        session.read.format(NAME)
        .option("volume", str(volume))
        .option("topic", topic)
        .option("plan", encode_plan(groups))
    )
    return (
        reader.option("view", view)
        .option("columns", ",".join(columns))
        .option("pushdown", str(pushdown).lower())
        .load()
    )
