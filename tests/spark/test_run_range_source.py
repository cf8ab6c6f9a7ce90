"""Which ranges our own source plans as topics come and go. No Spark runs, and no broker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from structlog.testing import capture_logs

from sidecar.core.records import TopicPartition
from sidecar.errors import PositionError
from sidecar.sources.kafka.offsets import is_meant
from sidecar.spark.ranges import broker, kafka
from sidecar.spark.ranges.broker import LogExtent, OnGap
from sidecar.spark.ranges.walk import Offsets
from sidecar.spark.run.range_source import RangePlan, RangePlanner, job_walk
from tests.support.spark.tasks import job_broker, make_settings

LIMIT = ReadMaxRows(1_000)
Logs = dict[tuple[str, int], tuple[int, int]]
ORDERS: Logs = {("orders", 0): (0, 900)}


def ranges_of(planner: RangePlanner, start: Offsets, end: Offsets) -> list[tuple[object, ...]]:
    """Topic, partition, start and end of each range, and how many offsets expired before it."""
    spans = [partition.value for partition in planner.partitions(start, end)]
    return [(span.tp.topic, span.tp.partition, span.start, span.end, span.expired) for span in spans]


def of(topic: str, partition: int, start: int, end: int, expired: int = 0) -> tuple[object, ...]:
    """A range in the form of `ranges_of`."""
    return topic, partition, start, end, expired


class FakeLogs:
    """Logs with these bounds."""

    def __init__(self, found: dict[TopicPartition, LogExtent], topics: Sequence[str]) -> None:
        self._found, self._topics = found, topics

    def bounds(self) -> dict[TopicPartition, LogExtent]:
        """All of them."""
        return self._found

    def is_read(self, topic: str) -> bool:
        """As the source has it."""
        return any(is_meant(pattern, topic) for pattern in self._topics)


class Planners:
    """Makes planners, each over the logs that there are by then; what they keep is in one folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._patch = monkeypatch

    def make(
        self, logs: Logs, topics: Sequence[str] = ("orders", "new"), span: int = 1_000, on_gap: OnGap = "stop"
    ) -> RangePlanner:
        """A planner of another life."""
        found = FakeLogs({TopicPartition(*place): LogExtent(*bounds) for place, bounds in logs.items()}, topics)
        self._patch.setattr(kafka.KafkaRanges, "logs", lambda _: found)
        source = {"kafka": {"bootstrap_servers": "h:1", "group_id": "g", "topics": list(topics)}}
        read = job_broker(make_settings("http://h/", source=source))
        return RangePlanner(RangePlan(job_walk(read, span, on_gap), self._folder, None))


@pytest.fixture
def planners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planners:
    """Of this test."""
    return Planners(tmp_path, monkeypatch)


@pytest.mark.parametrize("once", [False, True])
def test_a_new_partition_is_planned_from_its_logs_start(planners: Planners, once: bool) -> None:
    """Where it begins is kept before Spark has where it ends: another life, with a longer log, plans the same."""
    start = {"orders": {"0": 900}}
    planner = planners.make(ORDERS | {("orders", 1): (50, 60), ("new", 0): (1_000, 1_200)})
    if once:
        planner.prepareForTriggerAvailableNow()
    end = planner.latestOffset(start, LIMIT)
    ranges = [of("new", 0, 1_000, 1_200), of("orders", 1, 50, 60)]
    assert ranges_of(planner, start, end) == ranges
    later = planners.make({("orders", 0): (0, 950), ("orders", 1): (50, 70), ("new", 0): (1_000, 1_300)})
    assert ranges_of(later, start, end) == ranges
    assert ranges_of(later, end, later.latestOffset(end, LIMIT)) == [
        of("new", 0, 1_200, 1_300), of("orders", 0, 900, 950), of("orders", 1, 60, 70),
    ]  # fmt: skip


def test_a_start_that_no_micro_batch_has_yet_is_asked_for_again(planners: Planners) -> None:
    """After a crash before Spark's log had the plan, what expired meanwhile is not asked of the broker."""
    start = {"orders": {"0": 900}}
    planners.make(ORDERS | {("new", 0): (1_000, 1_200)}).latestOffset(start, LIMIT)
    planner = planners.make(ORDERS | {("new", 0): (1_100, 1_200)})
    assert ranges_of(planner, start, planner.latestOffset(start, LIMIT)) == [of("new", 0, 1_100, 1_200)]


def test_a_bound_is_shared_by_what_can_be_read(planners: Planners) -> None:
    """What expired before a partition was known is none of its lag: nothing ends below its log's start."""
    planner = planners.make({("orders", 0): (0, 1_000), ("new", 0): (9_000, 9_100)}, span=110)
    assert planner.latestOffset({"orders": {"0": 0}}, ReadMaxRows(110)) == {"orders": {"0": 100}, "new": {"0": 9_010}}


