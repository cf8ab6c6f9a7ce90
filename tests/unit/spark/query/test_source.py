"""What planning of a query does while its broker restarts. No Spark runs, and no broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructField, StructType
from structlog.testing import capture_logs

from sidecar.core.records import TopicPartition
from sidecar.errors import ConfigError, UnavailableError
from sidecar.spark.query import source
from sidecar.spark.query.options import Query, parse_options
from sidecar.spark.query.source import QueryReader, QueryStreamReader
from sidecar.spark.ranges import broker, kafka
from sidecar.spark.ranges.broker import LogExtent

TP: Final = TopicPartition("orders", 0)
START: Final = {"v": 1, "next": {}, "from": {"orders": {"0": 4}}, "ids": {}, "name": "", "skipped": {}}
OPTIONS: Final[dict[str, str]] = {
    "bootstrap_servers": "localhost:1",
    "topics": "orders",
    "start": "2026-11-28T00:00:00Z",
}


class RestartingLogs:
    """Logs of a broker that does not answer the first questions of a kind.

    Args:
        question: The kind of question.
        times: How many of them it does not answer.
    """

    def __init__(self, question: str, times: int) -> None:
        self._question, self.left = question, times

    def _ask(self, question: str) -> None:
        if question == self._question and self.left:
            self.left -= 1
            raise UnavailableError("it restarts")

    def bounds(self) -> dict[TopicPartition, LogExtent]:
        """Those of one log."""
        self._ask("bounds")
        return {TP: LogExtent(0, 10)}

    def at_time(self, bounds: object, at_ms: int) -> dict[TopicPartition, int]:
        """The same for any time."""
        self._ask("at_time")
        return {TP: 4}

    def topic_ids(self, topics: list[str]) -> dict[str, str]:
        """The same for all."""
        self._ask("topic_ids")
        return dict.fromkeys(topics, "id")

    def is_read(self, topic: str) -> bool:
        """All are."""
        return bool(topic)

    def close(self) -> None:
        """Nothing is open."""


Plan = Callable[[Query], object]
PLANS: Final[dict[str, Plan]] = {
    "start": lambda query: QueryStreamReader(query).initialOffset(),
    "micro-batch": lambda query: QueryStreamReader(query).latestOffset(START, ReadAllAvailable()),
    "batch read": lambda query: [found.value for found in QueryReader(query).partitions()],
}


def planned(monkeypatch: pytest.MonkeyPatch, plan: str, question: str, times: int) -> object:
    """What is planned while this question is not answered so many times."""
    monkeypatch.setattr(kafka.KafkaRanges, "logs", lambda _: RestartingLogs(question, times))
    return PLANS[plan](parse_options("kafka", OPTIONS, stream=None))


@pytest.mark.parametrize("question", ["bounds", "at_time", "topic_ids"])
@pytest.mark.parametrize("plan", PLANS)
def test_planning_waits_for_a_broker_that_restarts(monkeypatch: pytest.MonkeyPatch, plan: str, question: str) -> None:
    """Whatever the broker does not answer is asked again, and the plan is that of a broker that answers."""
    monkeypatch.setattr(broker, "RETRY_S", 0.0)
    assert planned(monkeypatch, plan, question, times=3) == planned(monkeypatch, plan, question, times=0)


def test_planning_ends_with_an_error_if_the_broker_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """One time limit holds for all questions: `start_timeout` until the first plan, and then another one."""
    monkeypatch.setattr(broker, "RETRY_S", 0.0)
    monkeypatch.setattr(broker, "PATIENCE_S", 0.0)
    times = 3
    for plan in PLANS:
        assert planned(monkeypatch, plan, "bounds", times)
    logs = RestartingLogs("bounds", 0)
    monkeypatch.setattr(kafka.KafkaRanges, "logs", lambda _: logs)
    reader = QueryStreamReader(parse_options("kafka", OPTIONS, stream=True))
    start = reader.initialOffset()
    logs.left = times
    with pytest.raises(UnavailableError, match="it restarts"):
        reader.latestOffset(start, ReadAllAvailable())


@pytest.mark.parametrize("plan", PLANS)
def test_a_query_waits_for_its_start_timeout(monkeypatch: pytest.MonkeyPatch, plan: str) -> None:
    """And no longer, however long a running query waits."""
    monkeypatch.setitem(OPTIONS, "start_timeout", "100ms")
    began_s = time.monotonic()
    with pytest.raises(UnavailableError, match="it restarts"):
        planned(monkeypatch, plan, "bounds", times=1_000_000)
    assert time.monotonic() - began_s < broker.PATIENCE_S / 2


def test_a_source_makes_the_reader_that_is_asked_for() -> None:
    """All messages for a batch, micro-batches for a stream; columns are chosen by an option alone."""
    made = source.KafkaQuerySource({**OPTIONS, "columns": "offset"})
    schema = StructType([StructField("offset", LongType())])
    assert isinstance(made.reader(schema), QueryReader)
    assert isinstance(made.streamReader(schema), QueryStreamReader)
    assert (made.name(), source.RocketMqQuerySource.name()) == ("sidecar-kafka", "sidecar-rocketmq")
    with pytest.raises(ConfigError, match="choose columns with the option columns"):
        made.reader(StructType([StructField("value", LongType())]))


def test_sources_keep_ids_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A query may read a topic twice: each source has a name of its own, which its later offsets have too."""
    monkeypatch.setattr(kafka.KafkaRanges, "logs", lambda _: RestartingLogs("", 0))
    query = parse_options("kafka", {**OPTIONS, "dedup.by": "key", "state": str(tmp_path)}, stream=True)
    readers = [QueryStreamReader(query) for _ in range(2)]
    firsts = [reader.initialOffset() for reader in readers]
    assert firsts[0]["name"] != firsts[1]["name"]
    for reader, first in zip(readers, firsts, strict=True):
        end = reader.latestOffset(first, ReadAllAvailable())
        assert end["name"] == first["name"]
        for _ in range(2):  # as after a crash
            reader.partitions(first, end)
        assert [path.name for path in (tmp_path / end["name"]).rglob("*.json")] == ["4.json"]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("is_replay", [False, True])
def test_what_expired_is_told_when_its_micro_batch_is_read(monkeypatch: pytest.MonkeyPatch, is_replay: bool) -> None:
    """Also if it expired after an earlier life had planned it."""
    monkeypatch.setattr(broker, "configure_log", lambda *_: None)
    logs = RestartingLogs("", 0)
    monkeypatch.setattr(kafka.KafkaRanges, "logs", lambda _: logs)
    reader = QueryStreamReader(parse_options("kafka", OPTIONS | {"on_gap": "log_start"}, stream=None))
    start = START | {"next": {"orders": {"0": 4}}, "ids": {"orders": "id"}}
    end = reader.latestOffset(start, ReadAllAvailable()) if is_replay else {}
    monkeypatch.setattr(logs, "bounds", lambda: {TP: LogExtent(7, 10)})
    if is_replay:
        reader = QueryStreamReader(parse_options("kafka", OPTIONS | {"on_gap": "log_start"}, stream=None))
    else:
        end = reader.latestOffset(start, ReadAllAvailable())
    with capture_logs() as events:
        (found,) = reader.partitions(start, end)
    assert (found.value.start, found.value.end, found.value.expired) == (7, 10, 3)
    assert [(event["event"], event["committed"], event["log_start"], event["expired"]) for event in events] == [
        ("offset.expired", 4, 7, 3)
    ]
