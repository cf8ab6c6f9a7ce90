"""A Spark session as for work, not for tests, and the CPU time of all that belongs to it. Measures nothing itself."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.spark.session import environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def session(folder: Path, master: str = "local[2]", settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session whose JVM compiles to the end.

    Args:
        folder: For what Spark writes.
        master: Where it runs.
        settings: Beside those that every benchmark has.
    """
    os.environ.update(environment())
    from pyspark.sql import SparkSession

    found = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.shuffle.partitions": "2",
    }
    builder = SparkSession.builder.master(master)
    for name, value in {**found, **(settings or {})}.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def children() -> set[int]:
    """The processes that this one has started and that live."""
    return {int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


class CpuClock:
    """Counts the user and system time of this process and of all below it, from when it is made.

    What is forked by Spark's Python daemon counts for nothing once it has ended, as after a minute of idleness: what it
    had used before would be missing at the end. What the JVM starts for a moment, as for a commit, counts when it ends.

    Args:
        without: Processes that are left out, with all below them.
    """

    def __init__(self, without: Collection[int] = ()) -> None:
        self._without = without
        self._before = self._by_process()

    def seconds(self) -> float:
        """What was used so far."""
        return sum(spent - self._before.get(pid, 0.0) for pid, spent in self._by_process().items())

    def _by_process(self) -> dict[int, float]:
        below: dict[int, list[int]] = {}
        spent: dict[int, float] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                pid, fields = int(path.parent.name), path.read_text().rsplit(")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            below.setdefault(int(fields[1]), []).append(pid)
            spent[pid] = sum(map(int, fields[11:15])) / _TICKS_A_SECOND  # its own, and that of children it waited for
        found, waiting = {}, [os.getpid()]
        while waiting:
            pid = waiting.pop()
            found[pid] = spent[pid]
            waiting += [child for child in below.get(pid, []) if child not in self._without]
        return found
