"""The driver of `sidecar spark ingest`: session, queries, stop. The module `columns` maps rows."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from sidecar.config.base import Address
from sidecar.config.document import KeyPath
from sidecar.config.loader import load
from sidecar.config.model import Admin, Settings
from sidecar.config.table_layout import absolute
from sidecar.errors import UnavailableError, ZoneError
from sidecar.ops.admin import AdminServer, open_probes
from sidecar.ops.metrics import Metrics
from sidecar.spark import driver
from sidecar.spark.driver import own_session
from sidecar.spark.ingest.progress import READ, IngestProgress, Lag
from sidecar.spark.metrics import table_metrics
from sidecar.spark.table.filling import Filling, TableRules
from sidecar.spark.table.plan import Target, refused_keys, table_layout
from sidecar.spark.table.registry import Beginning
from sidecar.storage import StorageError, storage_of
from sidecar.zone import Tail
from sidecar.zone.layout import MANIFEST, safe
from sidecar.zone.table import PARTITIONED_BY, ROW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def consumer_of(checkpoint: str, target: Target) -> str:
    """The name in the zone of the query that fills a table.

    Args:
        checkpoint: The job's checkpoint. Each has a name of its own: under the name of an earlier one, rows that this
            one needs may already be removed.
    """
    path = _place(target.path)
    digest = hashlib.blake2b(f"{_place(checkpoint)}\n{path}".encode(), digest_size=4).hexdigest()
    return f"ingest-{safe(path.rpartition('/')[2], 64)}-{digest}"


def _place(written: str) -> str:
    """One text for all spellings of a path, or of a URL with and without a slash at its end."""
    return absolute(written).rstrip("/") or "/"


def load_for_ingest(path: str | Path) -> Settings:
    """Load the settings of a file that has everything the job needs."""
    return load(path, refusals=_missing)


def _missing(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    if settings.sink.spark is None:
        yield ("sink", "spark"), "is missing: sink.spark.landing is the zone to fill the table from"
    if settings.spark is None:
        text = "is missing: spark.checkpoint is where the query keeps its progress, spark.table is the table to fill"
        yield ("spark",), text
    elif settings.spark.table is None:
        yield ("spark", "table"), "is missing: it is the table to fill"
    elif settings.spark.table.path is None:
        yield ("spark", "table", "path"), "is missing: it is the folder of the table to fill"
    else:
        yield from refused_keys(settings, settings.spark.table.format, settings.spark.table.path)


LOOK_EVERY_S: Final = 2.0
BATCH_BYTES_MAX: Final = 256 << 20
"""Limit of compressed files in a micro-batch, which take about five times that in memory, spread over tasks."""
DRIVER_BATCH_BYTES_MAX: Final = 16 << 20
"""The same limit if all rows go through the driver."""

log = structlog.get_logger()


class SparkIngest:
    """Fills the table of one configuration from its zone."""

    def __init__(self, settings: Settings, stop_asked: Callable[[], bool], *, once: bool = False) -> None:
        assert settings.spark is not None, "checked before"
        assert settings.spark.table is not None, "checked before"
        assert settings.sink.spark is not None, "checked before"
        assert settings.spark.table.path is not None, "checked before"
        table = settings.spark.table
        self._settings = settings
        self._spark, self._zone = settings.spark, settings.sink.spark.landing
        partitioned_by = PARTITIONED_BY if table.merge is None else ()
        self._rules = TableRules(
            settings.spark.table.path, table.format, table.schema_, table.every_ms, partitioned_by=partitioned_by,
            layout=table_layout(settings), merge=table.merge, resume=table.resume,
        )  # fmt: skip
        self._stop_asked = stop_asked
        self._once = once
        self._look_at_s = 0.0

    def run(self) -> None:
        """Fill until a stop is requested, or with `once` until all present data is in the table.

        Raises:
            SidecarError: A problem that needs a person.
        """
        _open(self._zone)
        filling = Filling(self._rules, self._spark.checkpoint, once=self._once)
        with ExitStack() as stack:
            consumer = self._consumer(filling.targets[0])
            progress = IngestProgress(self._settings.source.group_id, Lag(self._zone, consumer))
            admin = self._settings.admin
            if admin.listen:
                stack.callback(_serve_metrics(admin, admin.listen, progress, filling.maintained).close)
            open_probes(stack, admin.probes, progress.latest)
            session = driver.session(stack, f"sidecar ingest {self._rules.path}", self._spark.master)
            session = own_session(stack, session, is_delta=self._rules.format == "delta")
            filling.check(session, absolute(self._zone), lambda: self._heads() or {})
            self._start(stack, session, filling)
            log.info("ingest.started", table=self._rules.path, zone=self._zone, format=self._rules.format)
            with driver.serving(progress, self._stop_asked):
                filling.queries.await_end(progress, self._stop_asked, lambda: self._look(progress), self._draining)
            log.info("ingest.stopped")

    def _consumer(self, target: Target) -> str:
        return consumer_of(self._spark.checkpoint, target)

    def _start(self, stack: ExitStack, session: SparkSession, filling: Filling) -> None:
        until = self._heads() if self._once else None
        size = DRIVER_BATCH_BYTES_MAX if filling.through_driver else BATCH_BYTES_MAX
        filling.start(
            stack, lambda target: self._frame(session, target, filling.beginnings.get(target.name), until, size)
        )

    def _heads(self) -> dict[str, int] | None:
        """The end of both queries, which read equally far; None if the zone is unreadable, which they report."""
        try:
            return Tail(self._zone).heads()
        except (ZoneError, OSError):
            return None

    def _frame(
        self,
        session: SparkSession,
        target: Target,
        begin: Beginning | None,
        until: Mapping[str, int] | None,
        bytes_max: int,
    ) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        from sidecar.spark import read_stream
        from sidecar.spark.table.columns import with_partitions

        consumer = self._consumer(target)
        frame = read_stream(
            session, self._zone, columns=ROW, consumer=consumer, max_bytes=bytes_max, until=until,
            start=begin and begin.offsets,
        )  # fmt: skip
        return with_partitions(frame.observe(READ, F.count(F.lit(1)).alias("rows")))

    def _look(self, progress: IngestProgress) -> None:
        if time.monotonic() >= self._look_at_s:
            progress.look()
            self._look_at_s = time.monotonic() + LOOK_EVERY_S

    def _draining(self) -> float:
        timeout_s = self._settings.drain_timeout_ms / 1000
        log.info("ingest.draining", timeout_seconds=timeout_s)
        return timeout_s


def _open(zone: str) -> None:
    """Access an object store once, before Spark starts: its error has the right exit code here."""
    try:
        storage_of(zone).folders(MANIFEST)
    except StorageError as error:
        raise error.told from error
    except OSError:
        return  # a folder's error is reported by the query


def _serve_metrics(
    admin: Admin, listen: Address, progress: IngestProgress, maintained: Mapping[tuple[str, str], int]
) -> AdminServer:
    """Serve at the configured address, or at a free port if the daemon of the same file uses the address."""
    metrics = Metrics(None, progress.metrics, lambda: table_metrics(progress.totals, maintained))
    try:
        server = AdminServer(listen, progress.latest, metrics.render, names=admin.names)
        server.open()
    except UnavailableError:
        server = AdminServer((listen.host, 0), progress.latest, metrics.render, names=admin.names)
        server.open()
        log.warning("ingest.moved", wanted=f"{listen.host}:{listen.port}", url=server.url)
    return server
