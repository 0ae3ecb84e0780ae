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

PLACES = {"volume", "store", "storetls", "brokerurl"}


class TopicReader(DataSourceReader):  # type: ignore[misc]  # pyspark's own annotations stop at Any
    """Plans on the driver, reads on executors."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._reading = TaskReading.of(options)

    def partitions(self) -> list[InputPartition]:
        bounds = self._reading.selection.bounds
        return [
            TaskPartition(task)
            for task in asyncio.run(_planned(self._options))
            if any(bounds.admits_span(piece.first, piece.last) for piece in task.group.pieces)
        ]

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


async def _planned(options: ReadOptions) -> list[TopicTask]:
    async with open_planner(options) as planner:
        return await planner.tasks()


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
        columns = columns_of(self._read_options())
        return ", ".join(f"`{column}` {kind}" for column, kind in columns.items())

    def reader(self, schema: StructType) -> TopicReader:  # noqa: ARG002 - the schema is this class's own
        options = self._read_options()
        return FilteringTopicReader(options) if options.pushdown else TopicReader(options)

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: ARG002 - as above
        return TopicStreamReader(self._read_options())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from magnetar_jobs.topic_writer import TopicWriter, WriteOptions, check_schema

        if overwrite:
            raise InvalidRequest(f"{NAME}: mode overwrite is not offered; use mode append")
        check_schema(schema)
        return TopicWriter(WriteOptions.parse(self.options))
