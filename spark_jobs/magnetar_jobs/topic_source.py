"""The data source `magnetar`: topics as DataFrames.

Owns: `MagnetarDataSource`, its schema, and the reader of batch queries. Imports: pyspark,
topic_options, topic_plan, topic_reading, topic_stream, bounds. Invariants: the driver plans, tasks only read
the volume; what a query sees is planned once; filters that are pushed down only skip what cannot
match; what travels to executors is plain data without credentials.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from magnetar.errors import InvalidRequest
from magnetar_jobs.bounds import bounds_of, keys_of
from magnetar_jobs.topic_options import NAME, ReadOptions
from magnetar_jobs.topic_plan import TopicTask, open_planner
from magnetar_jobs.topic_reading import TaskPartition, TaskReading, columns_of
from magnetar_jobs.topic_stream import TopicStreamReader

if TYPE_CHECKING:
    import pyarrow as pa

CHECKPOINT = "checkpointlocation"
"""Spark's, which it shows to sinks."""
PLACES = {"volume", "store", "storetls", "brokerurl"}


class TopicReader(DataSourceReader):  # type: ignore[misc]  # pyspark's own annotations stop at Any
    """Plans on the driver, reads on executors."""

    def __init__(self, options: ReadOptions, value_type: str = "") -> None:
        """`value_type`: that of values by a schema, as the query has it."""
        self._options, self._value_type = options, value_type
        self._reading = TaskReading.of(options)

    def partitions(self) -> list[InputPartition]:
        bounds = self._reading.selection.bounds
        return [
            TaskPartition(task)
            for task in asyncio.run(self._planned())
            if any(bounds.admits_span(piece.first, piece.last) for piece in task.group.pieces)
        ]

    async def _planned(self) -> list[TopicTask]:
        async with open_planner(self._options) as planner:
            return await planner.with_values(await planner.tasks(), self._value_type)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TaskPartition):  # else there are none
            yield from self._reading.batches(partition.task)


class FilteringTopicReader(TopicReader):
    """Also takes filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow what is read. Every filter is given back: Spark decides about rows."""
        self._reading = replace(
            self._reading,
            selection=replace(
                self._reading.selection, bounds=bounds_of(filters), keys=keys_of(filters)
            ),
        )
        return filters


async def _value_column(options: ReadOptions) -> str:
    async with open_planner(options) as planner:
        return (await planner.value_column()).sql


def _value_type(options: ReadOptions, schema: StructType) -> str:
    """The type of values by a schema, in a query whose schema that is; "" for bytes."""
    if not options.by_schema or "value" not in schema.names:
        return ""
    return str(schema["value"].dataType.simpleString())


class MagnetarDataSource(DataSource):  # type: ignore[misc]  # pyspark's own annotations stop at Any
    """`spark.dataSource.register(MagnetarDataSource)`, then `format("magnetar")`."""

    cluster: ClassVar[Mapping[str, str]] = {}
    """Options that say where the cluster is, for who gives none of them."""

    @classmethod
    def of(cls, **cluster: str) -> type[MagnetarDataSource]:
        """The source of that cluster; others can be named still."""
        return type(cls.__name__, (cls,), {"cluster": cluster})

    @classmethod
    def name(cls) -> str:
        return NAME

    def _read_options(self) -> ReadOptions:
        elsewhere = {name.lower() for name in self.options} & PLACES
        return ReadOptions.parse({**({} if elsewhere else self.cluster), **self.options})

    def schema(self) -> str:
        options = self._read_options()
        columns = columns_of(options)
        if options.by_schema and "value" in columns:
            columns["value"] = asyncio.run(_value_column(options))
        return ", ".join(f"`{column}` {kind}" for column, kind in columns.items())

    def reader(self, schema: StructType) -> TopicReader:
        options = self._read_options()
        kind = FilteringTopicReader if options.pushdown else TopicReader
        return kind(options, _value_type(options, schema))

    def streamReader(self, schema: StructType) -> TopicStreamReader:
        options = self._read_options()
        return TopicStreamReader(options, _value_type(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from magnetar_jobs.topic_writer import TopicWriter, WriteOptions, check_schema

        if overwrite:
            raise InvalidRequest(f"{NAME}: mode overwrite is not offered; use mode append")
        check_schema(schema)
        return TopicWriter(WriteOptions.parse(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from magnetar_jobs.stream_writer import TopicStreamWriter
        from magnetar_jobs.topic_writer import WriteOptions, check_schema

        if overwrite:
            raise InvalidRequest(f"{NAME}: output mode complete is not offered; use append")
        check_schema(schema)
        own = {name: value for name, value in self.options.items() if name.lower() != CHECKPOINT}
        return TopicStreamWriter(WriteOptions.parse(own))
