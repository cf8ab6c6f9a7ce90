"""Which ranges our own source plans as topics come and go. No Spark runs, and no broker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from sidecar.config.source.section import Source
from sidecar.core.records import TopicPartition
from sidecar.errors import StateError
from sidecar.sources.kafka.start.offsets import Bounds, is_meant
from sidecar.spark.ranges import sources
from sidecar.spark.run.range_source import Range, RangePlanner, Reading

LIMIT = ReadMaxRows(1)
Logs = dict[tuple[str, int], tuple[int, int]]
ORDERS: Logs = {("orders", 0): (0, 900)}


class FakeLogs:
    """Logs with these bounds."""

    def __init__(self, found: dict[TopicPartition, Bounds], topics: Sequence[str]) -> None:
        self._found, self._topics = found, topics

    def bounds(self) -> dict[TopicPartition, Bounds]:
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

    def make(self, logs: Logs, topics: Sequence[str] = ("orders", "new"), span: int = 1_000) -> RangePlanner:
        """A planner of another life."""
        found = FakeLogs({TopicPartition(*place): Bounds(*bounds) for place, bounds in logs.items()}, topics)
        self._patch.setattr(sources, "logs_of", lambda *_, **__: found)
        kafka = {"bootstrap_servers": "h:1", "group_id": "g", "topics": list(topics)}
        return RangePlanner(Reading(Source.model_validate({"kafka": kafka}), self._folder, span, None))


@pytest.fixture
def planners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planners:
    """Of this test."""
    return Planners(tmp_path, monkeypatch)


@pytest.mark.parametrize("once", [False, True])
def test_a_new_partition_is_planned_from_its_logs_start(planners: Planners, once: bool) -> None:
    """Where it begins is kept before Spark has where it ends: another life, with a younger log, plans the same."""
    start = {"orders": {"0": 900}}
    planner = planners.make(ORDERS | {("orders", 1): (50, 60), ("new", 0): (1_000, 1_200)})
    if once:
        planner.prepareForTriggerAvailableNow()
    end = planner.latestOffset(start, LIMIT)
    ranges = [Range("new", 0, 1_000, 1_200), Range("orders", 1, 50, 60)]
    assert planner.partitions(start, end) == ranges
    later = planners.make({("orders", 0): (0, 950), ("orders", 1): (55, 70), ("new", 0): (1_100, 1_300)})
    assert later.partitions(start, end) == ranges
    assert later.partitions(end, later.latestOffset(end, LIMIT)) == [
        Range("new", 0, 1_200, 1_300), Range("orders", 0, 900, 950), Range("orders", 1, 60, 70),
    ]  # fmt: skip


def test_a_start_that_no_micro_batch_has_yet_is_asked_for_again(planners: Planners) -> None:
    """After a crash before Spark's log had the plan, what expired meanwhile is not asked of the broker."""
    start = {"orders": {"0": 900}}
    planners.make(ORDERS | {("new", 0): (1_000, 1_200)}).latestOffset(start, LIMIT)
    planner = planners.make(ORDERS | {("new", 0): (1_100, 1_200)})
    assert planner.partitions(start, planner.latestOffset(start, LIMIT)) == [Range("new", 0, 1_100, 1_200)]


def test_a_bound_is_shared_by_what_can_be_read(planners: Planners) -> None:
    """What expired before a partition was known is none of its lag: nothing ends below its log's start."""
    planner = planners.make({("orders", 0): (0, 1_000), ("new", 0): (9_000, 9_100)}, span=110)
    assert planner.latestOffset({"orders": {"0": 0}}, LIMIT) == {"orders": {"0": 100}, "new": {"0": 9_010}}


@pytest.mark.parametrize(
    ("logs", "topics", "told"),
    [
        (ORDERS, ("orders",), "old was removed from source.kafka.topics: add it again, or begin anew"),
        (ORDERS, ("orders", "^ol."), r"old\[0\] was read to 1200 and is not there any more: it was deleted"),
        (ORDERS | {("old", 0): (0, 7)}, ("^o",), r"old\[0\] ends at 7 and was read to 1200: it was created again"),
    ],
)
def test_what_became_of_a_topic_is_told(
    planners: Planners, tmp_path: Path, logs: Logs, topics: tuple[str, ...], told: str
) -> None:
    """Taken out of the file, deleted and made again are three errors, each with what to do."""
    planner = planners.make(logs, topics)
    with pytest.raises(StateError, match=f"{told}.*spark.checkpoint"):
        planner.latestOffset({"old": {"0": 1_200}, "orders": {"0": 900}}, LIMIT)
    assert list(tmp_path.iterdir()) == []
