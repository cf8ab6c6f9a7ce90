"""Beside the micro-batches of a table: maintenance between them, and a report of small files. No Spark call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import structlog

from sidecar.sinks.table.layout import makes_small_files
from sidecar.sinks.table.upkeep import Upkeep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILES: Final = "files"
"""Name of the number of partitions in the observation of rows."""

log = structlog.get_logger()


def tending(
    claim: Callable[[int], None], write: Callable[[DataFrame, int], None], upkeep: Upkeep | None
) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that claims and writes a micro-batch, and then does what is due.

    Spark begins no micro-batch before it returns. If it is cut short, the micro-batch comes again, and is known.
    """

    def write_and_tend(frame: DataFrame, batch: int) -> None:
        claim(batch)
        write(frame, batch)
        if upkeep is not None:
            upkeep.tend()

    return write_and_tend


class SmallFiles:
    """Reports once that partitions make many small files."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._told = False

    def heard(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Take Spark's reports, also those seen before."""
        for report in () if self._told else reports:
            for observed in (report.get("observedMetrics") or {}).values():
                if FILES in observed and makes_small_files(int(observed["rows"]), int(observed[FILES])):
                    self._told = True
                    log.warning("table.small_files", table=self._table, rows=observed["rows"], files=observed[FILES])
                    return
