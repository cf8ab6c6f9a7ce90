"""The sources in the form that Spark calls.

Spark makes the readers in Python processes beside the driver: one for planning, which lives as long as the query, and
another that is pickled for the tasks. So nothing is opened before planning begins, and a task gets all it needs with
its reader and its partition.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import closing
from typing import TYPE_CHECKING, ClassVar, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType
from typing_extensions import override

from sidecar.errors import ConfigError
from sidecar.spark.query.offsets import START_OVER, begin, ended, kept, parsed
from sidecar.spark.query.options import Broker, Query, parse_options
from sidecar.spark.query.task import Counted, CountedRange, begin_ids, read_span
from sidecar.spark.ranges.broker import patiently
from sidecar.spark.ranges.walk import Offsets, RangeReader, Reached, Span, Walk, spans

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Accumulator

    from sidecar.core.books import Books


class _Source(DataSource):
    broker: ClassVar[Broker]
    accumulator: ClassVar[Accumulator[Counted] | None] = None
    """Collects the outcomes of messages; None without a listener."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._ddl = parse_options(self.broker, options, stream=None).ddl

    @classmethod
    def name(cls) -> str:
        return f"sidecar-{cls.broker}"

    def schema(self) -> str:
        return self._ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        return QueryReader(self._query(schema, stream=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        return QueryStreamReader(self._query(schema, stream=True), self.accumulator)

    def _query(self, schema: StructType, *, stream: bool) -> Query:
        query = parse_options(self.broker, self.options, stream=stream)
        if tuple(schema.fieldNames()) != query.columns:
            raise ConfigError(f"{self.name()} source: choose columns with the option columns, not with schema()")
        return query


class KafkaQuerySource(_Source):
    """``format("sidecar-kafka")``."""

    broker = "kafka"


class RocketMqQuerySource(_Source):
    """``format("sidecar-rocketmq")``."""

    broker = "rocketmq"


BATCH_ID: Final = "streaming.sql.batchId"
SOURCES: Final = (KafkaQuerySource, RocketMqQuerySource)


def counted(source: type[DataSource], accumulator: Accumulator[Counted]) -> type[DataSource]:
    """This source for queries whose tasks report the outcomes of messages; Spark pickles it by value."""
    return type(source.__name__, (source,), {"accumulator": accumulator})


def walk_of(query: Query) -> Walk:
    """The rules of a query's walk."""
    key = "the option on_gap"
    return Walk(query.broker, query.on_gap, "the option topics", key, START_OVER, query.offsets_max, query.log)


class QueryReader(DataSourceReader):
    """All messages between start and end of the options, or the ends of the logs at the moment of planning."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def partitions(self) -> list[InputPartition]:
        """A partition for each log with messages; raises like `await_cluster`, or if `start` or `end` does not fit."""
        broker, end = self._query.broker, self._query.end
        with closing(broker.logs()) as logs:

            def plan() -> list[Span]:
                first, bounds = begin(logs, self._query.start), logs.bounds()
                bounds = bounds if end is None else ended(logs, bounds, first.firsts, end)
                return spans(first, walk_of(self._query).advance(logs, first, bounds, None))

            return [InputPartition(span) for span in patiently(plan, broker.start_timeout_s)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_span(self._query, partition.value) if partition.value is not None else iter(())


class QueryStreamReader(RangeReader):
    """Micro-batches of a query."""

    def __init__(self, query: Query, accumulator: Accumulator[Counted] | None = None) -> None:
        super().__init__()
        self._query = query
        self._accumulator = accumulator

    @property
    @override
    def _walk(self) -> Walk:
        return walk_of(self._query)

    @override
    def _parsed(self, offsets: Offsets) -> Reached:
        return parsed(offsets)

    @override
    def _kept(self, reached: Reached) -> Offsets:
        return kept(reached)

    def initialOffset(self) -> Offsets:  # noqa: N802  # Spark's name
        """The start of a new query, valid until the first micro-batch is planned, whose offsets have it."""
        name = secrets.token_hex(8) if self._query.keeps_ids else ""
        return kept(self._patiently(lambda: begin(self._logs, self._query.start, name)))

    @override
    def _spans(self, start: Offsets, end: Offsets) -> list[Span]:
        """The ranges; the windows before first ranges are durable."""
        found = super()._spans(start, end)
        begin_ids(self._query, found)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_span(self._query, partition.value, self._teller(partition.value))

    def _teller(self, span: Span) -> Callable[[Books], None] | None:
        accumulator, context = self._accumulator, TaskContext.get()
        if accumulator is None or context is None:
            return None
        query_id, batch = (context.getLocalProperty(name) for name in ("sql.streaming.queryId", BATCH_ID))
        if query_id is None or batch is None:
            return None
        place = CountedRange(query_id, int(batch), span.tp, span.start, span.expired)
        return lambda books: accumulator.add({place: books})
