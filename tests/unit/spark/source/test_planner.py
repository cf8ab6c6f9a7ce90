"""Planning of micro-batches: limits, turns, targets, what retention removed, and what is kept in memory."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from sidecar.errors import ConfigError, PositionError, ZoneError
from sidecar.spark.source import planner
from sidecar.spark.source.datasource import Consumer
from sidecar.spark.source.options import Limit
from sidecar.spark.source.planner import TASK_BYTES_MAX, Planner, Share, pack
from sidecar.zone import acknowledge, acknowledged, tail
from tests.support import zone_writing
from tests.support.landing import batch, segment_path, writer
from tests.support.manifest import Lines, Query, place

ONE = Limit(files=1)


@pytest.fixture
def lines(tmp_path: Path) -> Lines:
    """An empty zone."""
    return Lines(tmp_path / "zone")


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of 4 lines."""
    zone_writing.short_segments(monkeypatch)


def land(lines: Lines, writer: str, count: int, *, first: int = 0, group: str = "paid", size: int = 100) -> None:
    """So many batches of ten new messages each, in a partition of the writer's own."""
    for number in range(first, first + count):
        lines.land(writer, {place(ord(writer)): range(number * 10, number * 10 + 10)}, group, size)


def test_a_zone_that_is_missing_has_nothing_yet(lines: Lines) -> None:
    """A stream may begin before the first daemon does, and finds its rows when they come."""
    query = Query(lines)
    assert query.run() == []
    land(lines, "a", 1)
    assert len(query.run()) == 10


@pytest.mark.parametrize(
    ("limit", "rows"),
    [(Limit(files=3), 30), (Limit(rows=39), 30), (Limit(bytes=399), 30), (Limit(rows=3), 10), (Limit(), 80)],
)
def test_limits_hold(lines: Lines, limit: Limit, rows: int) -> None:
    """A micro-batch never exceeds its limit, but for a batch that is larger by itself, which comes alone."""
    land(lines, "a", 8)
    query = Query(lines)
    assert len(query.run(limit)) == rows
    assert query.drain(limit) == Counter(lines.rows())


def test_many_batches_are_remembered(lines: Lines) -> None:
    """What was read is known as such after many batches, whatever of it is read again."""
    land(lines, "a", 700)
    query = Query(lines)
    query.drain()
    for number in (0, 255, 256, 511, 512, 699):
        lines.land(
            "b", {place(ord("a")): range(number * 10 - 5, number * 10 + 10)} if number else {place(97): range(10)}
        )
    assert query.run() == []


def test_no_writer_starves(lines: Lines) -> None:
    """With a limit of one batch writers take turns, however much each has, and a new one is served soon."""
    land(lines, "a", 20)
    land(lines, "b", 20)
    query = Query(lines)
    for _ in range(6):
        query.run(ONE)
    assert query.committed == {"a": 2, "b": 2}
    land(lines, "c", 1)
    for _ in range(3):
        query.run(ONE)
    assert query.committed["c"] == 0


def test_other_groups_use_up_no_limit(lines: Lines) -> None:
    """Batches of groups that are not read are passed over in one go."""
    land(lines, "a", 50, group="other")
    land(lines, "a", 2, first=50)
    query = Query(lines, groups=["paid"])
    assert len(query.run(Limit(files=2))) == 20
    assert query.committed == {"a": 51}


def test_a_target_is_not_passed(lines: Lines) -> None:
    """What comes after the target was fixed, of old and new writers, is left for the next query."""
    land(lines, "a", 3)
    query = Query(lines)
    target = query.planner.heads()
    assert target == {"a": 2}
    land(lines, "a", 3, first=3)
    land(lines, "b", 3)
    for _ in range(5):
        query.run(ONE, target)
    assert query.committed == target


