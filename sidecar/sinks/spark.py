"""Lands batches in a zone for Spark, through `sidecar.zone`. Needs pyarrow."""

from __future__ import annotations

import os
import re
from pathlib import Path

import structlog

from sidecar import files
from sidecar.config.table_layout import SparkSinkSettings
from sidecar.core.parts import Batch
from sidecar.core.records import Answer, Verdict
from sidecar.errors import ConfigError, SidecarError, StateError, ZoneError
from sidecar.sinks.base import Context
from sidecar.storage import Root, StorageError, storage_of
from sidecar.zone.layout import data_folder, manifest_folder
from sidecar.zone.retention import Retention
from sidecar.zone.rows import RowFramer
from sidecar.zone.writer import Format, ZoneFullError, ZoneWriter

log = structlog.get_logger()

WRITER_FILE = "zone-writer"
"""Name of the file in the state folder."""


def build(settings: SparkSinkSettings, context: Context) -> SparkSink:
    """The sink of these settings."""
    retention = Retention(settings.retention.age_ms, settings.retention.max_bytes)
    name = writer_name(context.state_dir, settings.landing)
    framer = RowFramer(context.columns, context.tags_of, context.groups)
    return SparkSink(settings.landing, name, framer, format=settings.format, retention=retention)


class SparkSink:
    """Acknowledges a batch once its rows and the line that makes them visible are on the disk, or in the object store.

    A part that was landed before, by this process or an earlier one, is acknowledged and not landed again. A full or
    broken disk is a retry, and so is an object store that cannot be reached or refuses; a zone whose readers are behind
    stops the intake.

    Args:
        writer: Name of the writer, see `writer_name`.
    """

    def __init__(
        self,
        landing: Root,
        writer: str,
        framer: RowFramer,
        *,
        format: Format = "arrow",  # noqa: A002
        retention: Retention,
    ) -> None:
        self.framer = framer
        try:
            self._zone = ZoneWriter(landing, writer, format=format, retention=retention, report=_report)
        except OSError as error:
            raise _unusable(landing, error) from error

    def deliver(self, batch: Batch) -> Answer:
        """Land the parts that the zone does not have yet: all of them are visible at once, or none."""
        try:
            self._zone.land(batch)
        except ZoneFullError as full:
            return Answer(Verdict.HALT, str(full))
        except ZoneError as error:
            return Answer(Verdict.HALT, f"{error} ({error.hint})")
        except OSError as error:
            return Answer(Verdict.UNANSWERED, f"cannot write to the landing zone: {error.strerror or error}")
        return Answer(Verdict.ACK)

    def close(self) -> None:
        """Release the zone for another process, once a delivery under way has ended."""
        self._zone.close()


def _report(text: str) -> None:
    log.warning("zone.mended", what=text)


def _unusable(landing: Root, error: OSError) -> SidecarError:
    if isinstance(error, StorageError):
        return error.told
    return ConfigError(
        f"cannot write to {landing}: {error.strerror or error}",
        hint="Set sink.spark.landing to a folder that this user may write, on a file system with locks",
    )


def writer_name(state_dir: Path, landing: Root) -> str:
    """The name of a state folder's writer: generated at random, and kept as long as the zone knows it.

    In a recreated zone, and in another one, numbers begin at 0: readers that had read further under the same name would
    skip them. A name that was generated and not used, as after a crash, is replaced.

    Raises:
        ConfigError: The zone cannot be read.
        StateError: The name cannot be read or stored.
    """
    path = state_dir / WRITER_FILE
    try:
        data = files.read_from(path)
        if data is not None and not re.fullmatch(rb"[0-9a-f]{12}", data):
            raise StateError(f"state folder: {path} is damaged", hint="Remove it: a new writer then begins in the zone")
        if data is None or not _knows(landing, data.decode()):
            data = os.urandom(6).hex().encode()
            files.put(path, data)
    except OSError as error:
        raise StateError(f"state folder: cannot use {path}: {error.strerror or error}") from error
    return data.decode()


def _knows(landing: Root, writer: str) -> bool:
    """Whether a zone has a manifest or data of a writer; data without a manifest is repaired at the start."""
    try:
        zone = storage_of(landing)
        return zone.has(manifest_folder(writer)) or bool(zone.files(data_folder(writer)))
    except OSError as error:
        raise _unusable(landing, error) from error
