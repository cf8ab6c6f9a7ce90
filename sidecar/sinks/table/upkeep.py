"""Maintenance of a table when it is due: failures are only logged and counted. Imports no format."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import orjson
import structlog

from sidecar.config.table_layout import Maintenance

RESULTS: Final = ("ok", "failed")
REASON_CHARS_MAX: Final = 300

log = structlog.get_logger()


def no_counts(maintenance: Maintenance) -> Counter[tuple[str, str]]:
    """A counter of operations by name and result, at 0 for those that are done."""
    return Counter({(name, result): 0 for name in _intervals_s(maintenance) for result in RESULTS})


def failed(operation: str, table: str, error: Exception) -> None:
    """Log that an operation on a table failed."""
    reason = " ".join(str(error).split())[:REASON_CHARS_MAX]
    log.warning("table.maintenance_failed", operation=operation, table=table, reason=reason)


def has_int96(table: str, file: str) -> None:
    """Log that a file of a table has timestamps as INT96."""
    log.warning("table.old_timestamps", table=table, file=file)


class Upkeep:
    """Runs operations at their intervals, the first time one interval after the job first began.

    Args:
        read: Returns the text of the last `write`, also of an earlier process; it may be lost.
        write: Keeps the time of the last run, so that a restart neither repeats nor puts off an operation.
    """

    def __init__(
        self,
        table: str,
        maintenance: Maintenance,
        steps: Mapping[str, Callable[[], object]],
        read: Callable[[], bytes | None],
        write: Callable[[bytes], object],
        counts: Counter[tuple[str, str]],
    ) -> None:
        self._table = table
        self._intervals_s = _intervals_s(maintenance)
        self._steps = steps
        self._stored = read
        self._store = write
        self._counts = counts
        self._ran_s: dict[str, float] = {}
        """When each operation ran last, seconds since the epoch; empty until they are read."""

    def tend(self) -> None:
        """Run the operations that are due, in this thread."""
        for name in self._due():
            begun_s = time.monotonic()
            try:
                self._steps[name]()
            except Exception as error:  # noqa: BLE001  # deltalake and Spark raise dozens of kinds
                self._counts[name, "failed"] += 1
                failed(name, self._table, error)
            else:
                self._counts[name, "ok"] += 1
                seconds = round(time.monotonic() - begun_s, 3)
                log.info("table.maintained", operation=name, table=self._table, seconds=seconds)
            self._ran_s[name] = time.time()
            self._write()

    def wait_s(self) -> float:
        """Time until an operation is due."""
        self._read()
        now_s = time.time()
        return max(0.0, min(self._ran_s[name] + every_s - now_s for name, every_s in self._intervals_s.items()))

    def _due(self) -> list[str]:
        self._read()
        now_s = time.time()
        return [name for name, every_s in self._intervals_s.items() if now_s >= self._ran_s[name] + every_s]

    def _read(self) -> None:
        if self._ran_s:
            return
        try:
            known = orjson.loads(self._stored() or b"{}")
            ran_s = {name: float(known[name]) for name in self._intervals_s if name in known}
        except Exception:  # noqa: BLE001  # torn, or of a file system that does not answer
            ran_s = {}
        now_s = time.time()
        self._ran_s = {name: min(ran_s.get(name, now_s), now_s) for name in self._intervals_s}
        if ran_s != self._ran_s:
            self._write()

    def _write(self) -> None:
        try:
            self._store(orjson.dumps(self._ran_s))
        except Exception as error:  # noqa: BLE001  # then a restart counts from its own start
            log.debug("table.maintenance_not_noted", reason=str(error)[:REASON_CHARS_MAX])


def _intervals_s(maintenance: Maintenance) -> dict[str, float]:
    intervals_ms = {"optimize": maintenance.optimize_ms, "vacuum": maintenance.vacuum_ms}
    return {name: ms / 1000 for name, ms in intervals_ms.items() if ms is not None}
