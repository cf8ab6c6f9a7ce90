"""The zone's writer: what is landed is landed once and wholly, in a fixed order of steps, whatever fails."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from sidecar.core.parts import Batch
from sidecar.core.records import TopicPartition
from sidecar.errors import StateError, ZoneError
from sidecar.zone import Tail, read, retention
from sidecar.zone.writer import Format
from tests.support.landing import (
    TP,
    Disk,
    ProcessDied,
    arrived,
    batch,
    disk,
    entries,
    message,
    part,
    writer,
)
from tests.support.zone_writing import FORMATS, STEPS, data_files, messages, short_segments


def open_files() -> int:
    """How many descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("form", FORMATS)
def test_rows_arrive_as_they_were_sent(tmp_path: Path, form: Format) -> None:
    """Every row comes back with key, value, tag, headers and time as they were, null and empty told apart."""
    zone = writer(tmp_path, format=form)
    for first in range(0, 30, 3):
        assert zone.land(batch(first)) is not None
    zone.close()
    assert arrived(tmp_path) == messages(30)


def test_the_steps_have_their_order(tmp_path: Path) -> None:
    """Each step of a batch is durable before the next: file, name, folder, line, and last its line feed."""
    zone = writer(tmp_path)
    zone.land(batch(0))
    with disk(Disk()) as seen:
        zone.land(batch(3))
    zone.close()
    assert seen.calls == ["mkdir", "fsync"] * (seen.calls[0] == "mkdir") + STEPS


def test_a_line_without_its_feed_is_not_seen(tmp_path: Path) -> None:
    """No reader takes a line before its line feed, which comes when the line is durable; the next start adds it."""
    with disk(Disk()) as seen:
        zone = writer(tmp_path / "whole")
        zone.land(batch(0))
        last = len(seen.calls)
        zone.close()
    assert dies(tmp_path / "cut", last, "arrow")
    assert entries(tmp_path / "cut") == []
    assert (tmp_path / "cut/manifest/a/000000000000.log").read_bytes().endswith(b"}")
    told: list[str] = []
    writer(tmp_path / "cut", report=told.append).close()
    assert len(told) == 1
    assert arrived(tmp_path / "cut") == messages(3)


@pytest.mark.parametrize("form", FORMATS)
def test_killed_at_every_point(tmp_path: Path, form: Format) -> None:
    """Wherever a process ends, in a batch or at its start, the same parts sent again give each row exactly once."""
    died = 0
    for at in range(1, 200):
        root = tmp_path / str(at)
        if not dies(root, at, form):
            break
        died += 1
        told: list[str] = []
        for _ in range(2):
            zone = writer(root, report=told.append, format=form)
            for first in range(0, 9, 3):
                zone.land(batch(first))
            zone.close()
        assert arrived(root) == messages(9), at
        assert len(told) == len(set(told)) <= 2, at
        assert [entry.seq for entry in entries(root)] == [0, 1, 2], at
        assert data_files(root) == sorted(Path(entry.file).name for entry in entries(root)), at
    assert died > 35


def dies(root: Path, at: int, form: Format) -> bool:
    """Whether a process that lands three batches ends before its n-th change to the disk."""
    with disk(Disk(at, death=True)):
        try:
            zone = writer(root, format=form)
            for first in range(0, 9, 3):
                zone.land(batch(first))
                assert {message(first + i) for i in range(3)} <= set(arrived(root)), (
                    "not visible when it is acknowledged"
                )
            zone.close()
        except ProcessDied:
            return True
    return False


def test_killed_again_while_it_recovers(tmp_path: Path) -> None:
    """A process that ends while it sets right what an earlier one left loses nothing either."""
    for at in range(1, 40, 3):
        for again in range(1, 12):
            root = tmp_path / f"{at}-{again}"
            if not dies(root, at, "arrow") or not dies(root, again, "arrow"):
                break
            zone = writer(root)
            for first in range(0, 9, 3):
                zone.land(batch(first))
            zone.close()
            assert arrived(root) == messages(9), (at, again)


