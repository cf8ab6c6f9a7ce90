"""The books of micro-batches, added up: when everything is filtered, and ids that are none. No Spark."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

from sidecar.core.books import Books
from sidecar.core.intake.intake import FIRST
from sidecar.core.messages.tags import UNWANTED_MAX
from sidecar.core.records import TopicPartition
from sidecar.ops.metrics import Metrics
from sidecar.ops.snapshot import StatusSnapshot
from sidecar.spark.run.outcome import Outcome, books_of, joined
from sidecar.spark.run.progress import RunTally


def outcome(consumed: int, filtered: int, odd_ids: int = 0, *unwanted: str) -> Outcome:
    """Of a task, which delivers what it does not filter."""
    books = Books(consumed=consumed, filtered=filtered, delivered=consumed - filtered)
    return Outcome(TopicPartition("orders", 0), books=books, odd_ids=odd_ids, unwanted=unwanted)


def test_that_everything_is_filtered_is_told_once(tmp_path: Path) -> None:
    """From the first 1,000 messages on, with the tags of all tasks, until one is delivered."""
    tally, seen = RunTally(tmp_path), []
    steps = [outcome(FIRST - 1, FIRST - 1, 0, "'a'"), outcome(1, 1, 0, "'b'"), outcome(5, 5), outcome(5, 4)]
    with capture_logs() as events:
        for batch, step in enumerate([*steps, outcome(FIRST, FIRST)]):
            tally.enter(batch, books_of([step]), {})
            seen.append(tally.unwanted)
    assert seen == ["", "'a', 'b'", "'a', 'b'", "", ""]
    told = [(each["count"], each["tags"]) for each in events if each["event"] == "messages.all_filtered"]
    assert told == [(FIRST, "'a', 'b'")]


def test_tags_that_no_task_has_seen_are_said_to_be_unknown(tmp_path: Path) -> None:
    """Spark filters before a task where it can."""
    tally = RunTally(tmp_path)
    tally.enter(0, books_of([outcome(FIRST, FIRST)]), {})
    assert tally.unwanted.startswith("unknown")


def test_ids_that_are_none_are_added_up(tmp_path: Path) -> None:
    """Those of all tasks of all micro-batches, also where each task of a table has books of its own."""
    tally, tasks = RunTally(tmp_path), [outcome(9, 0, 2), outcome(9, 0, 3)]
    tally.enter(0, books_of(tasks), {})
    tally.enter(1, joined([books_of([task]) for task in tasks]), {})
    assert tally.odd_ids == 10


def test_the_tags_of_many_tasks_are_few() -> None:
    """Each has as many as are told, and so have all together, in the order in which they were seen."""
    tasks = [outcome(1, 1, 0, *(f"{task} {i}" for i in range(UNWANTED_MAX))) for task in range(3)]
    for books in (books_of(tasks), joined([books_of([task]) for task in tasks])):
        assert books["unwanted"] == list(tasks[0].unwanted)


def test_what_refused_tags_is_added_up(tmp_path: Path) -> None:
    """By mask and look, of all tasks."""
    tally, task = RunTally(tmp_path), outcome(9, 5)
    task.tags_refused = {"mask": 4, "look": 1}
    for batch, books in enumerate([books_of([task, task]), joined([books_of([task])] * 2)]):
        tally.enter(batch, books, {})
    assert tally.activity(0).tags_refused == {"mask": 16, "look": 4}


def test_what_expired_counts_once_by_partition(tmp_path: Path) -> None:
    """In status, metric and the log event of its micro-batch, also with a table."""
    tally, gap = RunTally(tmp_path), outcome(2, 0)
    gap.expired = 6
    with capture_logs() as events:
        for batch, books in enumerate(
            [books_of([gap]), joined([books_of([gap]), books_of([outcome(1, 0)])]), books_of([outcome(1, 0)])]
        ):
            tally.enter(batch, books, {})
    (status,) = tally.partitions.values()
    assert (status.expired, status.to_json()["expired"]) == (12, 12)
    assert [event.get("expired") for event in events] == [6, 6, None]
    snapshot = StatusSnapshot("g", "2026-11-29T00:00:00Z", "1", live=True, partitions=(status,))
    text = Metrics(lambda: snapshot).render().decode()
    assert 'sidecar_offsets_expired_total{partition="0",topic="orders"} 12.0' in text