@pytest.mark.usefixtures("short_segments")
@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 9])
def test_heads_are_found_without_reading_all(lines: Lines, count: int) -> None:
    """The last number is that of the last line, in whatever segment it is, also when the oldest ones are removed."""
    land(lines, "a", count)
    assert Query(lines).planner.heads() == {"a": count - 1}
    lines.remove("a", count - 1)
    assert Query(lines).planner.heads() == {"a": count - 1}


def test_little_waits_in_memory(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long backlog a bounded piece is known, also while another writer has nothing; all of it comes in the end."""
    monkeypatch.setattr(planner, "WAITING_MAX", 10)
    monkeypatch.setattr(tail.Tail.poll, "__defaults__", (10, ()))
    land(lines, "a", 100)
    land(lines, "b", 1)
    query = Query(lines)
    for _ in range(30):
        query.run(ONE)
        known = query.planner.known()["a"] - query.committed.get("a", -1)
        assert known <= 20
    assert query.drain(ONE) == Counter(lines.rows())


def test_a_new_query_begins_behind_what_was_removed(lines: Lines) -> None:
    """Data up to the floors may be gone: a new query begins behind it, and their lines still tell duplicates."""
    land(lines, "a", 6)
    lines.remove("a", 3)
    lines.land("b", {place(ord("a")): range(35, 45)})
    query = Query(lines)
    query.committed = query.planner.floors()
    assert query.committed == {"a": 3, "b": -1}
    assert set(query.drain()) == {(place(ord("a")), offset) for offset in range(40, 60)}


def test_what_was_removed_unread_ends_the_query(lines: Lines) -> None:
    """Rows that were removed before the query read them are an error that says which, of known and of new writers."""
    land(lines, "a", 4)
    query = Query(lines)
    query.run(ONE)
    land(lines, "b", 4)
    lines.remove("b", 1)
    with pytest.raises(PositionError, match=r"number 0 to 1 of writer b were removed .* consumer name"):
        query.run()


@pytest.mark.usefixtures("short_segments")
def test_lines_that_were_removed_unread_end_the_query(lines: Lines) -> None:
    """It is an error too when not only the data but the lines are gone."""
    land(lines, "a", 3)
    query = Query(lines)
    query.run(ONE)
    land(lines, "a", 9, first=3)
    lines.remove("a", 8)
    query.restart()
    with pytest.raises(PositionError, match="number 1 to 8 of writer a were removed"):
        query.run()


def test_removed_data_of_other_groups_is_no_matter(lines: Lines) -> None:
    """Nothing is missing when only batches that the query does not read were removed."""
    land(lines, "a", 4, group="other")
    land(lines, "a", 1, first=4)
    lines.remove("a", 3)
    assert len(Query(lines, groups=["paid"]).run()) == 10


def test_a_zone_that_went_back_ends_the_query(tmp_path: Path) -> None:
    """A planned micro-batch whose lines are not there any more, as after restoring an older copy, is an error."""
    newer, older = Lines(tmp_path / "newer"), Lines(tmp_path / "older")
    land(newer, "a", 5)
    land(older, "a", 3)
    query = Query(older)
    with pytest.raises(PositionError, match="ends before number 4"):
        query.planner.plan({"a": 1}, {"a": 4})


@pytest.mark.parametrize("dedup", [False, True])
def test_a_zone_that_went_back_is_noticed_at_the_start(lines: Lines, dedup: bool) -> None:
    """Numbers that the query has read and the zone does not have would be given to new rows: an error, not a loss."""
    land(lines, "a", 3)
    query = Query(lines, dedup=dedup)
    query.committed = {"a": 4, "gone": 7}
    with pytest.raises(PositionError, match="writer a ends before number 4"):
        query.run()
    land(lines, "a", 3, first=3)
    query.restart()
    assert len(query.run()) == 10


@pytest.mark.usefixtures("short_segments")
@pytest.mark.parametrize("restarts", [False, True])
def test_removed_lines_change_no_decision(lines: Lines, restarts: bool) -> None:
    """While retention follows the query, copies whose first one's line is there are dropped, restarted or not."""
    query = Query(lines)
    for number in range(40):
        land(lines, "a", 1, first=number)
        lines.land("b", {place(ord("a")): range(max(number * 10 - 25, 0), number * 10)} if number else {place(9): [0]})
        query.drain(Limit(files=3))
        if number > 8:
            lines.remove("a", number - 5)
            lines.remove("b", number - 5)
        if restarts and number % 3 == 0:
            query.restart()
    assert query.got == Counter(lines.rows())


@pytest.mark.usefixtures("short_segments")
def test_what_no_line_tells_is_forgotten(lines: Lines) -> None:
    """A running query starts over when half of its lines are removed: its memory follows the zone's."""
    query = Query(lines)
    for number in range(200):
        land(lines, "a", 1, first=number)
        query.run()
        lines.remove("a", number)
        assert query.planner._delivered.entries <= 20
    assert query.got == Counter(lines.rows())


def test_a_damaged_line_ends_the_query_by_file_and_line(lines: Lines) -> None:
    """A line that cannot be made again ends the query with an error that names it, and says what to do."""
    land(lines, "a", 3)
    path = segment_path(lines.root, "a", 0)
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(whole[0] + whole[1].replace(b"paid", b"pbid") + whole[2])
    with pytest.raises(ZoneError, match=r"line 2 of manifest/a/000000000000.log .*Restore") as failure:
        Query(lines).run()
    assert str(failure.value).count("Restore") == 1


def test_a_mended_line_is_told_once(tmp_path: Path) -> None:
    """A damaged line is made again from its data file: no row is lost, and that is said once."""
    zone = writer(tmp_path, "a")
    for first in range(0, 9, 3):
        zone.land(batch(first))
    zone.close()
    path = segment_path(tmp_path, "a", 0)
    path.write_bytes(path.read_bytes().replace(b"paid", b"pbid", 1))
    told: list[str] = []
    planned = Planner(tmp_path, report=told.append)
    for _ in range(2):
        assert sum(share.entry.rows for share in planned.plan({}, {"a": 2})) == 9
        planned.plan({"a": 2}, {"a": 2})
    assert len(told) == 1
    assert "line 1 of manifest/a/000000000000.log" in told[0]


def test_tasks_have_about_as_many_bytes(lines: Lines) -> None:
    """Batches are spread by size and keep their order within a task; none is lost, and there are no empty tasks."""
    sizes = [50, 10, 10, 10, 10, 10, 30, 20]
    for number, size in enumerate(sizes):
        land(lines, "a", 1, first=number, size=size)
    shares = Query(lines).planner.plan({}, {"a": 7})
    tasks = pack(shares, 3)
    assert sorted(sum(share.entry.bytes for share in task) for task in tasks) == [50, 50, 50]
    assert all(task == sorted(task, key=lambda share: share.entry.seq) for task in tasks)
    assert sorted(share.entry.seq for task in tasks for share in task) == list(range(8))
    assert len(pack(shares, 100)) == 8
    assert len(pack(shares, None)) == 1
    assert pack([], 4) == []


def test_large_reads_have_more_tasks_than_this_host_has_cores(lines: Lines) -> None:
    """A task has a bounded number of bytes unless its number is set: executors elsewhere find work."""
    land(lines, "a", 400, size=TASK_BYTES_MAX)
    assert len(pack(Query(lines).planner.plan({}, {"a": 399}), None)) == 400
    assert len(pack(Query(lines).planner.plan({}, {"a": 399}), 7)) == 7


def test_a_share_without_duplicates_carries_no_bitmap(lines: Lines) -> None:
    """What goes to the tasks has no bitmaps but those of offsets to leave out."""
    land(lines, "a", 1)
    (share,) = Query(lines).planner.plan({}, {"a": 0})
    assert isinstance(share, Share)
    assert (share.drop, share.entry.covers, share.entry.parts) == ({}, (), ())


def test_a_consumer_is_registered_before_it_reads(lines: Lines) -> None:
    """From its registration on nothing is removed; what it has read is what it said, and it never goes back."""
    land(lines, "a", 5)
    consumer = Consumer(lines.root, "job")
    consumer.register()
    assert acknowledged(lines.root) == {"job": {}}
    consumer.has_read({"a": 4})
    consumer.has_read({"a": 2})
    assert acknowledged(lines.root) == {"job": {"a": 4}}


def test_no_name_acknowledges_nothing(lines: Lines) -> None:
    """A query without a name leaves no trace in the zone."""
    land(lines, "a", 5)
    consumer = Consumer(lines.root, None)
    consumer.register()
    consumer.has_read({"a": 4})
    assert acknowledged(lines.root) == {}


def test_nothing_is_written_where_no_zone_is(lines: Lines) -> None:
    """A missing zone may be one that is not mounted: its consumer is registered once it is there."""
    consumer = Consumer(lines.root, "job")
    for _ in range(2):
        consumer.register()
        consumer.has_read({"a": 4})
        assert not list(lines.root.parent.rglob("ack"))
        lines.root.mkdir(exist_ok=True)  # the mount point, empty
    land(lines, "a", 1)
    consumer.register()
    assert acknowledged(lines.root) == {"job": {}}


def test_a_zone_that_cannot_be_written_is_told(lines: Lines) -> None:
    """A consumer that cannot be registered is an error that names it, its folder, and what helps."""
    land(lines, "a", 1)
    (lines.root / "ack").write_text("no folder")
    with pytest.raises(ConfigError, match=r"consumer job cannot be registered in .*/ack: .*or leave out the option"):
        Consumer(lines.root, "job").register()


@pytest.mark.parametrize(
    ("left", "told"), [("", "zone is missing"), (".", "zone/manifest is missing"), ("manifest", "has no writer")]
)
def test_a_zone_that_is_gone_ends_the_query(lines: Lines, left: str, told: str) -> None:
    """A query that has read writers, running or restarted, never takes a zone without any for one without news."""
    land(lines, "a", 2)
    query = Query(lines)
    query.drain()
    lines.root.rename(lines.root.with_name("aside"))
    if left:
        (lines.root / left).mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(ZoneError, match=f"{told}, and this query has read from a there"):
            query.run()
        query.restart()
    if left:
        shutil.rmtree(lines.root)
    lines.root.with_name("aside").rename(lines.root)
    land(lines, "a", 1, first=2)
    assert query.drain() == Counter(lines.rows())


def test_a_used_name_is_refused_for_a_new_query(lines: Lines) -> None:
    """What a consumer acknowledged is not kept for a new checkpoint under its name, so that is refused."""
    land(lines, "a", 5)
    acknowledge(lines.root, "job", {"a": 4})
    Consumer(lines.root, "job").check_new({"a": 4})
    with pytest.raises(ConfigError, match=r"consumer job .* ack/job.json"):
        Consumer(lines.root, "job").check_new({"a": 3})


def test_a_failed_acknowledgement_is_made_good(
    lines: Lines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk ends no query: it is told once, and the next try acknowledges the same."""
    land(lines, "a", 2)
    consumer = Consumer(lines.root, "job")
    consumer.register()
    with monkeypatch.context() as broken:
        broken.setattr("sidecar.files.os.fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "no space")))
        consumer.has_read({"a": 1})
        consumer.has_read({"a": 1})
    assert len(caplog.records) == 1
    consumer.has_read({"a": 1})
    assert acknowledged(lines.root) == {"job": {"a": 1}}


def test_a_query_goes_back_when_it_is_asked(lines: Lines) -> None:
    """Offsets that were passed already are planned as they were: Spark may ask for a micro-batch again."""
    land(lines, "a", 6)
    lines.land("b", {place(ord("a")): range(5, 65)})
    query = Query(lines)
    first = query.planner.plan({}, {"a": 1, "b": 0})
    query.drain()
    assert query.planner.plan({}, {"a": 1, "b": 0}) == first
    assert query.planner.plan({}, {}) == []
    assert isinstance(query.planner, Planner)
