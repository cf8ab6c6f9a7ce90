"""A query from a zone to Parquet as a process of its own, which tests kill with its JVM and all its workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.spark.session import write_defaults
from tests.support.process import spawn, tail, wait_until


class ZoneQuery:
    """The query; its checkpoint and table outlive it.

    Args:
        folder: Holds checkpoint, table and log.
        zone: What is read.
    """

    def __init__(self, folder: Path, zone: Path) -> None:
        self._folder = folder
        self._zone = zone
        self._process: subprocess.Popen[bytes] | None = None
        self.table = folder / "table"

    def start(self, master: str, *, once: bool = False) -> None:
        """Begin, or go on from the checkpoint.

        Args:
            master: Cores and attempts.
            once: Whether it ends when it has taken what is there.
        """
        words = [master, str(self._zone), str(self._folder / "checkpoint"), str(self.table), str(int(once))]
        env = write_defaults(self._folder / "conf", jars=False)
        with (self._folder / "query.log").open("ab") as log:
            command = ["nice", "-n", "10", "setsid", sys.executable, "-m", "tests.spark.zone_query", *words]
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
        folder = self._folder / "checkpoint" / "commits"
        return sum(path.name.isdigit() for path in folder.iterdir()) if folder.is_dir() else 0

    def wait_committed(self, count: int) -> None:
        """Wait until so many micro-batches are done."""
        wait_until(lambda: self.committed() >= count, 240, f"{count} micro-batches are done", detail=self.log)

    def log(self) -> str:
        """The end of its log, for a failure message."""
        return tail(self._folder / "query.log", lines=60)


def main(master: str, zone: str, checkpoint: str, table: str, once: str) -> None:
    """Run the query."""
    from pyspark.sql import SparkSession

    from sidecar.spark import read_stream

    spark = SparkSession.builder.master(master).getOrCreate()
    stream = read_stream(spark, zone, consumer="table", max_rows=1_000).writeStream.format("parquet")
    stream = stream.option("path", table).option("checkpointLocation", checkpoint)
    query = (stream.trigger(availableNow=True) if json.loads(once) else stream).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
