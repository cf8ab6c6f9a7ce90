"""All code that needs pyspark: the daemon imports none of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sidecar.spark.listener import QueryListener

__all__ = [
    "listen",
    "read",
    "read_kafka",
    "read_kafka_stream",
    "read_rocketmq",
    "read_rocketmq_stream",
    "read_stream",
    "register",
]


def read_stream(
    spark: SparkSession,
    zone: Path | str,
    *,
    groups: Sequence[str] | None = None,
    tags: Sequence[str | None] | None = None,
    columns: Sequence[str] | None = None,
    consumer: str | None = None,
    dedup: bool = True,
    max_files: int | None = None,
    max_rows: int | None = None,
    max_bytes: int | None = None,
    until: Mapping[str, int] | None = None,
    start: Mapping[str, int] | None = None,
    parallelism: int | None = None,
) -> DataFrame:
    """The rows of a landing zone as a stream, each once; the same as ``spark.readStream.format("sidecar")``.

    Args:
        spark: The session, classic or Connect.
        zone: A folder that driver and executors share, or ``s3://BUCKET/PREFIX``; it may not exist yet.
        groups: Wanted tag groups; others are not read. None for all.
        tags: Wanted tags, by the column `tag`; None among them for rows without one. None for all.
        columns: Wanted columns; others are not read. None for all.
        consumer: A name under which the query reports its progress. Without it retention does not know the query, and
            may remove data that it has not read once other consumers have. Two queries must never share a name, and a
            new checkpoint needs a new name.
        dedup: Whether messages that were landed again after a takeover are left out.
        max_files: Limit of batches in a micro-batch. Only one of the three limits may be given; 1,000 batches if none
            is.
        max_rows: Limit of rows in a micro-batch; a larger batch comes alone.
        max_bytes: Limit of file sizes in a micro-batch, in bytes; a larger batch comes alone.
        until: The last number to read of each writer; other writers are not read. None for all.
        start: The last number of each writer that a new query does not read; of other writers it reads all. None: what
            retention may have removed.
        parallelism: Limit of tasks in a micro-batch; None: by size and the driver's cores.
    """
    chosen = _options(groups, tags, columns, dedup=dedup, parallelism=parallelism)
    more = {
        "consumer": consumer,
        "maxFilesPerTrigger": max_files,
        "maxRowsPerTrigger": max_rows,
        "maxBytesPerTrigger": max_bytes,
        "until": None if until is None else json.dumps(dict(until)),
        "start": None if start is None else json.dumps(dict(start)),
    }
    chosen |= {name: str(value) for name, value in more.items() if value is not None}
    return _read_zone(spark, zone, chosen, stream=True)


def read(
    spark: SparkSession,
    zone: Path | str,
    *,
    groups: Sequence[str] | None = None,
    tags: Sequence[str | None] | None = None,
    columns: Sequence[str] | None = None,
    dedup: bool = True,
    parallelism: int | None = None,
) -> DataFrame:
    """All present rows of a landing zone, each once; the same as ``spark.read.format("sidecar")``.

    The arguments are those of `read_stream`. To count rows, only the column `offset` is enough.
    """
    chosen = _options(groups, tags, columns, dedup=dedup, parallelism=parallelism)
    return _read_zone(spark, zone, chosen, stream=False)


def read_kafka_stream(
    spark: SparkSession,
    *,
    state: Path | str | None = None,
    columns: Sequence[str] | None = None,
    max_offsets: int | None = None,
    config: Path | str | None = None,
    **keys: Any,
) -> DataFrame:
    """The messages of Kafka as a stream; the same as ``spark.readStream.format("sidecar-kafka")``.

    Args:
        spark: The session, classic or Connect.
        state: A folder that driver and executors share, in which ids are kept between micro-batches; needed with
            `dedup` by an id.
        columns: Wanted columns; others are not made. None for all.
        max_offsets: Limit of offsets in a micro-batch; 1,000,000 if it is None.
        config: A `sidecar.yaml` with source, tags and ids, in place of `keys`; but `start` may be given beside it.
        **keys: Keys of `source.kafka`, and the sections `tags` and `dedup`, as in the file:
            ``bootstrap_servers="h:9092", topics=["orders"], dedup={"by": {"header": "id"}}``. `start` may have an
            offset for each partition: ``start={"orders": {0: 23, 1: "latest"}}``.
    """
    paths = {"state": state, "config": config}
    return _read(spark, "kafka", keys, paths, stream=True, columns=columns, max_offsets=max_offsets)


def read_kafka(
    spark: SparkSession, *, columns: Sequence[str] | None = None, config: Path | str | None = None, **keys: Any
) -> DataFrame:
    """All present messages of Kafka; the same as ``spark.read.format("sidecar-kafka")``.

    Args:
        **keys: As in `read_kafka_stream`; and `end`, with the values of `start` except ``earliest``.
    """
    return _read(spark, "kafka", keys, {"config": config}, stream=False, columns=columns)


def read_rocketmq_stream(
    spark: SparkSession,
    *,
    state: Path | str | None = None,
    columns: Sequence[str] | None = None,
    max_offsets: int | None = None,
    config: Path | str | None = None,
    **keys: Any,
) -> DataFrame:
    """The messages of RocketMQ as a stream; the same as ``spark.readStream.format("sidecar-rocketmq")``.

    Args:
        **keys: Keys of `source.rocketmq`, and the sections `tags` and `dedup`, as in the file:
            ``name_servers="h:9876", topics=["orders"], tags={"subscribe": "paid || refunded"}``.
    """
    paths = {"state": state, "config": config}
    return _read(spark, "rocketmq", keys, paths, stream=True, columns=columns, max_offsets=max_offsets)


def read_rocketmq(
    spark: SparkSession, *, columns: Sequence[str] | None = None, config: Path | str | None = None, **keys: Any
) -> DataFrame:
    """All present messages of RocketMQ; the same as ``spark.read.format("sidecar-rocketmq")``.

    Args:
        **keys: See `read_rocketmq_stream`; and `end`, as in `read_kafka`.
    """
    return _read(spark, "rocketmq", keys, {"config": config}, stream=False, columns=columns)


def listen(spark: SparkSession, address: str = "127.0.0.1:9464") -> QueryListener:
    """Report the progress of all streaming queries of a session by HTTP and, if it is installed, OpenTelemetry.

    Call it before the functions that read a broker: tasks of sources that were made earlier report no outcomes of
    messages. Its `url` is the server's address, its `close` ends it.

    Args:
        spark: The session, classic or Connect.
        address: Host and port of `/metrics`, `/status`, `/readyz` and the page; port 0 takes a free one.

    Raises:
        ConfigError: The address is invalid.
        UnavailableError: The server cannot listen there.
    """
    from sidecar.spark.listener import QueryListener, telemetry

    listener = QueryListener(spark, address, telemetry())
    listener.open()
    return listener


def register(spark: SparkSession) -> None:
    """Make the formats ``sidecar-kafka`` and ``sidecar-rocketmq`` known to a session.

    The functions that read a broker call it themselves.
    """
    from sidecar.spark.query.source import SOURCES, counted
    from sidecar.spark.query.task import counting

    accumulator = counting(spark)
    for source in SOURCES:
        spark.dataSource.register(source if accumulator is None else counted(source, accumulator))


def _read(
    spark: SparkSession,
    broker: Literal["kafka", "rocketmq"],
    keys: Mapping[str, Any],
    paths: Mapping[str, Path | str | None],
    *,
    stream: bool,
    columns: Sequence[str] | None = None,
    max_offsets: int | None = None,
) -> DataFrame:
    from sidecar.spark.query.options import parse_options

    options = {name: text if isinstance(text, str) else json.dumps(text) for name, text in keys.items()}
    options |= {name: str(Path(path).absolute()) for name, path in paths.items() if path is not None}
    if columns is not None:
        options["columns"] = json.dumps(list(columns))
    if max_offsets is not None:
        options["maxOffsetsPerTrigger"] = str(max_offsets)
    if "config" not in options or hasattr(spark, "_jvm"):  # with Connect, the file is on another host
        parse_options(broker, options, stream=stream)  # Spark would hide an error in a traceback
    register(spark)
    return (spark.readStream if stream else spark.read).format(f"sidecar-{broker}").options(**options).load()


def _read_zone(spark: SparkSession, zone: Path | str, chosen: Mapping[str, str], *, stream: bool) -> DataFrame:
    from sidecar.spark.source.options import parse

    if hasattr(spark, "_jvm") or "://" not in str(zone):  # with Connect, only the server needs the store's client
        parse({"path": str(zone), **chosen}, stream=stream)  # Spark would hide an error in a traceback
    return (spark.readStream if stream else spark.read).format("sidecar").options(**chosen).load(str(zone))


def _options(
    groups: Sequence[str] | None,
    tags: Sequence[str | None] | None,
    columns: Sequence[str] | None,
    *,
    dedup: bool,
    parallelism: int | None,
) -> dict[str, str]:
    lists: dict[str, Sequence[str | None] | None] = {"groups": groups, "tags": tags, "columns": columns}
    options = {name: json.dumps(list(names)) for name, names in lists.items() if names is not None}
    options["dedup"] = str(dedup).lower()
    return options | ({} if parallelism is None else {"parallelism": str(parallelism)})
