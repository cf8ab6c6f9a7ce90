"""A range read by the fast lane beside the same range read in Python: the same parts, names and rows. No Spark."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sidecar_fastlane as fastlane
from structlog.testing import capture_logs

from sidecar.config.model import Settings
from sidecar.core.records import Columns, Run, TopicPartition
from sidecar.errors import UnavailableError
from sidecar.runtime.lane import is_built
from sidecar.sources.kafka.columns import KafkaColumns, LaneColumns
from sidecar.sources.kafka.lane import FastLane
from sidecar.spark.ranges.kafka import QUEUE_KBYTES, fetch, fetch_by_lane
from sidecar.spark.ranges.walk import Span
from sidecar.spark.run import task
from sidecar.spark.run.deliver import Task
from sidecar.spark.run.folder import RunFolder
from sidecar.spark.run.outcome import Outcome, books_of, letters_in
from sidecar.spark.run.progress import RunTally
from sidecar.spark.run.task import TaskRange
from sidecar.zone.table import TABLE_SCHEMA
from tests.support.compacted import COMPACT, surviving
from tests.support.kafka import Broker, KafkaBroker, produce, produce_transaction, unique
from tests.support.lane_cases import strange
from tests.support.process import wait_until
from tests.support.produce import Outgoing
from tests.support.receiver import Receiver
from tests.support.spark.tasks import deliver, plan_of

Delivered = tuple[list[tuple[str, str, tuple[Any, ...]]], list[Any], Any, Mapping[str, int], list[int], list[str]]
"""Parts with group, name and rows; dead letters; books; cuts; ids that cannot be compared, and unwanted tags."""


def settings_of(broker: Broker, topic: str, url: str, **change: Any) -> Settings:
    """Settings with small batches."""
    return Settings.model_validate(
        {
            "source": {"kafka": {"bootstrap_servers": broker.bootstrap, "group_id": "g", "topics": [topic]}},
            "tags": {"from": {"header": "tag"}},
            "batch": {"max_messages": 70, "max_bytes": "20KiB"},
            "retry": {"backoff": "1ms", "backoff_max": "20ms"},
            "memory": {"budget": "8MiB"},
            "sink": {"http": {"url": url, "format": change.pop("row_format", "envelope")}},
            "state": {"dir": "state"},
            **change,
        }
    )


def read(
    library: fastlane.Library | None, settings: Settings, tp: TopicPartition, start: int, end: int
) -> tuple[Columns, Iterator[Run]]:
    """The messages of a range, by the lane or in Python."""
    kafka = settings.source.kafka
    if library is None:
        return KafkaColumns(), fetch(kafka, tp, start, end)
    return LaneColumns(), fetch_by_lane(kafka, FastLane(library, QUEUE_KBYTES << 10), tp, start, end)


def delivered(
    library: fastlane.Library | None,
    folder: Path,
    broker: Broker,
    topic: str,
    ranges: list[tuple[int, int]],
    **change: Any,
) -> Delivered:
    """What a receiver has after these ranges, a micro-batch each; it refuses some rows, so parts are halved."""
    tp, letters, books, cuts = TopicPartition(topic, 0), [], [], dict[str, int]()
    odd_ids, unwanted = list[int](), set[str]()
    with Receiver() as receiver:
        receiver.fail("refuse", status=400, marker="poison")
        settings = settings_of(broker, topic, receiver.url, **change)
        for batch, (start, end) in enumerate(ranges):
            task = Task(tp, "5c09e5c0", "1d5c09e0", batch, "0", again=False)
            outcome = deliver(plan_of(settings, folder), task, *read(library, settings, tp, start, end))
            for name in outcome.letters:
                letters += [
                    (one.offset, one.row, one.reason) for one in letters_in(folder / "letters" / str(batch) / name)
                ]
            books.append(outcome.books)
            odd_ids.append(outcome.odd_ids)
            unwanted |= set(outcome.unwanted)
            cuts |= {f"{batch} {reason}": count for reason, count in outcome.cuts.items()}
        parts = sorted((part["group"], part["part"], tuple(part["rows"])) for part in receiver.parts())
    return parts, sorted(letters), books, cuts, odd_ids, sorted(unwanted)


def gappy(broker: Broker, topic: str) -> int:
    """Strange messages with gaps: markers of transactions, and aborted messages; the end of the log."""
    messages = list(strange(random.Random(11), 3_000))
    for place in (5, 1_200, 2_500):
        messages[place] = Outgoing(0, b"poison", b"key", [("tag", b"a")])
    produce(broker.bootstrap, topic, messages[:700])
    for number, start in enumerate(range(700, 3_000, 230)):
        commit = number % 3 != 1
        produce_transaction(
            broker.bootstrap, topic, messages[start : start + 230], transactional_id=topic, commit=commit
        )
    return broker.end_offsets(topic)[0]


@pytest.mark.parametrize("row_format", ["envelope", "ndjson"])
@pytest.mark.parametrize("dedup", ["position", {"header": "id"}])
def test_both_ways_deliver_the_same(
    library: fastlane.Library, kafka: Broker, topic: str, tmp_path: Path, row_format: str, dedup: Any
) -> None:
    """Parts, rows, dead letters, books, cuts, ids that are none: of ranges that end anywhere, with gaps."""
    end = gappy(kafka, topic)
    borders = [0, 1, 499, 500, 1_100, 1_161, 1_162, 1_300, end - 1, end]
    ranges = list(pairwise(borders))
    change: dict[str, Any] = {"row_format": row_format, "dedup": {"by": dedup}}
    ours, theirs = (
        delivered(each, tmp_path / name, kafka, topic, ranges, **change)
        for name, each in (("lane", library), ("python", None))
    )
    assert ours == theirs
    assert len(ours[0]) > 50 and sum(books.consumed for books in ours[2]) == 2_310
    assert ours[1] and (dedup == "position" or sum(books.duplicate for books in ours[2]) > 0)
    assert (sum(ours[4]) > 0) == (dedup != "position")


@pytest.mark.skipif(not is_built(), reason="the fast lane was not compiled")
@pytest.mark.parametrize("dedup", ["position", {"header": "id"}])
def test_both_ways_fill_a_table_alike(kafka: Broker, topic: str, tmp_path: Path, dedup: Any) -> None:
    """Rows, books, ids that are none: of ranges that end anywhere; each range knows the ids of those before it."""
    end = gappy(kafka, topic)
    ranges = list(pairwise([0, 1, 499, 500, 1_161, 1_162, 1_300, end - 1, end]))
    ours, theirs = (filled(kafka, topic, tmp_path / lane, ranges, lane, dedup) for lane in ("on", "off"))
    assert ours[0].equals(theirs[0]) and ours[0].num_rows > 1_000
    assert ours[1] == theirs[1] and sum(books["consumed"] for books in ours[1]) == 2_310
    assert dedup == "position" or sum(books["duplicate"] for books in ours[1]) > 0
    assert ours[2] == theirs[2] and (sum(ours[2]) > 0) == (dedup != "position")


def filled(
    broker: Broker, topic: str, folder: Path, ranges: list[tuple[int, int]], lane: str, dedup: Any
) -> tuple[pa.Table, list[Mapping[str, int]], list[int]]:
    """The rows of these ranges, a micro-batch each, and the books and ids that are none of each."""
    settings = Settings.model_validate(
        {
            "source": {
                "kafka": {"bootstrap_servers": broker.bootstrap, "group_id": "g", "topics": [topic], "lane": lane}
            },
            "tags": {"from": {"header": "tag"}},
            "dedup": {"by": dedup},
            "sink": {"parquet": {"path": str(folder / "rows")}},
            "state": {"dir": "state"},
        }
    )
    plan, tp = plan_of(settings, folder, query="table"), TopicPartition(topic, 0)
    kept, batches, own = RunFolder(folder), list[pa.RecordBatch](), list[Mapping[str, int]]()
    odd_ids = list[int]()
    for batch, (start, end) in enumerate(ranges):
        found = plan.broker.read(folder, tp, start, end)
        assert (found.lane is not None) == (lane == "on")
        place = TaskRange(Span(tp, "", start, end), found, lambda: None, "5c09e5c0", "1d5c09e0", batch, kept)
        batches += task.rows_of(plan, place)
        of_batch = kept.books.of(batch)
        assert of_batch is not None and of_batch["lane"] == [""] * (lane == "on")
        own += [of_range[-1] for of_range in of_batch["partitions"]]
        odd_ids.append(sum(count for (count,) in of_batch["odd_ids"]))
    return pa.Table.from_batches(batches, TABLE_SCHEMA).combine_chunks(), own, odd_ids


def test_both_ways_make_the_same_runs(library: fastlane.Library, kafka: Broker, topic: str) -> None:
    """Cuts for memory are made between runs: these are alike, of small and of large messages, at any start and end."""
    sizes = [*[20] * 1_700, *[9_000] * 900, *[900_000] * 8, *[20] * 600]
    produce(kafka.bootstrap, topic, [Outgoing(0, b"x" * size, b"k" * (size % 7)) for size in sizes])
    settings, tp, shapes = settings_of(kafka, topic, "http://localhost:1/"), TopicPartition(topic, 0), []
    for each in (library, None):
        for start, end in ((0, len(sizes)), (3, 1_000), (1_690, 2_900), (2_599, 2_610)):
            columns, runs = read(each, settings, tp, start, end)
            shapes.append([(run.first, run.last, len(run.messages), *columns.offsets(run.messages)) for run in runs])
    assert shapes[:4] == shapes[4:]


def test_messages_that_come_bit_by_bit_make_the_same_runs(
    library: fastlane.Library, kafka: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll that brings less than a run: several together are one, and C sorts it."""
    whole = FastLane.read
    monkeypatch.setattr(
        FastLane, "read", lambda self, wait_s, most, *, more: whole(self, wait_s, min(most, 137), more=more)
    )
    produce(kafka.bootstrap, topic, [Outgoing(0, b"%d" % i) for i in range(1_300)])
    settings, tp = settings_of(kafka, topic, "http://localhost:1/"), TopicPartition(topic, 0)
    runs = read(library, settings, tp, 0, 1_300)[1]
    assert [(r.first, r.last, r.sorter is not None) for r in runs] == [
        (0, 499, True), (500, 999, True), (1_000, 1_299, True),
    ]  # fmt: skip