@pytest.mark.parametrize("lasting", [False, True])
def test_a_full_disk_at_every_point(tmp_path: Path, lasting: bool) -> None:
    """A disk that is full at any step leaves nothing visible, no file and no descriptor, and it goes on with room."""
    zone = writer(tmp_path)
    zone.land(batch(0))
    for at in range(1, 20):
        first = at * 3
        begun = open_files(), data_files(tmp_path), len(entries(tmp_path))
        with disk(Disk(at, lasting=lasting)) as trouble:
            try:
                zone.land(batch(first))
            except OSError:
                assert (open_files(), len(entries(tmp_path))) == (begun[0], begun[2]), at
                if not lasting:
                    assert data_files(tmp_path) == begun[1], at
                    assert (tmp_path / "manifest/a/000000000000.log").read_bytes().endswith(b"}\n"), at
                trouble.mended = True
            zone.land(batch(first))
        assert open_files() == begun[0], at
        assert len(data_files(tmp_path)) == len(begun[1]) + 1, at
    zone.close()
    assert arrived(tmp_path) == [message(at * 3 + i) for at in range(20) for i in range(3)]


def test_a_full_disk_at_the_start_of_a_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that cannot be made is made later, and no descriptor stays behind."""
    short_segments(monkeypatch)
    for at in range(1, 25):
        zone = writer(tmp_path / str(at))
        for first in range(0, 12, 3):
            zone.land(batch(first))
        begun = open_files()
        with disk(Disk(at)):
            try:
                zone.land(batch(12))
            except OSError:
                zone.land(batch(12))
        assert open_files() == begun
        zone.close()
        assert arrived(tmp_path / str(at)) == messages(15)


def test_segments_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest goes on in the next file, for a reader that follows it and for a writer that starts again."""
    short_segments(monkeypatch)
    follower, seen = Tail(tmp_path), list[int]()
    for first in range(0, 60, 3):
        zone = writer(tmp_path)
        zone.land(batch(first))
        zone.land(batch(first))
        zone.close()
        seen += [entry.seq for entry in follower.poll().get("a", ())]
    assert seen == list(range(20))
    assert sorted(path.name for path in (tmp_path / "manifest" / "a").glob("*.log"))[1] == "000000000004.log"
    assert [entry.seq for entry in Tail(tmp_path, {"a": 12}).poll()["a"]] == list(range(13, 20))
    assert arrived(tmp_path) == messages(60)


def test_only_the_parts_that_are_missing_are_landed(tmp_path: Path) -> None:
    """Of a batch whose parts were landed in part, in this life or an earlier one, only the others are landed."""
    zone = writer(tmp_path)
    assert zone.land(batch(0)) is not None
    assert zone.land(batch(0)) is None
    zone.close()
    zone = writer(tmp_path)
    mixed = Batch(2, "paid", [*batch(3).parts, *batch(0).parts, *batch(3).parts])
    entry = zone.land(mixed)
    assert entry is not None
    assert [(named.name, named.rows) for named in entry.parts] == [("orders@s:0:3-5", 3)]
    assert zone.land(mixed) is None
    zone.close()
    assert arrived(tmp_path) == messages(6)


def test_the_same_name_in_another_group_is_another_part(tmp_path: Path) -> None:
    """A part is known by group and name: the two of a shared intent are both landed."""
    zone = writer(tmp_path)
    assert zone.land(batch(0)) is not None
    assert zone.land(batch(0, group="refunded")) is not None
    zone.close()
    assert [entry.group for entry in entries(tmp_path)] == ["paid", "refunded"]


def test_parts_of_several_partitions_and_scopes(tmp_path: Path) -> None:
    """A batch of many parts keeps them apart: each has the offsets of its own partition, in its own scope."""
    other = TopicPartition("orders", 1)
    parts = [part([message(0), message(1)]), part([message(0)], tp=other), part([message(0)], scope="t")]
    parts[2].home = "u"
    zone = writer(tmp_path)
    entry = zone.land(Batch(1, "paid", parts))
    zone.close()
    assert entry is not None
    assert [cover.place for cover in entry.covers] == [("orders", "s", 0), ("orders", "s", 1), ("orders", "u", 0)]
    (rows,) = read(tmp_path, entry, ["partition", "offset"], {("orders", "s", 0): entry.covers[1].offsets()})
    assert rows.to_pydict() == {"partition": [0, 1, 0], "offset": [1, 0, 0]}


def test_a_batch_without_rows_lands_nothing(tmp_path: Path) -> None:
    """A part whose messages are all gone is acknowledged without a file."""
    zone = writer(tmp_path)
    empty = batch(0)
    empty.parts[0].fragments, empty.parts[0].count = [], 0
    assert zone.land(empty) is None
    zone.close()
    assert entries(tmp_path) == []


