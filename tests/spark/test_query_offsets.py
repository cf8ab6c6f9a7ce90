"""Which ranges a query plans as logs come, grow and go, from its offsets alone. No Spark runs, and no broker."""

from __future__ import annotations

import json
from typing import cast

import pytest

from sidecar.core.records import TopicPartition
from sidecar.errors import ConfigError, PositionError
from sidecar.spark.query import offsets
from sidecar.spark.query.offsets import START_OVER, Place, ended, kept, parsed
from sidecar.spark.ranges import walk
from sidecar.spark.ranges.broker import BrokerRanges, LogExtent, OnGap
from sidecar.spark.ranges.walk import Offsets, Span, Walk

A, B = TopicPartition("a", 0), TopicPartition("a", 1)
QUEUE = TopicPartition("q", 3, "broker:x/ä")


def walk_of(on_gap: OnGap = "stop") -> Walk:
    """The rules of a query's walk."""
    return Walk(cast("BrokerRanges", None), on_gap, "the option topics", "the option on_gap", START_OVER)


def begin(logs: FakeLogs, start: Place) -> Offsets:
    """The offsets of a query that has read nothing, as Spark's log has them."""
    return kept(offsets.begin(logs, start))


def spans(start: Offsets, end: Offsets) -> list[Span]:
    """The ranges between two offsets of Spark's log."""
    return walk.spans(parsed(start), parsed(end))


