"""Which settings hold on Spark: every key of the file, and why the others are refused. No Spark is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from sidecar.config.document import KeyPath
from sidecar.config.loader import load
from sidecar.config.model import Settings
from sidecar.spark.run.kafka_options import reason_against


def checkpoint_folder(written: str) -> Path | None:
    """The folder that `spark.checkpoint` means wherever a task runs; None where it is the URL of something else."""
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
    for name, cure in {
        "console": "it would print on the executors",
        "file": "every executor would write its own file",
        "spark": "the daemon fills a landing zone, and `sidecar spark ingest` reads it",
        "delta": "the daemon or `sidecar spark ingest` fills a table",
    }.items():
        if getattr(settings.sink, name, None) is not None:
            yield ("sink", name), f"cannot be the sink of the pipeline on Spark: {cure}; use sink.http"
    if settings.dedup.ledger:
        yield (
            ("dedup", "ledger"),
            "is not supported on Spark: ids are compared within a partition; run the daemon to use a ledger",
        )
    if settings.dedup.keep_ms is not None:
        yield ("dedup", "keep"), "is not supported on Spark: a task that runs again must decide alike at any time"
    if settings.source.rocketmq:
        yield ("source", "rocketmq"), "cannot be the source of the pipeline on Spark, which reads only Kafka"
        return
    if settings.spark is not None and settings.spark.reader == "client":
        return
    properties = settings.source.kafka.properties
    for name in properties:
        if reason := reason_against(name, properties):
            yield ("source", "kafka", "properties", name), f"is not supported on Spark: {reason}"


def load_for_run(path: str | Path) -> Settings:
    """The settings in a file, all of which hold on Spark.

    Raises:
        ConfigError: The file cannot be used, or has something that Spark does not support: every problem with its line.
    """
    from sidecar.daemon.usable import unusable

    return load(path, refusals=lambda settings: list(refusals(settings)) or unusable(settings))
