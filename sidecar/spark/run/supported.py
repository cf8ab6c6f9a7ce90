"""The settings that apply on Spark, and the reasons for which others are refused. Imports no Spark."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sidecar.config.document import KeyPath
from sidecar.config.loader import load
from sidecar.config.model import Settings
from sidecar.config.schema import options
from sidecar.config.source.rocketmq import RocketMqSettings
from sidecar.config.spark import Spark
from sidecar.config.tags import OFFSET_MSG_ID
from sidecar.spark.run.kafka_options import reason_against
from sidecar.spark.table.plan import refused_keys


def checkpoint_folder(written: str) -> Path | None:
    """The folder of `spark.checkpoint` on every host; None if it is the URL of another storage."""
    path = re.sub(r"^file:(//(?=/)|(?=/[^/]))", "", written)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", path):
        return None
    return Path(os.path.abspath(path))  # noqa: PTH100  # executors have another folder; `..` as Spark understands it


def refusals(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """Keys that are not supported on Spark, each with the reason."""
    if settings.spark is None:
        yield ("spark",), "is missing: spark.checkpoint is where the query keeps its progress"
    elif checkpoint_folder(settings.spark.checkpoint) is None:
        text = "must be a path on storage that driver and executors share: files beside it hold the names of parts"
        yield ("spark", "checkpoint"), text
    if settings.batch.by == "group":
        text = "cannot be group on Spark: a task has one partition, and larger batches would depend on the tasks"
        yield ("batch", "by"), text
    shown = settings.public()
    for option in options():
        if option.not_on_spark and _is_in(shown, option.path):
            yield option.path, f"is not supported on Spark: {option.not_on_spark}"
    if settings.dedup.ledger and settings.sink.name != "http":
        yield ("dedup", "ledger"), f"cannot be used on Spark with sink.{settings.sink.name}: use sink.http"
    elif settings.dedup.ledger and settings.sink.chosen.one_by_one:
        text = "cannot be partition on Spark with dedup.ledger: what waits for a twin is delivered after later messages"
        yield ("sink", "http", "ordering"), text
    if settings.source.rocketmq is not None:
        yield from _against_rocketmq(settings, settings.source.rocketmq)
    target = settings.sink.chosen.table
    if target is not None and settings.spark is not None:
        yield from _against_table(settings.sink.name, settings.spark)
        yield from refused_keys(settings, target.format, target.path)
        return
    if _is_lane_wanted_of_connector(settings):
        yield ("source", "kafka", "lane"), "cannot be on with spark.reader connector: use spark.reader client"
    if settings.source.rocketmq or (settings.spark is not None and settings.spark.reader == "client"):
        return
    properties = settings.source.kafka.properties
    for name in properties:
        if reason := reason_against(name, properties):
            yield ("source", "kafka", "properties", name), f"is not supported on Spark: {reason}"


def _against_rocketmq(settings: Settings, rocketmq: RocketMqSettings) -> Iterator[tuple[KeyPath, str]]:
    """Keys that are not supported with RocketMQ."""
    if rocketmq.client != "remoting":
        text = f"cannot be {rocketmq.client} on Spark: only with remoting do messages have offsets that last"
        yield ("source", "rocketmq", "client"), text
    if settings.dedup.by == OFFSET_MSG_ID and settings.dedup.ledger is None:
        text = (
            "cannot be offset_msg_id on Spark without dedup.ledger: the origin of a message that was handed back is in "
            "another queue, which another task reads"
        )
        yield ("dedup", "by"), text
    if settings.spark is not None and _is_connector_chosen(settings.spark):
        yield ("spark", "reader"), "cannot be connector with source.rocketmq: Spark has no connector for it"


def _is_connector_chosen(spark: Spark) -> bool:
    return "reader" in spark.model_fields_set and spark.reader == "connector"


def _against_table(sink: str, spark: Spark) -> Iterator[tuple[KeyPath, str]]:
    """Keys that are not supported with a sink that is a table."""
    if _is_connector_chosen(spark):
        text = f"cannot be connector with sink.{sink}: every message would go from the JVM to Python and back"
        yield ("spark", "reader"), text
    for name in sorted(spark.table.model_fields_set & {"path", "format"} if spark.table else ()):
        yield ("spark", "table", name), f"is for `sidecar spark ingest`; here, sink.{sink}.path is the table"


def _is_lane_wanted_of_connector(settings: Settings) -> bool:
    source, spark = settings.source, settings.spark
    return source.name == "kafka" and source.kafka.lane == "on" and spark is not None and spark.reader == "connector"


def _is_in(shown: Any, path: KeyPath) -> bool:
    return not path or (isinstance(shown, dict) and path[0] in shown and _is_in(shown[path[0]], path[1:]))


def load_for_run(path: str | Path) -> Settings:
    """Load the settings of a file, all of which must apply on Spark.

    Raises:
        ConfigError: The file cannot be used, or has settings that Spark does not support: every problem with its line.
    """
    from sidecar.runtime.lane import refusal_on_spark
    from sidecar.runtime.usable import unusable

    return load(path, refusals=lambda given: list(refusals(given)) or unusable(given, refusal_on_spark(given)))