class FakeLogs:
    """Logs with these bounds."""

    def __init__(self, found: dict[TopicPartition, tuple[int, int]], topic_id: str = "id") -> None:
        self.found = {tp: LogExtent(*bounds) for tp, bounds in found.items()}
        self.topic_id = topic_id
        self.unread = ""

    def bounds(self) -> dict[TopicPartition, LogExtent]:
        """All of them."""
        return self.found

    def at_time(self, bounds: object, at_ms: int) -> dict[TopicPartition, int]:
        """The time as an offset."""
        return dict.fromkeys(self.found, at_ms)

    def topic_ids(self, topics: list[str]) -> dict[str, str]:
        """The same for all."""
        return dict.fromkeys(topics, self.topic_id)

    def is_read(self, topic: str) -> bool:
        """All but one."""
        return topic != self.unread

    def close(self) -> None:
        """Nothing is open."""

    def after(self, start: Offsets, most: int | None = None, on_gap: OnGap = "stop") -> Offsets:
        """The end of the next micro-batch, as Spark's log has it."""
        end = walk_of(on_gap).advance(self, parsed(start), self.found, most)
        return json.loads(json.dumps(kept(end)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("start", "first"), [("earliest", (5, 10)), ("latest", (None, None)), (7, (7, 10))])
def test_a_first_micro_batch_has_its_start_in_its_offsets(start: str | int, first: tuple[int, int]) -> None:
    """A replay plans the same ranges, though logs and start are others by then."""
    logs = FakeLogs({A: (5, 10)})
    end = logs.after(begin(logs, start))
    expected = [Span(A, "id", *first, is_first=True)] if first[0] is not None else []
    assert spans(begin(logs, start), end) == expected
    later = FakeLogs({A: (9, 90), B: (0, 3)})
    assert spans(begin(later, start), end) == expected
    is_first = not expected
    found = spans(end, later.after(end))
    assert found == [Span(A, "id", 10, 90, is_first), Span(B, "id", 0, 3, is_first=True)]


def test_a_partition_that_was_empty_begins_with_its_first_range() -> None:
    """Its task has no ids to look for; a task that reads on has some."""
    logs = FakeLogs({A: (0, 10), B: (4, 4)})
    first = logs.after(begin(logs, "latest"))
    assert spans(begin(logs, "latest"), first) == []
    logs.found = {A: LogExtent(0, 12), B: LogExtent(4, 5)}
    second = logs.after(first)
    assert spans(first, second) == [Span(A, "id", 10, 12, is_first=True), Span(B, "id", 4, 5, is_first=True)]
    logs.found = {A: LogExtent(0, 13), B: LogExtent(4, 5)}
    assert spans(second, logs.after(second)) == [Span(A, "id", 12, 13, is_first=False)]


def test_nothing_new_is_no_micro_batch() -> None:
    """The offsets stay as they are, character by character, also after one that had new partitions."""
    logs = FakeLogs({A: (0, 10), QUEUE: (2, 2)})
    first = logs.after(begin(logs, "earliest"))
    assert logs.after(first) is not None
    assert json.dumps(logs.after(first)) == json.dumps(first)


def test_the_limit_is_shared_by_lag() -> None:
    """Who is further behind gets more, and all is read in the end."""
    logs, seen = FakeLogs({A: (0, 900), B: (50, 150), QUEUE: (0, 0)}), []
    at = begin(logs, "earliest")
    while (end := logs.after(at, 100)) != at:
        seen.append([(span.tp, span.start, span.end) for span in spans(at, end)])
        at = end
    assert seen[0] == [(A, 0, 90), (B, 50, 60)]
    assert [sum(end - start for _, start, end in some) for some in seen] == [100] * 10


def test_a_queue_of_any_broker_has_its_offsets() -> None:
    """Names of brokers may have colons and slashes."""
    logs = FakeLogs({QUEUE: (0, 4)})
    at = begin(logs, "earliest")
    assert spans(at, logs.after(at)) == [Span(QUEUE, "id", 0, 4, is_first=True)]


@pytest.mark.parametrize(
    ("logs", "told"),
    [
        (FakeLogs({B: (0, 1)}), r"a\[0\] was read to 10 and no longer exists: it was deleted"),
        (FakeLogs({A: (0, 9)}), r"a\[0\] ends at 9 and was read to 10: it was created again"),
        (FakeLogs({A: (0, 20)}, "other"), "a was deleted and created again"),
    ],
)
def test_what_became_of_a_topic_is_told(logs: FakeLogs, told: str) -> None:
    """Deleted, shorter, and made again are errors that say what to do; so is a topic that is left out."""
    before = FakeLogs({A: (0, 10)})
    at = before.after(begin(before, "earliest"))
    with pytest.raises(PositionError, match=f"{told}.*another checkpoint"):
        logs.after(at)
    before.unread = "a"
    with pytest.raises(PositionError, match="a was removed from the option topics: add it again"):
        before.after(at)


LOGS = {A: (5, 10), B: (0, 3)}


@pytest.mark.parametrize(
    ("start", "end", "read"),
    [
        ({A: 7, B: "earliest"}, None, [(A, 7, 10), (B, 0, 3)]),
        ({A: "latest", B: 3}, None, []),
        ("earliest", {A: 6, B: "latest"}, [(A, 5, 6), (B, 0, 3)]),
        ({A: 6, B: 1}, {A: 6, B: 2}, [(B, 1, 2)]),
        ("earliest", 7, [(A, 5, 7), (B, 0, 3)]),  # a time at which a message beyond the log's end came
        ("latest", 7, []),
        ("earliest", "latest", [(A, 5, 10), (B, 0, 3)]),
    ],
)
def test_a_read_has_what_is_between_its_places(start: Place, end: Place | None, read: list[tuple[object, ...]]) -> None:
    """The end is not read; a time that lies before the start leaves nothing."""
    logs = FakeLogs(LOGS)
    first = offsets.begin(logs, start)
    bounds = logs.found if end is None else ended(logs, logs.found, first.firsts, end)
    found = walk.spans(first, walk_of().advance(logs, first, bounds, None))
    assert [(span.tp, span.start, span.end) for span in found] == read


@pytest.mark.parametrize(
    ("start", "end", "told"),
    [
        ({A: 7}, None, r"option start names no offset of a\[1\]: name all partitions that are read"),
        ({A: 7, B: 0, QUEUE: 1}, None, r"option start names q\[.*3\]: there is no such partition"),
        ({A: 4, B: 0}, None, r"option start is 4 for a\[0\], whose log has the offsets from 5 to 10"),
        ({A: 5, B: 4}, None, r"option start is 4 for a\[1\], whose log has the offsets from 0 to 3"),
        ("earliest", {A: 11, B: 0}, r"option end is 11 for a\[0\], whose log has the offsets from 5 to 10"),
        ({A: 9, B: 0}, {A: 8, B: 0}, r"option end is 8 for a\[0\], where the read begins at 9"),
    ],
)
def test_places_that_do_not_fit_the_logs_are_told(start: Place, end: Place | None, told: str) -> None:
    """Each with the partition, and what is there."""
    logs = FakeLogs(LOGS)
    with pytest.raises(ConfigError, match=told):
        ended(logs, logs.found, offsets.begin(logs, start).firsts, end or "latest")


def test_what_expired_unread_is_an_error_or_left_out() -> None:
    """The error has the position and the start of the log; with `log_start` each partition goes on there, once."""
    logs = FakeLogs({A: (0, 10), B: (0, 10)})
    first = logs.after(begin(logs, "earliest"))
    logs.found = {A: LogExtent(14, 20), B: LogExtent(0, 11)}
    told = r"a\[0\] was read to 10, and its log begins at 14: 4 offsets expired.*option on_gap: log_start.*checkpoint"
    with pytest.raises(PositionError, match=told) as caught:
        logs.after(first)
    assert caught.value.exit_code == 78
    second = logs.after(first, on_gap="log_start")
    assert spans(first, second) == [
        Span(A, "id", 14, 20, is_first=False, expired=4), Span(B, "id", 10, 11, is_first=False),
    ]  # fmt: skip
    logs.found = {A: LogExtent(14, 21), B: LogExtent(0, 11)}
    third = logs.after(second, on_gap="log_start")
    assert spans(second, third) == [Span(A, "id", 20, 21, is_first=False)]
    assert third["skipped"] == {}


def test_a_replay_leaves_out_what_expired_since_it_was_planned() -> None:
    """What is counted as expired never reaches beyond the micro-batch; with `stop` it is an error."""
    logs = FakeLogs({A: (0, 10), B: (0, 10)})
    start = begin(logs, "earliest")
    end = logs.after(start)
    bounds = {A: LogExtent(12, 30), B: LogExtent(3, 30)}
    begun, planned = parsed(start), parsed(end)
    assert walk.spans(begun, walk_of("log_start").replay(logs, begun, planned, bounds)) == [
        Span(A, "id", 10, 10, is_first=True, expired=10), Span(B, "id", 3, 10, is_first=True, expired=3),
    ]  # fmt: skip
    with pytest.raises(PositionError, match=r"a\[0\] was read to 0, and its log begins at 12"):
        walk_of().replay(logs, begun, planned, bounds)


@pytest.mark.parametrize("version", [None, 2])
def test_offsets_of_another_version_are_refused(version: int | None) -> None:
    """In words, with what to do."""
    with pytest.raises(PositionError, match=rf"offsets of version {version}, and this program knows 1.*checkpoint"):
        parsed({"v": version, "next": {}})
