"""Keys in a ledger on Spark: each once over all partitions, and nothing waits in a task for a twin."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.scenarios.spark_ledger import Scene, one_core
from tests.support.kafka import Broker
from tests.support.postgresql import PostgresqlServer
from tests.support.process import wait_until
from tests.support.spark.deliveries import dead_letters
from tests.support.spark.job import SparkJob


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_keys_come_once_on_one_core_and_through_an_outage_of_the_ledger(kafka: Broker, tmp_path: Path) -> None:
    """8 partitions on one core, winners that are dead-lettered, PostgreSQL down in mid-delivery: each key once."""
    with PostgresqlServer() as database:

        def outage(scene: Scene, job: SparkJob) -> None:
            rows = scene.receiver.stats
            wait_until(lambda: rows["rows"] > 500, 240, "it delivers", detail=job.log_tail)
            database.stop(signal.SIGQUIT)
            wait_until(lambda: job.events("ledger.failed"), 60, "tasks notice it", detail=job.log_tail)
            database.start()

        found = one_core(kafka, tmp_path, database, 3_000, outage)
    assert found.exact, found
    assert dead_letters(tmp_path / "spark-state").total() > 0
