"""Kafka for Spark without a jar: a streaming source on the daemon's own client, where no connector can be had.

Offsets are those of Spark's Kafka connector, as JSON: topic, partition, next offset. A range is read by one task, in
order. It costs 1.1 to 1.5 times as much as the connector.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import confluent_kafka as ck
import orjson
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from sidecar.config.source import KafkaSource
from sidecar.errors import StateError, UnavailableError
from sidecar.sources.kafka_columns import KafkaColumns
from sidecar.sources.kafka_config import client_config
from sidecar.sources.kafka_start import is_read
from sidecar.spark.run.folder import read, write

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "sidecar_kafka"
REQUEST_S = 10.0
SILENCE_S = 60.0
"""So long nothing may come of a range that has more: then the task fails, and is tried again."""
CHUNK = 2_000
QUEUE_KBYTES = 8 << 10

Offsets: TypeAlias = dict[str, dict[str, int]]
_TYPES = {
    "timestamp_ms": "bigint",
    "key": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "value": "binary",
}
_COLUMNS = KafkaColumns()


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
    stood: Offsets | None

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
        self._target: Offsets | None = None

    # On the driver

    def initialOffset(self) -> Offsets:  # noqa: N802  # Spark's names, here and below
        """Where a new checkpoint begins, the same at every start."""
        path = self._r.folder / "first"
        if not path.exists():
            write(path, orjson.dumps(self._first()), exclusive=True)
        return orjson.loads(read(path))  # type: ignore[no-any-return]

    def _first(self) -> Offsets:
        start, stood = self._r.kafka.start, self._r.stood
        with _client(self._r.kafka) as client:
            if stood is None and isinstance(start, int):
                return _at_time(client, self._r.kafka, start)
            found: Offsets = {}
            for topic, partition, low, high in _bounds(client, self._r.kafka):
                at = low if stood is not None or start == "earliest" else high
                asked = (stood or {}).get(topic, {}).get(str(partition), -1)
                found.setdefault(topic, {})[str(partition)] = asked if asked >= 0 else at
            return found

    def _ends(self) -> Offsets:
        found: Offsets = {}
        with _client(self._r.kafka) as client:
            for topic, partition, _, high in _bounds(client, self._r.kafka):
                found.setdefault(topic, {})[str(partition)] = high
        return found

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """A bound for each micro-batch."""
        return ReadMaxRows(self._r.rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What comes from now on is for the next time."""
        self._target = self._ends()

    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        """For the lag."""
        return self._ends()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
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

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[Range]:
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
        with _client(self._r.kafka) as client:
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


@contextlib.contextmanager
def _client(kafka: KafkaSource) -> Iterator[ck.Consumer]:
    """A consumer that never joins its group, and ends with the block."""
    ours = {
        "group.id": kafka.group_id,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "fetch.queue.backoff.ms": 10,
        "queued.max.messages.kbytes": QUEUE_KBYTES,
    }
    consumer = ck.Consumer({**client_config(kafka), **ours})
    try:
        yield consumer
    finally:
        consumer.close()


def _bounds(client: ck.Consumer, kafka: KafkaSource) -> Iterator[tuple[str, int, int, int]]:
    """Topic, partition, first offset and end of all that is read.

    Raises:
        UnavailableError: The broker does not answer.
    """
    try:
        known = client.list_topics(timeout=REQUEST_S).topics
        for name in sorted(known):
            if any(is_read(topic, name) for topic in kafka.topics):
                for partition in sorted(known[name].partitions):
                    bounds = client.get_watermark_offsets(ck.TopicPartition(name, partition), timeout=REQUEST_S)
                    if bounds is None:
                        raise UnavailableError(f"the broker does not tell where {name}[{partition}] ends")
                    yield name, partition, *bounds
    except ck.KafkaException as error:
        raise UnavailableError(f"the broker does not answer: {error.args[0].str()}") from error


def _at_time(client: ck.Consumer, kafka: KafkaSource, at_ms: int) -> Offsets:
    found: Offsets = {}
    for topic, partition, _, high in list(_bounds(client, kafka)):
        (at,) = client.offsets_for_times([ck.TopicPartition(topic, partition, at_ms)], timeout=REQUEST_S)
        found.setdefault(topic, {})[str(partition)] = at.offset if at.offset >= 0 else high
    return found


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
