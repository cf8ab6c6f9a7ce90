"""The demo's second act: the same stream through a landing zone into a table of Spark; daemon and query are killed."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from sidecar.demo.books import DeliveredRow, DemoBooks, Made, count, poisonous, stream, wanted
from sidecar.demo.children import Child
from sidecar.demo.stage import KILL_AT, DemoDaemon, DemoStage
from sidecar.zone import Tail, acknowledged


class ZoneProgress:
    """Progress of writers and consumer of a landing zone, from its manifests; its folder may not exist yet."""

    def __init__(self, zone: Path) -> None:
        self._zone = zone
        self._tail = Tail(zone)
        self._landed: list[tuple[str, int, int]] = []

    def look(self) -> tuple[int, int]:
        """Numbers of rows landed so far, and of those that its one consumer has read."""
        for writer, entries in self._tail.poll().items():
            self._landed += [(writer, entry.seq, entry.rows) for entry in entries]
        read = next(iter(acknowledged(self._zone).values()), {})
        rows = sum(rows for *_, rows in self._landed)
        return rows, sum(rows for writer, seq, rows in self._landed if seq <= read.get(writer, -1))


def main(table: str, out: str) -> None:
    """Read all rows, and write partition, offset and value of each."""
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    rows = spark.read.parquet(table).selectExpr("partition", "offset", "cast(value as string)").toArrow()
    with Path(out).open("w") as file:
        for row in rows.to_pylist():
            file.write(f"{json.dumps(list(row.values()))}\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])


GROUP = "demo-spark"
TICK_S = 0.05
STALLED_S = 180.0
"""Includes Spark's start on a slow machine."""
COUNT_S = 120.0
SECTIONS = """sink:
  spark:
    landing: {zone}
spark:
  master: local[2]
  checkpoint: {checkpoint}
  table:
    path: {table}
    format: parquet
    every: 500ms
"""
SPARK_DEFAULTS = """\
spark.ui.enabled false
spark.ui.showConsoleProgress false
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.driver.memory 1g
spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData "-Djava.io.tmpdir={folder}"
spark.sql.shuffle.partitions 2
spark.local.dir {folder}/local
spark.sql.warehouse.dir {folder}/warehouse
"""


@dataclass(frozen=True, slots=True)
class SparkOutcome:
    """The end of the act."""

    books: DemoBooks
    wanted: int
    """Number of messages that should be rows of the table."""
    rows: int
    distinct: int
    """Number of rows with different partitions and offsets."""
    log_tail: str
    """The end of the query's log."""


class SparkAct:
    """The daemon between broker and landing zone, and `sidecar spark ingest` between that and the table.

    Args:
        stage: The stage; messages of the stream that are not produced yet are produced at once.
    """

    def __init__(self, stage: DemoStage) -> None:
        self._stage = stage
        self._wanted = wanted(stage.total) + poisonous(stage.total)
        self._spark = stage.folder / "spark"
        self._spark.mkdir()
        (self._spark / "spark-defaults.conf").write_text(SPARK_DEFAULTS.format(folder=self._spark))
        self._zone, self._table = self._spark / "zone", self._spark / "table"
        paths = {"zone": self._zone, "table": self._table, "checkpoint": self._spark / "checkpoint"}
        quoted = {name: json.dumps(str(path)) for name, path in paths.items()}
        self._daemon = DemoDaemon(stage, GROUP, SECTIONS.format(**quoted))
        self._daemon_killed = self._query_killed = False

    def run(self) -> SparkOutcome:
        self._stage.produce(self._stage.total)
        with ExitStack() as stack:
            self._daemon.start()
            stack.callback(self._daemon.kill)
            self._start_query()
            stack.callback(lambda: self._query.kill())  # the query that runs at that time
            self._flow()
            self._daemon.stop()
            self._query.stop()
            self._stage.audience.say("SIGTERM", "both stopped, exit code 0; now Spark counts the rows of the table")
            rows = self._read_table(stack)
        places = {row.place for row in rows}
        books = count(as_table(stream(self._stage.total)), self._stage.consumed(GROUP), rows, [])
        return SparkOutcome(books, self._wanted, len(rows), len(places), self._query.tail())

    # Flowing

    def _flow(self) -> None:
        """Watch until the table has all rows."""
        zone, begun = ZoneProgress(self._zone), time.monotonic()
        moved, moved_at = (0, 0), begun
        while True:
            tick = time.monotonic()
            self._query.check()
            status = self._daemon.status()
            landed, read = zone.look()
            counts = {"landed": (landed, self._wanted), "in the table": (read, self._wanted)}
            self._stage.audience.progress(counts, tick - begun)
            self._strike(landed)
            settled = sum(partition["watermark"] for partition in status["partitions"]) if status else 0
            if self._daemon_killed and self._query_killed and settled == self._stage.total and read == landed:
                return
            if moved != (landed, read):
                moved, moved_at = (landed, read), tick
            if tick - moved_at > STALLED_S:
                raise self._query.failed(f"and the daemon stand still, {landed} rows landed and {read} read")
            time.sleep(max(0.0, tick + TICK_S - time.monotonic()))

    def _strike(self, landed: int) -> None:
        """Kill daemon and query once each: when a part has landed, and when the table has its first file."""
        if not self._daemon_killed and landed >= KILL_AT * self._wanted:
            self._daemon_killed = True
            self._daemon.kill_and_start(f"with {landed:,} rows in the landing zone")
        elif not self._query_killed and any(self._table.glob("*/*/*.parquet")):
            self._query_killed = True
            self._query.kill()
            text = (
                f"of pid {self._query.pid}, in the middle of the first micro-batch: it has written files and no commit"
            )
            self._stage.audience.say("kill -9", text)
            self._start_query()

    def _start_query(self) -> None:
        arguments = ["-m", "sidecar", "spark", "ingest", "-c", str(self._daemon.config)]
        self._query = Child("spark-ingest", arguments, self._stage.folder, env=_environment(self._spark))
        self._stage.audience.say(
            "query", f"sidecar spark ingest, pid {self._query.pid}; Spark takes about 10 s to start"
        )

    # Counting

    def _read_table(self, stack: ExitStack) -> list[DeliveredRow]:
        out = self._spark / "rows"
        arguments = ["-m", "sidecar.demo.spark_act", str(self._table), str(out)]
        reader = Child("spark-count", arguments, self._stage.folder, env=_environment(self._spark))
        stack.callback(reader.kill)
        reader.finish(COUNT_S)
        with out.open() as lines:
            return [DeliveredRow((partition, offset), value) for partition, offset, value in map(json.loads, lines)]


def as_table(messages: Iterable[Made]) -> Iterator[Made]:
    """The messages as this act expects them: a table refuses no poison."""
    for made in messages:
        yield made._replace(kind="wanted") if made.kind == "poison" else made


def _environment(folder: Path) -> dict[str, str]:
    """An environment without another Spark's settings on this machine; all leftovers of a kill are in the folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "HADOOP_"))}
    places = {"SPARK_CONF_DIR": str(folder), "TMPDIR": str(folder)}
    return kept | places | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
