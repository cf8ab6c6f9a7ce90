"""Kafka for Spark without a jar: a streaming source on the daemon's own client, where no connector can be had.

Offsets are those of Spark's Kafka connector, as JSON: topic, partition, next offset. A range is read by one task, in
order. It costs 1.1 to 1.5 times as much as the connector.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka as ck
import orjson
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from sidecar.config.source import KafkaSource
from sidecar.core.records import TopicPartition
from sidecar.errors import StateError, UnavailableError
from sidecar.sources.kafka_columns import KafkaColumns
from sidecar.spark.run.broker import EARLIEST, Places, asking, bounds, by_topic, outsider
from sidecar.spark.run.folder import read, write

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "sidecar_kafka"
SILENCE_S = 60.0
"""So long nothing may come of a range that has more: then the task fails, and is tried again."""
CHUNK = 2_000
QUEUE_KBYTES = 8 << 10

_TYPES = {
    "timestamp_ms": "bigint",
    "key": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "value": "binary",
}
_COLUMNS = KafkaColumns()
_CLIENT = {
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "fetch.queue.backoff.ms": 10,
    "queued.max.messages.kbytes": QUEUE_KBYTES,
}


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read.

    Args:
        kafka: The source.
        folder: The run's folder, which keeps where a new checkpoint began.
        columns: Those that are asked for beside topic, partition and offset.
        rows_max: Of a micro-batch.
        stood: Where the daemon's consumer group stands, if it ever was.
    """

    kafka: KafkaSource
    folder: Path
    columns: tuple[str, ...]
    rows_max: int
    stood: Places | None

    @property
    def schema(self) -> str:
        """The columns as Spark writes them."""
        more = [f"{name} {_TYPES[name]}" for name in self.columns]
        return ", ".join(["topic string", "partition int", "offset bigint", *more])


@dataclass
class Range(InputPartition):
    """Offsets of one partition, `end` not included."""

    topic: str
    partition: int
    start: int
    end: int


class KafkaReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans ranges on the driver, reads them on executors.

    Args:
        reading: What is read.
        schema: The columns.
    """

    def __init__(self, reading: Reading, schema: StructType) -> None:
        self._r = reading
        self._schema = schema
        self._target: Places | None = None

    # On the driver

    def initialOffset(self) -> Places:  # noqa: N802  # Spark's names, here and below
        """Where a new checkpoint begins, the same at every start."""
        path = self._r.folder / "first"
        if not path.exists():
            write(path, orjson.dumps(self._first()), exclusive=True)
        return orjson.loads(read(path))  # type: ignore[no-any-return]

    def _first(self) -> Places:
        start, stood = self._r.kafka.start, self._r.stood
        found: dict[TopicPartition, int] = {}
        with asking(self._r.kafka) as offsets:
            for tp, (low, high) in bounds(offsets, self._r.kafka).items():
                if stood is not None:
                    at = stood.get(tp.topic, {}).get(str(tp.partition), EARLIEST)
                    found[tp] = at if at >= 0 else low
                elif isinstance(start, int):
                    later = offsets.at_time(tp, start)
                    found[tp] = high if later is None else later
                else:
                    found[tp] = low if start == "earliest" else high
        return by_topic(found)

    def _ends(self) -> Places:
        with asking(self._r.kafka) as offsets:
            return by_topic({tp: high for tp, (_, high) in bounds(offsets, self._r.kafka).items()})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """A bound for each micro-batch."""
        return ReadMaxRows(self._r.rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What comes from now on is for the next time."""
        self._target = self._ends()

    def reportLatestOffset(self) -> Places:  # noqa: N802
        """For the lag."""
        return self._ends()

    def latestOffset(self, start: Places, limit: ReadLimit) -> Places:  # noqa: N802
        """Where the next micro-batch ends; what lags most gets most.

        Raises:
            StateError: A topic or partition is gone, or ends before where it was read: it was made again.
        """
        ends = self._target or self._ends()
        lag: dict[tuple[str, str], int] = {}
        for topic, partition, at in _each(start):
            end = ends.get(topic, {}).get(partition, -1)
            if end < at:
                raise StateError(
                    f"{topic}[{partition}] ends at {end} and was read to {at}: it was deleted, or made again",
                    hint="begin anew with another spark.checkpoint",
                )
        for topic, partition, end in _each(ends):
            lag[topic, partition] = end - start.get(topic, {}).get(partition, 0)
        total = sum(lag.values())
        if isinstance(limit, ReadAllAvailable) or total <= self._r.rows_max:
            return ends
        share = {place: min(one, -(-self._r.rows_max * one // total)) for place, one in lag.items()}
        return {t: {p: end - lag[t, p] + share[t, p] for p, end in found.items()} for t, found in ends.items()}

    def partitions(self, start: Places, end: Places) -> Sequence[Range]:
        """A range for each partition that has more; a partition that is new begins at its start."""
        begun = {(topic, partition): at for topic, partition, at in _each(start)}
        ranges = [Range(topic, int(p), begun.get((topic, p), 0), last) for topic, p, last in _each(end)]
        return [one for one in ranges if one.end > one.start]

    # On an executor

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a range, in their order.

        Raises:
            UnavailableError: The broker does not give them.
        """
        assert isinstance(partition, Range)
        with outsider(self._r.kafka, **_CLIENT) as client:
            client.assign([ck.TopicPartition(partition.topic, partition.partition, partition.start)])
            for messages in _read_to(client, partition):
                yield self._batch(partition, messages)

    def _batch(self, found: Range, messages: list[ck.Message]) -> pa.RecordBatch:
        import pyarrow as pa

        values: dict[str, Any] = {
            "topic": [found.topic] * len(messages),
            "partition": [found.partition] * len(messages),
            "offset": list(_COLUMNS.offsets(messages)),
        }
        readers = {"timestamp_ms": _COLUMNS.timestamps, "key": _COLUMNS.keys, "value": _COLUMNS.values}
        for name in self._r.columns:
            values[name] = _headers(messages) if name == "headers" else list(readers[name](messages))
        schema = to_arrow_schema(self._schema)
        return pa.RecordBatch.from_arrays([pa.array(values[one.name], one.type) for one in schema], schema=schema)


def _headers(messages: list[ck.Message]) -> list[list[dict[str, Any]] | None]:
    rows = _COLUMNS.headers(messages)
    return [[{"key": key, "value": value} for key, value in row] if row else None for row in rows]


def _read_to(client: ck.Consumer, found: Range) -> Iterator[list[ck.Message]]:
    at = found.start
    while at < found.end:
        messages = _some(client)
        ends = [m.offset() or 0 for m in messages if _is_end(m)]
        for message in messages:
            error = message.error()
            if error is not None and not _is_end(message):
                raise UnavailableError(f"{found.topic}[{found.partition}]@{at} cannot be read: {error.str()}")
        good = [m for m in messages if m.error() is None]
        at = max([at, *ends, *((m.offset() or 0) + 1 for m in good[-1:])])
        within = [m for m in good if (m.offset() or 0) < found.end]
        if within:
            yield within


def _is_end(message: ck.Message) -> bool:
    error = message.error()
    return error is not None and error.code() == ck.KafkaError._PARTITION_EOF


def _some(client: ck.Consumer) -> list[ck.Message]:
    """What has come; `consume` waits for all that it is asked for, so the first one is awaited alone."""
    first = client.consume(1, SILENCE_S)
    if not first:
        raise UnavailableError(f"the broker has given nothing for {SILENCE_S:g} s")
    return [*first, *client.consume(CHUNK, 0)]


def _each(offsets: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[str, str, int]]:
    for topic, found in sorted(offsets.items()):
        for partition, offset in sorted(found.items()):
            yield topic, partition, offset


def kafka_source(reading: Reading) -> type[DataSource]:
    """A class for `spark.dataSource.register`; Spark pickles it with what is to be read."""

    class SidecarKafka(DataSource):
        """Kafka by the daemon's client."""

        @classmethod
        def name(cls) -> str:
            """As it is asked for."""
            return NAME

        def schema(self) -> str:
            """The columns that are asked for."""
            return reading.schema

        def streamReader(self, schema: StructType) -> KafkaReader:  # noqa: N802
            """The reader."""
            return KafkaReader(reading, schema)

    return SidecarKafka
