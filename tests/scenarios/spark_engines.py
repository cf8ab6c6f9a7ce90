"""One file through the daemon and through Spark, compared."""

from __future__ import annotations

import time
from pathlib import Path

from tests.scenarios.exactly_once import ends, new_topics
from tests.support.audit import Finding
from tests.support.kafka import Broker
from tests.support.process import Daemon
from tests.support.scene import await_rest
from tests.support.spark.deliveries import ComparingReceiver, assert_dead, config, dead_letters, workload
from tests.support.spark.job import SparkJob

OUTCOMES = ("consumed", "delivered", "duplicate", "filtered", "dead_lettered")


def engines(broker: Broker, folder: Path, messages: int, *, reader: str = "connector") -> Finding:
    """Messages of every kind through both: the same rows in the same groups, the same dead letters and counts."""
    begun = time.monotonic()
    topics = new_topics(broker, 2, 3)
    expected = workload(topics, 3, messages).produce(broker.bootstrap)
    patience_s = 240 + messages / 500
    with ComparingReceiver(expected) as by_daemon, ComparingReceiver(expected) as by_spark:
        with Daemon(folder, config(broker, topics, by_daemon.url)) as daemon:
            daemon.wait_ready()
            books = await_rest(daemon, patience_s, ends(broker, topics))
            daemon.stop()
        job = SparkJob(folder, config(broker, topics, by_spark.url), reader=reader)
        assert job.run(patience_s) == 0, job.log_tail()
        assert by_daemon.tally().exact
        found = by_spark.tally()
        assert by_daemon.grouped() == by_spark.grouped()
    assert_dead(daemon.state_dir, expected)
    assert dead_letters(job.state) == dead_letters(daemon.state_dir)
    batches = job.events("micro_batch.delivered")
    assert {name: sum(one[name] for one in batches) for name in OUTCOMES} == {name: books[name] for name in OUTCOMES}
    assert not job.events("micro_batch.unbalanced")
    counts = ", ".join(f"{name} {books[name]:,}" for name in OUTCOMES[1:])
    ways = f"`sidecar run` and `sidecar spark run` (`reader: {reader}`)"
    point = f"the same file through {ways}, every kind of value, duplicates by id, poison"
    return Finding(point, 1, messages, found, time.monotonic() - begun, f"on both: {counts}")
