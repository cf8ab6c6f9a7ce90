"""The ingest job in a process of its own: killed with all that belongs to it, started again otherwise, stopped."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sidecar.core.parts import Batch
from tests.support.landing import Sent, part, writer
from tests.support.process import free_ports, http_get, wait_until
from tests.support.spark.cluster import Cluster
from tests.support.spark.ingesting import config, is_acknowledged, there, wanted
from tests.support.spark.job import SparkJob

PATIENCE_S = 180.0


@contextmanager
def landing(folder: Path, batches: list[Batch], every_s: float = 0.05) -> Iterator[threading.Event]:
    """Two writers land batches while the jobs run; every fifth one is landed by both. The event ends it."""
    enough = threading.Event()
    zones = [writer(folder / "zone", name) for name in "ab"]

    def land() -> None:
        for i in range(100_000):
            one = Batch(1, "paid", [part([row(offset) for offset in range(20 * i, 20 * i + 20)])])
            zones[i % 2].land(one)
            if i % 5 == 0:
                zones[1 - i % 2].land(one)
            batches.append(one)
            if enough.wait(every_s):
                return

    thread = threading.Thread(target=land)
    thread.start()
    try:
        yield enough
    finally:
        enough.set()
        thread.join()
        for zone in zones:
            zone.close()


def row(offset: int) -> Sent:
    """A message whose value is JSON of the schema, but for every seventh."""
    return Sent(offset, b"k%d" % offset, b"\xff%d" % offset if offset % 7 == 3 else b'{"id": %d}' % offset)


def kill_in_the_midst(job: SparkJob, chance: random.Random) -> None:
    """End it with SIGKILL somewhere in a micro-batch, after it has committed one in this life."""
    await_commit(job)
    time.sleep(chance.uniform(0, 0.5))
    job.kill()


def await_commit(job: SparkJob) -> None:
    """One more micro-batch is committed."""
    done = len(job.events("ingest.committed"))
    wait_until(lambda: len(job.events("ingest.committed")) > done, PATIENCE_S, "a micro-batch", detail=job.log_tail)


def told(port: int) -> str:
    """The job's metrics; progress is heard once a second."""
    return http_get(f"http://127.0.0.1:{port}/metrics", timeout_s=10)[1].decode()


@pytest.mark.proof
def test_killed_with_parquet_and_rejects(tmp_path: Path) -> None:
    """Killed, started again with other parallelism, stopped in order: each row is in one of the two tables, once."""
    chance, batches = random.Random(3), list[Batch]()
    (port,) = free_ports(1)
    settings = config(tmp_path, schema="id bigint") | {"admin": {"listen": f"127.0.0.1:{port}"}}
    with landing(tmp_path, batches) as enough:
        settings["spark"] = settings["spark"] | {"master": "local[2,4]"}
        with SparkJob(tmp_path, settings, once=False, command="ingest") as job:
            kill_in_the_midst(job, chance)
        settings["spark"] = settings["spark"] | {"master": "local[3,4]"}
        with SparkJob(tmp_path, settings, once=False, command="ingest") as job:
            await_commit(job)
            enough.set()
            wait_until(lambda: is_acknowledged(tmp_path), PATIENCE_S, "all is read", detail=job.log_tail)
            wait_until(lambda: "\nsidecar_ingest_lag_rows 0.0\n" in told(port), PATIENCE_S, "it says so")
            metrics = told(port)
            job.stop()
            assert job.wait(PATIENCE_S) == 0, job.log_tail()
    for name in ("rows_read_total", "rows_written_total", "rows_rejected_total", "micro_batches_total", "lag_rows"):
        assert f"\nsidecar_ingest_{name} " in metrics
    found = [there(tmp_path / name) for name in ("table", "table-rejects")]
    assert found[0] + found[1] == wanted(batches)
    assert all(value is not None and value[:1] == b"\xff" for *_, value in found[1])
    assert all(value is not None and value[:1] == b"{" for *_, value in found[0])
    events = job.events("ingest.committed")
    assert all(one["rows_read"] == one["rows_written"] + one["rows_rejected"] for one in events)
    assert job.events("ingest.draining")


@pytest.mark.proof
def test_killed_with_deltalake(tmp_path: Path) -> None:
    """Without Delta's jars: killed, then `--once` with other parallelism ends with 0, and each row is there once."""
    chance, batches = random.Random(5), list[Batch]()
    settings = config(tmp_path, format="delta")
    with landing(tmp_path, batches):
        settings["spark"] = settings["spark"] | {"master": "local[2,4]"}
        with SparkJob(tmp_path, settings, once=False, jars=False, command="ingest") as job:
            kill_in_the_midst(job, chance)
    settings["spark"] = settings["spark"] | {"master": "local[1,4]"}
    job = SparkJob(tmp_path, settings, jars=False, command="ingest")
    assert job.run(PATIENCE_S) == 0, job.log_tail()
    assert there(tmp_path / "table") == wanted(batches)
    assert is_acknowledged(tmp_path)


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_submitted_to_a_cluster_it_writes_each_row_once(tmp_path: Path, kind: str) -> None:
    """By `spark-submit` on a master and two workers, killed once: the table has each row once."""
    batches = list[Batch]()
    with landing(tmp_path, batches) as enough, Cluster(tmp_path / "cluster") as cluster:
        settings, at = config(tmp_path, format=kind), {"master": cluster.url, "command": "ingest", "submit": True}
        with SparkJob(tmp_path, settings, once=False, **at) as job:  # type: ignore[arg-type]
            kill_in_the_midst(job, random.Random(5))
        enough.set()
        job = SparkJob(tmp_path, settings, **at)  # type: ignore[arg-type]
        assert job.run(PATIENCE_S) == 0, job.log_tail()
    assert there(tmp_path / "table") == wanted(batches)