def test_both_ways_deliver_the_same_of_a_compacted_topic(library: fastlane.Library, tmp_path: Path) -> None:
    """What compaction left, with gaps before, within and at the end of ranges."""
    # A broker of its own: the cleaner of a shared one is busy with topics of other tests.
    with KafkaBroker(tmp_path / "broker") as broker:
        topic = broker.create_topic(unique("compacted"), 1, COMPACT)
        now_ms = int(time.time() * 1_000)
        keyed = [Outgoing(0, b"%d" % i, b"%d" % (i % 20), [("tag", b"a")], now_ms - 9_000 + i) for i in range(100)]
        produce(broker.bootstrap, topic, keyed)
        produce(broker.bootstrap, topic, [Outgoing(0, b"last", b"last", None, now_ms)])  # it rolls the segment
        wait_until(lambda: len(surviving(broker, topic)) < 30, 60, "the topic is compacted")
        ranges = [(0, 50), (50, 90), (90, 101)]
        ours, theirs = (
            delivered(each, tmp_path / name, broker, topic, ranges)
            for name, each in (("lane", library), ("python", None))
        )
    assert ours == theirs and ours[0]


def test_a_task_that_is_tried_again_the_other_way_sends_the_same(
    library: fastlane.Library, kafka: Broker, topic: str, tmp_path: Path
) -> None:
    """An attempt that ends in mid-range, by the lane, and the next one in Python, or the reverse: no part differs."""
    end, found = gappy(kafka, topic), []
    for name, first, second in (("a", library, None), ("b", None, library)):
        with Receiver() as receiver:
            settings, tp = settings_of(kafka, topic, receiver.url), TopicPartition(topic, 0)

            def cut_off(runs: Iterator[Run], count: int = 3) -> Iterator[Run]:
                for number, run in enumerate(runs):
                    if number == count:
                        raise UnavailableError("the executor is gone")
                    yield run

            columns, runs = read(first, settings, tp, 0, end)
            with pytest.raises(UnavailableError, match="gone"):
                task = Task(tp, "5c09e5c0", "1d5c09e0", 0, "0", again=False)
                deliver(plan_of(settings, tmp_path / name), task, columns, cut_off(runs))
            begun = {part["part"]: part["rows"] for part in receiver.parts()}
            task = Task(tp, "5c09e5c0", "1d5c09e0", 0, "1", again=True)
            deliver(plan_of(settings, tmp_path / name), task, *read(second, settings, tp, 0, end))
            parts = {(part["group"], part["part"]): part["rows"] for part in receiver.parts()}
            assert begun and len(parts) > len(begun)
            assert len(receiver.parts()) == len(parts), "a part came under another name"
            found.append(parts)
    assert found[0] == found[1]


