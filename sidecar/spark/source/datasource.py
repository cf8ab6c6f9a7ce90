"""The source in the form that Spark calls. The module `planner` decides about rows.

Spark creates a `DefaultSource` in a Python process beside the driver, and from it a reader for planning, which lives as
long as the query, and another that is pickled for the tasks. So a reader has only its options until planning begins,
and a task gets all it needs with its partition.

Of the features that Spark 4.2 offers to Python sources, it uses read limits, `Trigger.AvailableNow` and the latest
offset for progress. Columns are not pushed down at all, hence the option `columns`. Filters are only for batch reads,
and a reader that takes them fails unless `spark.sql.python.filterPushdown.enabled` is set, which is not the default;
hence the options `groups` and `tags`, for both kinds of reads, and a reader that takes filters only where Spark asks.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    In,
    InputPartition,
    IsNull,
)
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from sidecar.errors import ConfigError
from sidecar.spark.source.options import Limit, Options, parse
from sidecar.spark.source.planner import Offsets, Planner, Share, pack
from sidecar.spark.workers import freeze_modules
from sidecar.storage import Root, storage_of
from sidecar.zone import Tail, acknowledge, acknowledged
from sidecar.zone.index import Wanted
from sidecar.zone.layout import MANIFEST
from sidecar.zone.schema import DDL_OF


class Consumer:
    """Acknowledges under a name; without a name, does nothing."""

    def __init__(self, root: Root, name: str | None) -> None:
        self._root = root
        self._name = name
        self._read: dict[str, int] | None = None
        self._failed = ""

    def register(self) -> None:
        """Register before the first read: from now on, data stays until it is acknowledged.

        While there is no zone, nothing is written: the folder may be the mount point of one.
        """
        if self._name is None or self._read is not None or not self._is_there():
            return
        try:
            acknowledge(self._root, self._name, {})
        except OSError as error:
            raise ConfigError(
                f"sidecar source: consumer {self._name} cannot be registered in {self._root}/ack: "
                f"{error.strerror or error}. Make this folder writable for the driver, or leave out the option "
                "consumer: then retention does not know this query"
            ) from error
        self._read = {}

    def _is_there(self) -> bool:
        return bool(Tail(self._root).writers())

    def check_new(self, floors: Mapping[str, int]) -> None:
        """Refuse a name under which another query, or another checkpoint of this one, has already read."""
        read = acknowledged(self._root).get(self._name, {}) if self._name is not None else {}
        ahead = [writer for writer, seq in read.items() if seq > floors.get(writer, -1)]
        if ahead:
            raise ConfigError(
                f"sidecar source: consumer {self._name} has read writer {ahead[0]} up to number {read[ahead[0]]} "
                "already, and this query has a new checkpoint. Give it another name, or remove "
                f"ack/{self._name}.json in the zone"
            )

    def has_read(self, offsets: Mapping[str, int]) -> None:
        """Acknowledge all up to these offsets; a failure is logged once, and a later call repairs it."""
        if self._name is None or offsets == self._read or not self._is_there():
            return
        try:
            acknowledge(self._root, self._name, offsets)
        except OSError as error:
            if str(error) != self._failed:
                _LOG.warning("consumer %s could not acknowledge, and will try again: %s", self._name, error)
            self._failed = str(error)
            return
        self._read, self._failed = dict(offsets), ""


_ASKS_FOR_FILTERS: Final = "pyspark.sql.worker.data_source_pushdown_filters"
_LOG = logging.getLogger(__name__)


class DefaultSource(DataSource):
    """``format("sidecar")``: a landing zone, batch and streaming."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._columns = parse(options, stream=True).columns

    @classmethod
    def name(cls) -> str:
        return "sidecar"

    def schema(self) -> str:
        return ", ".join(DDL_OF[name] for name in self._columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check(schema)
        return (FilteredReader if _takes_filters() else ZoneReader)(parse(self.options, stream=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        self._check(schema)
        return ZoneStreamReader(parse(self.options, stream=True))

    def _check(self, schema: StructType) -> None:
        if tuple(schema.fieldNames()) != self._columns:
            raise ConfigError("sidecar source: choose columns with the option columns, not with schema()")


class _Reader:
    def __init__(self, options: Options) -> None:
        self._options = options

    def _make_planner(self) -> Planner:
        options = self._options
        return Planner(options.path, wanted=options.wanted, dedup=options.dedup, report=_LOG.warning)

    def _partitions(self, shares: list[Share]) -> list[InputPartition]:
        return [InputPartition(task) for task in pack(shares, self._options.parallelism)]

    def _read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for share in partition.value or ():
            yield from share.read(self._options.path, self._options.columns)
        freeze_modules()


class ZoneReader(_Reader, DataSourceReader):
    """All rows of a zone at the moment of planning."""

    def partitions(self) -> list[InputPartition]:
        """The partitions that tasks read."""
        if not storage_of(self._options.path).has(MANIFEST):
            raise ConfigError(f"sidecar source: there is no landing zone at {self._options.path}")
        return self._partitions(self._make_planner().everything())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(partition)


class FilteredReader(ZoneReader):
    """The reader where Spark reports filters: those by group and tag choose what is read."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Read less; Spark applies all filters again."""
        for one in filters:
            wanted = self._options.wanted.both(_wanted_by(one))
            self._options = replace(self._options, wanted=wanted)
        return filters


def _takes_filters() -> bool:
    """Whether Spark reports filters in this process: otherwise it refuses a reader that takes them.

    Its daemon imports what the process does; without a daemon, that is the main module.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return _ASKS_FOR_FILTERS in sys.modules or getattr(main, "name", None) == _ASKS_FOR_FILTERS


def _wanted_by(one: Filter) -> Wanted:
    """The groups and tags of the rows that may pass a filter."""
    match one:
        case EqualTo(("tag",), str(name)):
            return Wanted.of(None, {name})
        case In(("tag",), names):
            return Wanted.of(None, {name for name in names if name is not None})
        case IsNull(("tag",)):
            return Wanted.of(None, {None})
        case EqualTo(("group",), str(name)):
            return Wanted.of({name}, None)
        case In(("group",), names):
            return Wanted.of({name for name in names if name is not None}, None)
    return Wanted()


class ZoneStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches of a zone, which may be missing at first.

    Whenever Spark names a start, all data up to it is done and in the checkpoint, and is acknowledged. `commit` alone
    is not enough: it is called only when the next micro-batch is planned, so a writer that waits for room would wait
    forever, and never for the last micro-batch of a `Trigger.AvailableNow`.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._planner: Planner | None = None
        self._consumer = Consumer(options.path, options.consumer)
        self._target = options.until
        self._first: Offsets | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802
        """The start of a new query, and of a replayed first micro-batch."""
        planner = self._start()
        self._first = planner.floors() if self._options.start is None else self._options.start
        return self._first

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.limit
        if limit.rows is not None:
            return ReadMaxRows(limit.rows)
        return ReadMaxFiles(limit.files) if limit.files is not None else ReadMaxBytes(limit.bytes or 0)

    def latestOffset(self, start: Mapping[str, int], limit: ReadLimit) -> Offsets:  # noqa: N802
        """The end of the next micro-batch."""
        planner = self._start()
        if start == self._first:  # not in `initialOffset`: called also for a replay, which may be acknowledged
            self._consumer.check_new(start)
        self._consumer.has_read(start)
        return planner.latest(start, _limit(limit), self._target)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read the present data and nothing later; with the option `until`, only up to that."""
        planner = self._start()
        if self._options.until is None:
            self._target = planner.heads()

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802
        """The end of the known zone, for the query's progress."""
        return (self._planner and self._planner.known()) or None

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[InputPartition]:
        """The partitions that the tasks of a micro-batch read."""
        planner = self._start()
        self._consumer.has_read(start)
        return self._partitions(planner.plan(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(partition)

    def commit(self, end: Mapping[str, int]) -> None:
        """Acknowledge a micro-batch that has ended."""
        self._consumer.has_read(end)

    def _start(self) -> Planner:
        self._consumer.register()
        if self._planner is None:
            self._planner = self._make_planner()
        return self._planner


def _limit(limit: ReadLimit) -> Limit:
    """The limit from Spark's object; with `Trigger.Once` Spark asks for all, whatever the options say."""
    if isinstance(limit, ReadMaxRows):
        return Limit(rows=limit.max_rows)
    if isinstance(limit, ReadMaxFiles):
        return Limit(files=limit.max_files)
    return Limit(bytes=limit.max_bytes) if isinstance(limit, ReadMaxBytes) else Limit()