@pytest.mark.parametrize(
    ("logs", "topics", "told"),
    [
        (ORDERS, ("orders",), "old was removed from source.kafka.topics: add it again, or start over"),
        (ORDERS, ("orders", "^ol."), r"old\[0\] was read to 1200 and no longer exists: it was deleted"),
        (ORDERS | {("old", 0): (0, 7)}, ("^o",), r"old\[0\] ends at 7 and was read to 1200: it was created again"),
    ],
)
def test_what_became_of_a_topic_is_told(
    planners: Planners, tmp_path: Path, logs: Logs, topics: tuple[str, ...], told: str
) -> None:
    """Taken out of the file, deleted and made again are three errors, each with what to do."""
    planner = planners.make(logs, topics)
    with pytest.raises(PositionError, match=f"{told}.*spark.checkpoint"):
        planner.latestOffset({"old": {"0": 1_200}, "orders": {"0": 900}}, LIMIT)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The log events; the set-up of the log in the process for planning is left out."""
    monkeypatch.setattr(broker, "configure_log", lambda *_: None)
    with capture_logs() as events:
        yield events


EXPIRED: Logs = {("orders", 0): (950, 1_000), ("orders", 1): (0, 10)}
START = {"orders": {"0": 900, "1": 0}}


@pytest.mark.parametrize("is_replay", [False, True])
def test_what_expired_unread_stops_the_query(planners: Planners, is_replay: bool) -> None:
    """The error has the position and the start of the log, and the key that lets it go on; a replay has it too."""
    text = (
        r"orders\[0\] was read to 900, and its log begins at 950: 50 offsets expired before they were read\. With "
        r"spark\.on_gap: log_start it goes on at 950.*another spark\.checkpoint"
    )
    planner = planners.make(EXPIRED)
    with pytest.raises(PositionError, match=text) as caught:
        if is_replay:
            ranges_of(planner, START, {"orders": {"0": 990, "1": 0}})
        else:
            planner.latestOffset(START, LIMIT)
    assert caught.value.exit_code == 78


def test_each_partition_goes_on_at_its_logs_start(planners: Planners, told: list[Any]) -> None:
    """What expired is told and counted once, in whichever life the micro-batch is read; the next ones have no gap."""
    planner = planners.make(EXPIRED, on_gap="log_start")
    end = planner.latestOffset(START, LIMIT)
    assert end == {"orders": {"0": 1_000, "1": 10}}
    ranges = [of("orders", 0, 950, 1_000, expired=50), of("orders", 1, 0, 10)]
    assert ranges_of(planner, START, end) == ranges
    assert told == [
        {
            "event": "offset.expired", "log_level": "error", "topic": "orders", "partition": 0, "committed": 900,
            "log_start": 950, "expired": 50, "action": "going on at the log's start",
        }
    ]  # fmt: skip
    again = planners.make(EXPIRED, on_gap="log_start")
    assert ranges_of(again, START, end) == ranges
    assert again.latestOffset(end, LIMIT) == end
    assert ranges_of(again, end, {"orders": {"0": 1_001, "1": 10}}) == [of("orders", 0, 1_000, 1_001)]


def test_a_replay_leaves_out_what_expired_since_it_was_planned(planners: Planners, told: list[Any]) -> None:
    """A micro-batch whose messages are all gone has a range without one, which counts them; the rest is the next's."""
    planned = planners.make(ORDERS | {("orders", 1): (0, 10)}, on_gap="log_start")
    end = planned.latestOffset({"orders": {"0": 800, "1": 0}}, LIMIT)
    later = planners.make({("orders", 0): (930, 990), ("orders", 1): (4, 10)}, on_gap="log_start")
    assert ranges_of(later, {"orders": {"0": 800, "1": 0}}, end) == [
        of("orders", 0, 900, 900, expired=100), of("orders", 1, 4, 10, expired=4),
    ]  # fmt: skip
    following = later.latestOffset(end, LIMIT)
    assert ranges_of(later, end, following) == [of("orders", 0, 930, 990, expired=30)]
    assert [event["expired"] for event in told] == [100, 4, 30]


def test_a_pending_range_of_a_topic_that_is_gone_stops_the_query(planners: Planners) -> None:
    """No task waits for its messages."""
    planner = planners.make({("new", 0): (0, 1)}, on_gap="log_start")
    with pytest.raises(PositionError, match=r"orders\[0\] was read to 900 and no longer exists"):
        ranges_of(planner, {"orders": {"0": 900}}, {"orders": {"0": 950}})


def test_a_run_that_ends_by_itself_sees_what_expires_meanwhile(planners: Planners, told: list[Any]) -> None:
    """Its ends are those at its start, the starts of the logs those of each micro-batch."""
    planner = planners.make({("orders", 0): (0, 300)}, on_gap="log_start", span=100)
    planner.prepareForTriggerAvailableNow()
    end = planner.latestOffset({"orders": {"0": 0}}, ReadMaxRows(100))
    assert end == {"orders": {"0": 100}}
    planner._logs._found = {TopicPartition("orders", 0): LogExtent(150, 900)}  # type: ignore[attr-defined]
    following = planner.latestOffset(end, ReadMaxRows(100))
    assert ranges_of(planner, end, following) == [of("orders", 0, 150, 250, expired=50)]
    planner._logs._found = {TopicPartition("orders", 0): LogExtent(400, 900)}  # type: ignore[attr-defined]
    assert planner.latestOffset(following, ReadMaxRows(100)) == {"orders": {"0": 400}}
