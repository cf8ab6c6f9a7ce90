"""`sidecar spark run` on real Spark and a real broker: pending micro-batches, stops, what is told, our own source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.exactly_once import new_topics
from tests.support.audit import check_books
from tests.support.kafka import Broker, produce_transaction
from tests.support.process import free_ports, http_get, wait_until
from tests.support.spark.deliveries import ComparingReceiver, assert_dead, config, dead, workload
from tests.support.spark.job import SparkJob

PATIENCE_S = 240.0


@pytest.mark.proof
@pytest.mark.timeout(900)  # three JVMs
def test_a_pending_micro_batch_is_ended_with_the_settings_it_was_begun_with(kafka: Broker, tmp_path: Path) -> None:
    """After kill -9 other cuts are refused; with the old ones it goes on, tells its books, and SIGTERM ends it."""
    topics = new_topics(kafka, 1, 3)
    expected = workload(topics, 3, 9_000).produce(kafka.bootstrap)
    with ComparingReceiver(expected) as receiver:
        receiver.fail("slow", delay_ms=400)
        admin = f"127.0.0.1:{free_ports(1)[0]}"
        settings = config(kafka, topics, receiver.url, admin={"listen": admin})
        with SparkJob(tmp_path, settings, once=False) as job:
            wait_until(lambda: receiver.stats["requests"] > 20, PATIENCE_S, "it delivers", detail=job.log_tail)
            job.kill()
        assert len(receiver.rows()) < len(expected.wanted) // 2, "it was done before it was killed"

        job = SparkJob(tmp_path, settings | {"batch": {"linger": "20ms", "max_messages": 101}})
        assert job.run() == 78, job.log_tail()
        assert "batch.max_messages changed while micro-batch 0 is pending" in job.log_tail()

        receiver.faults[-1].delay_ms = 1
        with SparkJob(tmp_path, settings, once=False) as job:
            wait_until(lambda: len(job.events("query.started")) == 2, PATIENCE_S, "it starts", detail=job.log_tail)

            def status_at_rest() -> dict[str, Any]:
                code, body = http_get(f"http://{admin}/status", timeout_s=10)
                if code != 200:
                    return {}
                found: dict[str, Any] = json.loads(body)
                check_books(found)
                return found if found["consumed"] >= expected.count and found["lag"] is not None else {}

            status = wait_until(status_at_rest, PATIENCE_S, "the books are entered", detail=job.log_tail)
            assert status["dead_letters_stored"] == len(dead(expected))
            assert status["lag"] == 0 and not status["problems"]
            assert status["tags_refused"] == {"mask": 0, "look": 0}, "the connector drops all in the JVM"
            metrics = http_get(f"http://{admin}/metrics", timeout_s=10)[1].decode()
            assert 'result="dead_lettered"}' in metrics
            job.stop()
            assert job.wait() == 0, job.log_tail()
        assert receiver.tally().exact
        assert receiver.repeats > 0
    assert_dead(job.state, expected)
    assert not job.events("micro_batch.unbalanced")


@pytest.mark.proof
def test_without_a_connector_our_own_source_reads_the_same(kafka: Broker, tmp_path: Path) -> None:
    """Where Spark has no jar for Kafka the same messages arrive, in micro-batches of at most `span_max`."""
    topics = new_topics(kafka, 1, 2)
    work = workload(topics, 2, 2_000)
    messages = [message for _, message in work.some(2_000)]
    produce_transaction(kafka.bootstrap, topics[0], messages, transactional_id=topics[0])
    produce_transaction(kafka.bootstrap, topics[0], messages[:600], transactional_id=topics[0], commit=False)
    with ComparingReceiver(work.expected) as receiver:
        batch = {"linger": "20ms", "max_messages": 50, "span_max": 1_500}
        settings = config(kafka, [f"^{topics[0][:-2]}"], receiver.url, batch=batch)
        job = SparkJob(tmp_path, settings, jars=False)
        assert job.run() == 0, job.log_tail()
        assert receiver.tally().exact
    assert_dead(job.state, work.expected)
    assert job.events("connector.missing")
    assert len(job.events("micro_batch.delivered")) == 2
    assert not job.events("micro_batch.unbalanced")
