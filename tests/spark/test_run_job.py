"""`sidecar spark run` on real Spark and a real broker: the daemon's deliveries, kills, stops, changed settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import MakeTopic
from tests.spark.job import SparkJob
from tests.spark.mixture import POISON, assert_repeats_are_equal, config, dead_letters, grouped, mixture
from tests.support.audit import check_books, tally
from tests.support.kafka import Broker, produce, produce_transaction
from tests.support.process import Daemon, free_ports, http_get, wait_until
from tests.support.receiver import Receiver, value_hash
from tests.support.scene import await_rest

PATIENCE_S = 240.0


@pytest.mark.slow
def test_the_same_file_gives_the_same_on_both_engines(
    kafka: Broker, make_topic: MakeTopic, group: str, tmp_path: Path
) -> None:
    """Duplicates by id, poison and unwanted tags end alike on daemon and Spark; started again, nothing is sent."""
    topic = make_topic(2)
    made = mixture(topic, 5_000, 2)
    produce(kafka.bootstrap, topic, made.messages)
    with Receiver() as one, Receiver() as two:
        for receiver in (one, two):
            receiver.fail("refuse", status=400, marker=POISON.decode())
        with Daemon(tmp_path, config(kafka, topic, f"{group}-daemon", one.url)) as daemon:
            daemon.wait_ready()
            books = await_rest(daemon, 60, {(topic, p): end for p, end in kafka.end_offsets(topic).items()})
            daemon.terminate()
        job = SparkJob(tmp_path, config(kafka, topic, f"{group}-spark", two.url))
        assert job.run() == 0, job.log_tail()
        requests = two.stats["requests"]
        assert job.run() == 0, job.log_tail()
        assert two.stats["requests"] == requests
        tally(two.rows(), made.wanted).assert_exact()
        assert grouped(one) == grouped(two)
    letters = dead_letters(tmp_path / "spark-state")
    assert letters == dead_letters(tmp_path / "sidecar-state")
    assert {found[:3] for found in letters} == made.dead
    (batch,) = job.events("micro_batch.delivered")
    outcomes = ("consumed", "delivered", "duplicate", "filtered", "dead_lettered")
    assert [batch[name] for name in outcomes] == [books[name] for name in outcomes]
    assert (batch["duplicate"], batch["filtered"]) == (made.duplicate, made.filtered)
    assert not job.events("micro_batch.unbalanced")


@pytest.mark.slow
def test_a_killed_driver_goes_on_with_other_parallelism(
    kafka: Broker, make_topic: MakeTopic, group: str, tmp_path: Path
) -> None:
    """After kill -9 nothing is lost, twice under another name or of other bytes; SIGTERM ends it with 0."""
    topic = make_topic(3)
    made = mixture(topic, 9_000, 3)
    produce(kafka.bootstrap, topic, made.messages)
    with Receiver() as receiver:
        receiver.fail("refuse", status=400, marker=POISON.decode())
        receiver.fail("lost", rate=0.02)
        receiver.fail("slow", delay_ms=100)
        admin = f"127.0.0.1:{free_ports(1)[0]}"
        settings = config(kafka, topic, group, receiver.url, admin={"listen": admin})
        with SparkJob(tmp_path, settings, master="local[3,4]", once=False) as job:
            wait_until(lambda: receiver.stats["requests"] > 60, PATIENCE_S, "it delivers", detail=job.log_tail)
            job.kill()
        assert len(receiver.rows()) < len(made.wanted), "it was done before it was killed"

        # What would cut the pending micro-batch otherwise is refused, by its name.
        changed = {**settings, "batch": {"linger": "20ms", "max_messages": 51}}
        job = SparkJob(tmp_path, changed)
        assert job.run() == 78, job.log_tail()
        assert "batch.max_messages changed while micro-batch 0 is pending" in job.log_tail()

        receiver.faults[-1].delay_ms = 1
        with SparkJob(tmp_path, settings, master="local[1,4]", once=False) as job:
            wait_until(
                lambda: len(job.events("query.started")) == 2, PATIENCE_S, "it starts again", detail=job.log_tail
            )

            def status_at_rest() -> dict[str, Any]:
                found: dict[str, Any] = json.loads(http_get(f"http://{admin}/status")[1])
                check_books(found)
                return found if found["consumed"] >= len(made.messages) and found["lag"] is not None else {}

            status = wait_until(status_at_rest, PATIENCE_S, "the books are entered", detail=job.log_tail)
            assert status["dead_letters_stored"] == len(made.dead)
            assert status["lag"] == 0 and not status["problems"]
            metrics = http_get(f"http://{admin}/metrics")[1].decode()
            assert 'sidecar_batches_total{group="both",result="dead_lettered"}' in metrics
            job.stop()
            assert job.wait() == 0, job.log_tail()
        tally(receiver.rows(), made.wanted).assert_exact()
        assert assert_repeats_are_equal(receiver) > 0
    assert {found[:3] for found in dead_letters(tmp_path / "spark-state")} == made.dead
    assert not job.events("micro_batch.unbalanced")


@pytest.mark.slow
def test_without_a_connector_our_own_source_reads_the_same(
    kafka: Broker, make_topic: MakeTopic, group: str, tmp_path: Path
) -> None:
    """Where Spark has no jar for Kafka the same messages arrive, in micro-batches of at most `span_max`."""
    topic = make_topic(2)
    made = mixture(topic, 5_000, 2)
    produce_transaction(kafka.bootstrap, topic, made.messages[:2_000], transactional_id=group)
    produce_transaction(kafka.bootstrap, topic, made.messages[:600], transactional_id=group, commit=False)
    with Receiver() as receiver:
        settings = config(
            kafka, f"^{topic[:-2]}", group, receiver.url, dedup={"by": "position"},
            batch={"linger": "20ms", "max_messages": 50, "span_max": 1_500},
        )  # fmt: skip
        job = SparkJob(tmp_path, settings, jars=False)
        assert job.run() == 0, job.log_tail()
        assert job.events("connector.missing")
        wanted = {
            (topic, one.partition, i // 2): value_hash(one.value)
            for i, one in enumerate(made.messages[:2_000])
            if (one.headers or [])[1][1] != b"x"
        }
        tally(receiver.rows(), wanted).assert_exact()
        assert len(job.events("micro_batch.delivered")) == 2
        assert not job.events("micro_batch.unbalanced")
