"""The sources in the form that Spark calls.

Spark makes the readers in Python processes beside the driver: one for planning, which lives as long as the query, and
another that is pickled for the tasks. So nothing is opened before planning begins, and a task gets all it needs with
its reader and its partition.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from sidecar.errors import ConfigError
from sidecar.spark.query.offsets import Offsets, Span, advance, begin, behind, ended, latest, spans
from sidecar.spark.query.options import Broker, Query, parse_options
from sidecar.spark.query.task import Counted, CountedRange, begin_ids, read_span
from sidecar.spark.ranges.broker import PATIENCE_S, LogExtent, Logs, by_partition, patiently, report_expired

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Accumulator

    from sidecar.core.books import Books
    from sidecar.core.records import TopicPartition

T = TypeVar("T")

ASK_EVERY_S = 0.1
"""Interval of requests, in seconds: Spark asks for new messages 100 times a second while there are none."""


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


SOURCES: Final = (KafkaQuerySource, RocketMqQuerySource)


def counted(source: type[DataSource], accumulator: Accumulator[Counted]) -> type[DataSource]:
    """This source for queries whose tasks report the outcomes of messages; Spark pickles it by value."""
    return type(source.__name__, (source,), {"accumulator": accumulator})


class QueryReader(DataSourceReader):
    """All messages between start and end of the options, or the ends of the logs at the moment of planning."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def partitions(self) -> list[InputPartition]:
        """A partition for each log with messages.

        Raises:
            SidecarError: The broker does not answer for the whole start-up time, refuses, or lacks a topic.
            ConfigError: `start` or `end` does not fit the logs.
        """
        broker, end = self._query.broker, self._query.end
        with closing(broker.logs()) as logs:

            def plan() -> list[Span]:
                first, bounds = begin(logs, self._query.start), logs.bounds()
                bounds = bounds if end is None else ended(logs, bounds, by_partition(first["from"]), end)
                return spans(first, advance(logs, first, None, bounds))

            return [InputPartition(span) for span in patiently(plan, broker.start_timeout_s)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_span(self._query, partition.value, None) if partition.value is not None else iter(())


class QueryStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches; see `offsets` for the ranges."""

    def __init__(self, query: Query, accumulator: Accumulator[Counted] | None = None) -> None:
        self._query = query
        self._accumulator = accumulator
        self._target: Mapping[TopicPartition, LogExtent] | None = None
        self._asked_at_s = -ASK_EVERY_S
        self._ends: Offsets | None = None
        self._patience_s = query.broker.start_timeout_s
        self._planned: Offsets | None = None
        """The end that was planned last; a micro-batch with another end is a replay of an earlier process's."""

    @cached_property
    def _logs(self) -> Logs:
        return self._query.broker.logs()

    def initialOffset(self) -> Offsets:  # noqa: N802
        """The start of a new query, valid until the first micro-batch is planned, whose offsets have it.

        Raises:
            SidecarError: Like `latestOffset`.
        """
        name = secrets.token_hex(8) if self._query.keeps_ids else ""
        return self._patiently(lambda: begin(self._logs, self._query.start, name))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._query.offsets_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Leave messages that arrive from now on to the next run."""
        self._target = self._patiently(self._bounds)

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802
        """The latest offsets that are known, for the query's progress."""
        return self._ends

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """The end of the next micro-batch.

        Raises:
            SidecarError: A topic was lost or created again, or messages expired; or the cluster does not answer for
                30 s, or for the start-up time if it has not answered yet.
        """
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None

        def plan() -> Offsets:
            bounds = self._bounds()
            if self._target is not None:
                bounds = {
                    tp: LogExtent(bounds[tp].low, found.high) for tp, found in self._target.items() if tp in bounds
                }
            self._ends = latest(bounds)
            return advance(self._logs, start, most, bounds, self._query.on_gap)

        self._planned = self._patiently(plan)
        return self._planned

    def stop(self) -> None:
        self._logs.close()

    def _patiently(self, plan: Callable[[], T]) -> T:
        found = patiently(plan, self._patience_s)
        self._patience_s = PATIENCE_S
        return found

    def _bounds(self) -> Mapping[TopicPartition, LogExtent]:
        time.sleep(max(0.0, self._asked_at_s + ASK_EVERY_S - time.monotonic()))
        self._asked_at_s = time.monotonic()
        return self._logs.bounds()

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """A partition for each log with messages.

        Raises:
            SidecarError: Some of their messages, which an earlier process has planned, expired meanwhile; or the folder
                of ids cannot be written.
        """
        found = spans(start, end)
        if end != self._planned:
            begun = {span.tp: span.start for span in found}
            found = spans(start, end, behind(begun, self._patiently(self._bounds), self._query.on_gap))
        for span in found:
            if span.expired:
                report_expired(span.tp, span.start - span.expired, span.start, self._query.log)
        begin_ids(self._query, found)
        return [InputPartition(span) for span in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        query_id = context and context.getLocalProperty("sql.streaming.queryId")
        assert query_id, "a task of a stream belongs to a query"
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        return read_span(self._query, partition.value, query_id, self._teller(query_id, batch, partition.value))

    def _teller(self, query_id: str, batch: str | None, span: Span) -> Callable[[Books], None] | None:
        accumulator = self._accumulator
        if accumulator is None or batch is None:
            return None
        place = CountedRange(query_id, int(batch), span.tp, span.start, span.expired)
        return lambda books: accumulator.add({place: books})