def test_what_expired_unread_is_told(library: fastlane.Library, kafka: Broker, topic: str) -> None:
    """A range whose first messages are gone is an error, and not a shorter range."""
    produce(kafka.bootstrap, topic, [Outgoing(0, b"v") for _ in range(20)])
    kafka.delete_records(topic, {0: 10})
    settings = settings_of(kafka, topic, "http://localhost:1/")
    with pytest.raises(UnavailableError, match="read to 5, and its log begins at 10"):
        list(read(library, settings, TopicPartition(topic, 0), 5, 20)[1])


def test_who_read_is_told_once_with_the_reason(tmp_path: Path) -> None:
    """Each reason of any task once, and nothing if no task was to use the lane."""
    missing, tally = "it is not installed", RunTally(tmp_path)
    lanes: list[list[str | None]] = [[None, None], ["", None], ["", missing], [missing]]
    with capture_logs() as events:
        for batch, reasons in enumerate(lanes):
            outcomes = [Outcome(TopicPartition("orders", number), lane=reason) for number, reason in enumerate(reasons)]
            tally.enter(batch, books_of(outcomes), {})
    told = [(event["event"], event.get("reason")) for event in events if event["event"].startswith("lane.")]
    assert told == [("lane.used", None), ("lane.not_used", missing)]