def test_several_writers_share_a_zone(tmp_path: Path) -> None:
    """Two writers land side by side; rows that both landed reach a reader once, rows of another scope stay."""
    one, two = writer(tmp_path, "a"), writer(tmp_path, "b")
    one.land(batch(0))
    two.land(batch(0, 5))
    two.land(batch(0, 1, scope="made-again"))
    one.close()
    two.close()
    assert arrived(tmp_path) == [*messages(5), message(0)]


def test_a_writer_is_alone(tmp_path: Path) -> None:
    """A second process of the same writer is refused, until the first has closed."""
    first = writer(tmp_path)
    with pytest.raises(StateError, match="another process writes"):
        writer(tmp_path)
    begun = open_files()
    with pytest.raises(StateError):
        writer(tmp_path)
    assert open_files() == begun
    first.close()
    writer(tmp_path).close()


def test_a_clock_that_jumps_moves_no_row(tmp_path: Path) -> None:
    """Whatever the clock says, before 1970 or beyond all calendars, rows arrive once and in their order."""
    times = iter([1_700_000_000_000, 0, -5, 10**18, 1_600_000_000_000])
    zone = writer(tmp_path, retention=retention.Retention(60_000, 1 << 40), clock_ms=lambda: next(times))
    zone.land(batch(0))
    for first in (3, 6):
        zone._room._collect_at_s = float("inf")
        zone.land(batch(first))
    zone.land(batch(9))
    zone.close()
    assert arrived(tmp_path) == messages(12)


def test_a_follower_sees_only_whole_lines(tmp_path: Path) -> None:
    """A reader that polls while a line is being written takes it when it is whole, and never twice."""
    zone = writer(tmp_path)
    follower = Tail(tmp_path)
    assert follower.poll() == {}
    zone.land(batch(0))
    zone.land(batch(3))
    zone.close()
    path = tmp_path / "manifest" / "a" / "000000000000.log"
    whole, seen = path.read_bytes(), list[int]()
    for size in range(0, len(whole) + 1, 7):
        path.write_bytes(whole[:size])
        seen += [entry.seq for entry in follower.poll().get("a", ())]
    path.write_bytes(whole)
    seen += [entry.seq for entry in follower.poll().get("a", ())]
    assert seen == [0, 1]
    assert follower.poll() == {}


@pytest.mark.parametrize("what", [".", "manifest", "manifest/a", "manifest/a/000000000000.log"])
def test_a_manifest_that_is_away_takes_nothing(tmp_path: Path, what: str) -> None:
    """What is moved under a writer ends each landing with an error, also of what is known; back again it goes on."""
    root = tmp_path / "zone"
    zone = writer(root)
    zone.land(batch(0))
    (root / what).rename(tmp_path / "away")
    for first in (3, 0):
        with pytest.raises(ZoneError, match=f"manifest of writer a in {root} was moved, removed or replaced"):
            zone.land(batch(first))
    (tmp_path / "away").rename(root / what)
    assert zone.land(batch(3)) is not None
    zone.close()
    assert arrived(root) == messages(6)
    assert len(data_files(root)) == 2


class Moving(Disk):
    """Moves a folder away before the n-th change."""

    def __init__(self, at: int, folder: Path, away: Path) -> None:
        super().__init__()
        self.moves = (at, folder, away)

    def _call(self, name: str, *call: Any) -> Any:
        at, folder, away = self.moves
        if len(self.calls) == at - 1 and not away.exists():
            folder.rename(away)
        return super()._call(name, *call)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("at", range(1, len(STEPS) + 1))
def test_a_zone_that_is_moved_within_a_landing(tmp_path: Path, at: int, restart: bool) -> None:
    """At whichever step a zone is moved, the batch is not acknowledged, and when it is back its rows are there once."""
    root, away = tmp_path / "zone", tmp_path / "away"
    zone = writer(root, clock_ms=lambda: 0)
    zone.land(batch(0))
    with disk(Moving(at, root, away)), pytest.raises((ZoneError, OSError)):
        zone.land(batch(3))
    with pytest.raises(ZoneError):
        zone.land(batch(3))
    shutil.rmtree(root, ignore_errors=True)  # what was begun in its place
    away.rename(root)
    if restart:
        zone.close()
        zone = writer(root)
    zone.land(batch(3))
    zone.land(batch(6))
    zone.close()
    assert arrived(root) == messages(9)
    assert len(data_files(root)) == 3


def test_a_closed_zone_takes_nothing(tmp_path: Path) -> None:
    """Closing may be repeated; later batches fail as on a broken disk."""
    zone = writer(tmp_path)
    zone.close()
    zone.close()
    with pytest.raises(OSError, match="closed"):
        zone.land(batch(0, tp=TP))
