"""Both jobs in a process that has a session already, as a notebook: they use it, and leave it to its owner."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.spark.ingest import ingest
from sidecar.spark.run import run
from tests.support.kafka import Broker, MakeTopic, Outgoing, produce
from tests.support.landing import batch, writer
from tests.support.process import write_config
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
query = query.queryName("rate").option("checkpointLocation", sys.argv[2]).start()
told, deadline = "", time.monotonic() + 60
while not any(f'rows_total{{query="rate"}} {n}.0' in told for n in (7, 14)) and time.monotonic() < deadline:
    told = urlopen(listener.url + "/metrics", timeout=10).read().decode()
    time.sleep(0.1)
query.stop()
listener.close()
print(*(line for line in told.splitlines() if line.startswith("sidecar_query_rows_total")))
"""


def test_a_session_of_spark_connect(tmp_path: Path) -> None:
    """`ingest` is refused in plain words, with what to do, and writes nothing; `listen` tells rows."""
    config = write_config(tmp_path / "ingest.yaml", ingesting.config(tmp_path))
    env = {**os.environ, **write_defaults(tmp_path / "conf")}
    command = [sys.executable, "-c", _CONNECT, str(config), str(tmp_path / "rate")]
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "the session is one of Spark Connect" in ran.stdout
    assert "sidecar.spark.read_stream" in ran.stdout
    assert not (tmp_path / "checkpoint").exists()
    assert re.search(r'sidecar_query_rows_total{query="rate"} (7|14)\.0', ran.stdout), ran.stdout


def test_ingest_in_a_session_that_is_there(spark: SparkSession, tmp_path: Path) -> None:
    """The table is filled in the process's own session, which is not stopped."""
    zone = writer(tmp_path / "zone")
    zone.land(batch(0, 5))
    zone.close()
    in_a_thread(ingest, write_config(tmp_path / "ingest.yaml", ingesting.config(tmp_path)))
    assert ingesting.there(tmp_path / "table") == ingesting.wanted([batch(0, 5)])
    assert spark.range(3).count() == 3
