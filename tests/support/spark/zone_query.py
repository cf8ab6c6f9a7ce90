"""A query from a zone to Parquet as a process of its own, which tests kill with its JVM and all its workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.process import spawn, tail, wait_until
from tests.support.spark.session import write_defaults

MODULE = "tests.support.spark.zone_query"


class ZoneQuery:
    """The query; its checkpoint and table outlive it.

    Args:
        folder: Holds checkpoint, table and log.
        zone: What is read.
        max_rows: Bound of a micro-batch.
        module: What runs.
        more: Further words for it.
    """

    def __init__(
        self, folder: Path, zone: Path | str, max_rows: int = 1_000, module: str = MODULE, more: Sequence[str] = ()
    ) -> None:
        self._folder = folder
        self._module, self._more = module, more
        self._zone = zone
        self._max_rows = max_rows
        self._process: subprocess.Popen[bytes] | None = None
        self.table = folder / "table"

    def start(self, master: str, *, once: bool = False) -> None:
        """Begin, or go on from the checkpoint.

        Args:
            master: Cores and attempts.
            once: Whether it ends when it has taken what is there.
        """
        checkpoint = self._folder / "checkpoint"
        words = map(str, (master, self._zone, checkpoint, self.table, int(once), self._max_rows, *self._more))
        env = write_defaults(self._folder / "conf", jars=False)
        with (self._folder / "query.log").open("ab") as log:
            command = ["setsid", sys.executable, "-m", self._module, *words]
            self._process = spawn(command, log, env=env)

    def kill(self) -> None:
        """SIGKILL to all of it."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self, timeout_s: float = 120.0) -> int:
        """The exit code, once it has ended."""
        assert self._process is not None
        wait_until(lambda: self._process and self._process.poll() is not None, timeout_s, "it ends", detail=self.log)
        return int(self._process.returncode)

    def committed(self) -> int:
        """How many micro-batches are done."""
        return self._latest("commits") + 1

    def wait_committed(self, count: int) -> None:
        """Wait until so many micro-batches are done."""
        wait_until(lambda: self.committed() >= count, 240, f"{count} micro-batches are done", detail=self.log)

    def wait_under_way(self) -> None:
        """Wait until a micro-batch is planned and not done."""
        wait_until(lambda: self._latest("offsets") > self._latest("commits"), 60, "one is under way", detail=self.log)

    def _latest(self, log: str) -> int:
        folder = self._folder / "checkpoint" / log
        names = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def said(self, words: str) -> list[str]:
        """The lines of its log, of all lives, that have these words."""
        return [line for line in (self._folder / "query.log").read_text().splitlines() if words in line]

    def log(self) -> str:
        """The end of its log, for a failure message."""
        return tail(self._folder / "query.log", lines=60)


def main(master: str, zone: str, checkpoint: str, table: str, once: str, max_rows: str, tags: str = "null") -> None:
    """Run the query."""
    from pyspark.sql import SparkSession

    from sidecar.spark import read_stream

    spark = SparkSession.builder.master(master).getOrCreate()
    frame = read_stream(spark, zone, consumer="table", max_rows=int(max_rows), tags=json.loads(tags))
    stream = frame.writeStream.format("parquet").option("path", table).option("checkpointLocation", checkpoint)
    query = (stream.trigger(availableNow=True) if json.loads(once) else stream).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
