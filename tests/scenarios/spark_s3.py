"""`sidecar spark ingest` whose zone, checkpoint and table are all in an object store that loses answers, killed."""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

import boto3

from sidecar.zone import acknowledged
from tests.scenarios.spark_zone import CORES, compare, run
from tests.support.audit import Finding
from tests.support.delta import rows_of
from tests.support.jars import s3_jars, spark_jars
from tests.support.process import wait_until
from tests.support.s3 import BUCKET, KEYS, S3Server
from tests.support.spark.ingesting import config
from tests.support.spark.job import SparkJob
from tests.support.spark.zone_writers import BATCH, WriterProcess

PATIENCE_S = 600.0


def properties(port: int) -> dict[str, str]:
    """Spark's settings for `s3a://` on a server of the tests."""
    return {
        "spark.jars": ",".join(map(str, [*spark_jars(), *s3_jars()])),
        "spark.hadoop.fs.s3a.endpoint": f"http://127.0.0.1:{port}",
        "spark.hadoop.fs.s3a.endpoint.region": KEYS["AWS_DEFAULT_REGION"],
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": KEYS["AWS_ACCESS_KEY_ID"],
        "spark.hadoop.fs.s3a.secret.key": KEYS["AWS_SECRET_ACCESS_KEY"],
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    }


def killed(folder: Path, messages: int, kills: int, lost: float = 0.02) -> Finding:
    """Kill the job in the midst of micro-batches while two writers land, and compare the Delta table.

    Args:
        folder: Has logs and settings; all else is in the bucket.
        messages: Of each writer.
        kills: Of the job.
        lost: Share of the answers that are lost after storing.
    """
    begun, chance = time.monotonic(), random.Random(7)
    zone, table = f"s3://{BUCKET}/zone", f"s3a://{BUCKET}/table"
    document = config(folder, path=table, format="delta")
    document["sink"]["spark"]["landing"] = zone
    document["spark"]["checkpoint"] = f"s3a://{BUCKET}/checkpoint"
    writers = [WriterProcess(folder, partition, messages, zone) for partition in range(2)]
    with S3Server(folder, lost) as server:
        for life in range(1, kills + 1):
            document["spark"]["master"] = f"local[{CORES[life % 3]},4]"
            with SparkJob(folder, document, command="ingest", once=False, properties=properties(server.port)) as job:
                done = len(job.events("ingest.committed"))
                run(writers, messages * life // kills // BATCH * BATCH)
                wait_until(partial(_commits, job, done + 1), PATIENCE_S, "a micro-batch", detail=job.log_tail)
                time.sleep(chance.random())  # the kill is to strike anywhere; nothing is decided by it
        job = SparkJob(folder, document, command="ingest", properties=properties(server.port))
        assert job.run(PATIENCE_S) == 0, job.log_tail()
        (read,) = acknowledged(zone).values()
        assert min(read.values()) > 0, "what is read is acknowledged"
        answers = server.count_lost()
        _download("table", folder)
    return Finding(
        "`sidecar spark ingest` with zone, checkpoint and Delta table on S3: driver killed",
        kills,
        2 * messages,
        compare(rows_of(folder / "table"), {(one, offset) for one in range(2) for offset in range(messages)}),
        time.monotonic() - begun,
        f"with 1, 2 or 3 cores; {answers:,} answers lost after storing; all bytes equal",
    )


def _commits(job: SparkJob, count: int) -> bool:
    return job.supervise() and len(job.events("ingest.committed")) >= count


def _download(prefix: str, folder: Path) -> None:
    client = boto3.client("s3")
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{prefix}/"):
        for one in page["Contents"]:
            if not one["Key"].endswith("/"):
                path = folder / one["Key"]
                path.parent.mkdir(parents=True, exist_ok=True)
                client.download_file(BUCKET, one["Key"], str(path))
