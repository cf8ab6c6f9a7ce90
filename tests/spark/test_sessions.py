"""Both jobs in a process that has a session already, as a notebook: they use it, and leave it to its owner."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.spark.ingest import ingest
from sidecar.spark.run import run
from tests.support.kafka import Broker, MakeTopic, Outgoing, produce
from tests.support.landing import batch, writer
from tests.support.process import spawn, wait_until, write_config
from tests.support.receiver import Receiver
from tests.support.spark import ingesting
from tests.support.spark.session import write_defaults

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def in_a_thread(job: object, config: Path) -> None:
    """Run a job to its end where no session of the JVM is active."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(job, config, once=True).result()  # type: ignore[arg-type]


def test_run_in_a_session_that_is_there(
    spark: SparkSession, kafka: Broker, make_topic: MakeTopic, group: str, tmp_path: Path
) -> None:
    """The pipeline runs in the process's own session, twice, sends all once, and does not stop the session."""
    topic = make_topic(2)
    with Receiver() as receiver:
        kafka_source = {"bootstrap_servers": kafka.bootstrap, "group_id": group, "topics": [topic]}
        settings = {
            "source": {"kafka": kafka_source},
            "sink": {"http": {"url": receiver.url}},
            "spark": {"checkpoint": str(tmp_path / "checkpoint")},
            "state": {"dir": str(tmp_path / "state")},
            "admin": {"listen": "off"},
        }
        config = write_config(tmp_path / "run.yaml", settings)
        for wanted in (1_000, 2_000):
            produce(kafka.bootstrap, topic, [Outgoing(i % 2, b"%d" % i) for i in range(1_000)])
            in_a_thread(run, config)
            assert (receiver.stats["rows"], len(set(receiver.rows()))) == (wanted, wanted)
        assert receiver.stats["repeated_parts"] == 0
    assert spark.range(3).count() == 3


_CONNECT = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote("local[1]").getOrCreate()
from sidecar.errors import ConfigError
from sidecar.spark.ingest import ingest
try:
    ingest(sys.argv[1], once=True)
except ConfigError as error:
    print(error, "|", error.hint)

import time
from urllib.request import urlopen
from sidecar.spark import listen
listener = listen(spark, "127.0.0.1:0")
query = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 7).load().writeStream.format("noop")
query = query.queryName("rate").option("checkpointLocation", sys.argv[2])
query = query.trigger(processingTime="1 hour").start()
told, deadline = "", time.monotonic() + 60
while 'rows_total{query="rate"} 7.0' not in told and time.monotonic() < deadline:
    told = urlopen(listener.url + "/metrics", timeout=10).read().decode()
    time.sleep(0.1)
query.stop()
listener.close()
print(*(line for line in told.splitlines() if line.startswith("sidecar_query_rows_total")))
"""


def test_a_session_of_spark_connect(tmp_path: Path) -> None:
    """`ingest` is refused in plain words, with what to do, and writes nothing; `listen` tells rows."""
    config = write_config(tmp_path / "ingest.yaml", ingesting.config(tmp_path))
    # Spark takes a free port then, and not 15002, which may be a broker's here: the client would wait for its answer.
    env = {**write_defaults(tmp_path / "conf"), "SPARK_TESTING": "1"}
    command = [sys.executable, "-c", _CONNECT, str(config), str(tmp_path / "rate")]
    printed = tmp_path / "printed"  # a pipe would be open as long as the JVM, which may outlive its client for minutes
    with printed.open("wb") as output:
        process = spawn(command, output, env=env, cwd=tmp_path, start_new_session=True)
    try:
        wait_until(lambda: process.poll() is not None, 250, "the client ends", detail=printed.read_text)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    told = printed.read_text()
    assert process.returncode == 0, told
    assert "the session is one of Spark Connect" in told
    assert "sidecar.spark.read_stream" in told
    assert not (tmp_path / "checkpoint").exists()
    assert 'sidecar_query_rows_total{query="rate"} 7.0' in told


def test_ingest_in_a_session_that_is_there(spark: SparkSession, tmp_path: Path) -> None:
    """The table is filled in the process's own session, which is not stopped."""
    zone = writer(tmp_path / "zone")
    zone.land(batch(0, 5))
    zone.close()
    in_a_thread(ingest, write_config(tmp_path / "ingest.yaml", ingesting.config(tmp_path)))
    assert ingesting.there(tmp_path / "table") == ingesting.wanted([batch(0, 5)])
    assert spark.range(3).count() == 3
