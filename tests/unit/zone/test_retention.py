"""Retention: only what every consumer has read goes, and a full zone says who is behind."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from sidecar import files
from sidecar.errors import ZoneError
from sidecar.zone import Tail, acknowledge, acknowledged, read
from sidecar.zone.retention import FILES_MAX, Retention
from sidecar.zone.writer import ZoneFullError, ZoneWriter
from tests.support.landing import Disk, ProcessDied, arrived, batch, disk, entries, message, writer
from tests.support.zone_writing import data_files, short_segments

HOUR_MS = 3_600_000


class Clock:
    """Milliseconds that a test sets."""

    now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    """A clock of the test."""
    return Clock()


def keeper(root: Path, clock: Clock, *, age_ms: int = HOUR_MS, bytes_max: int = 1 << 40) -> ZoneWriter:
    """A writer that looks at retention with every batch."""
    return writer(root, retention=Retention(age_ms, bytes_max), clock_ms=clock)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention works with every batch."""
    monkeypatch.setattr("sidecar.zone.writer.COLLECT_EVERY_S", 0.0)


def land(zone: ZoneWriter, *numbers: int) -> None:
    """Land batches by number, three rows each."""
    for number in numbers:
        zone.land(batch(3 * number))


def numbers(root: Path) -> list[int]:
    """Sequence numbers of the data files that are there."""
    return [int(name[:12]) for name in data_files(root)]


def test_nothing_goes_without_a_consumer(tmp_path: Path, clock: Clock) -> None:
    """However old it is, data that nobody has acknowledged stays."""
    zone = keeper(tmp_path, clock)
    land(zone, *range(5))
    clock.now_ms += 1000 * HOUR_MS
    land(zone, 5)
    zone.close()
    assert numbers(tmp_path) == [0, 1, 2, 3, 4, 5]


def test_old_data_goes_when_all_have_read_it(tmp_path: Path, clock: Clock) -> None:
    """What every consumer has read and is older than the age goes, nothing else; empty hours go with it."""
    acknowledge(tmp_path, "fast", {})
    acknowledge(tmp_path, "slow", {})
    zone = keeper(tmp_path, clock)
    land(zone, *range(5))
    acknowledge(tmp_path, "fast", {"a": 4})
    clock.now_ms += HOUR_MS + 1
    land(zone, 5)
    assert numbers(tmp_path) == [0, 1, 2, 3, 4, 5]
    acknowledge(tmp_path, "slow", {"a": 2})
    land(zone, 6)
    assert numbers(tmp_path) == [3, 4, 5, 6]
    assert Tail(tmp_path).floors() == {"a": 2}
    acknowledge(tmp_path, "fast", {"a": 6})
    acknowledge(tmp_path, "slow", {"a": 6})
    land(zone, 7)
    zone.close()
    assert numbers(tmp_path) == [5, 6, 7], "5 and 6 are young"
    assert len(list((tmp_path / "data" / "a").iterdir())) == 1
    assert [entry.seq for entry in entries(tmp_path)] == list(range(8)), "lines outlive their data"


def test_size_takes_what_was_read_before_its_time(tmp_path: Path, clock: Clock) -> None:
    """Above the size, data that was read goes though it is young, and only as much as is needed."""
    acknowledge(tmp_path, "job", {})
    zone = keeper(tmp_path, clock)
    land(zone, *range(4))
    size = entries(tmp_path)[0].bytes
    zone.close()
    zone = keeper(tmp_path, clock, bytes_max=4 * size + 100)
    land(zone, 4)
    acknowledge(tmp_path, "job", {"a": 3})
    land(zone, 5)
    zone.close()
    assert numbers(tmp_path) == [1, 2, 3, 4, 5]


def test_a_full_zone_stops_and_says_who_is_behind(tmp_path: Path, clock: Clock) -> None:
    """When unread data fills the size, nothing is landed or removed until the one that is named has read more."""
    zone = keeper(tmp_path, clock, bytes_max=1 << 14)
    first = zone.land(batch(0))
    assert first is not None
    count = (1 << 14) // first.bytes + 1
    land(zone, *range(1, count))
    with pytest.raises(ZoneFullError, match=r"full \(16,384 bytes\): no consumer has acknowledged anything yet"):
        land(zone, count)
    acknowledge(tmp_path, "fast", {"a": count - 1})
    acknowledge(tmp_path, "slow", {})
    with pytest.raises(ZoneFullError, match=rf"consumer slow has read 0 of {count} batches of writer a"):
        land(zone, count)
    assert numbers(tmp_path) == list(range(count))
    acknowledge(tmp_path, "slow", {"a": 1})
    land(zone, count)
    zone.close()
    assert numbers(tmp_path)[-1] == count
    assert numbers(tmp_path)[0] in (1, 2)


def test_a_restart_knows_what_it_holds(tmp_path: Path, clock: Clock) -> None:
    """The size is that of what is there, after a restart too, and sequence and names go on."""
    acknowledge(tmp_path, "job", {})
    zone = keeper(tmp_path, clock)
    land(zone, *range(6))
    held = entries(tmp_path)[0].bytes
    acknowledge(tmp_path, "job", {"a": 3})
    clock.now_ms += 2 * HOUR_MS
    land(zone, 6)
    zone.close()
    zone = keeper(tmp_path, clock, bytes_max=4 * held)
    land(zone, 0, 7)
    with pytest.raises(ZoneFullError):
        land(zone, 8, 9, 10)
    zone.close()
    assert 7 <= numbers(tmp_path)[-1] <= 9


def test_segments_go_when_they_are_old_but_for_two(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments whose data was read go with age, the last two stay whatever the clock says; readers go on."""
    short_segments(monkeypatch)
    acknowledge(tmp_path, "job", {})
    zone = keeper(tmp_path, clock)
    follower = Tail(tmp_path)
    land(zone, *range(10))
    assert [entry.seq for entry in follower.poll()["a"]] == list(range(10))
    acknowledge(tmp_path, "job", {"a": 9})
    land(zone, 10)
    assert len(list((tmp_path / "manifest" / "a").glob("*.log"))) == 3, "all are young"
    clock.now_ms += 10**15
    acknowledge(tmp_path, "job", {"a": 10})
    land(zone, 11, 12, 13)
    names = sorted(path.name for path in (tmp_path / "manifest" / "a").glob("*.log"))
    assert names == ["000000000008.log", "000000000012.log"]
    assert [entry.seq for entry in follower.poll()["a"]] == [10, 11, 12, 13]
    assert [entry.seq for entry in entries(tmp_path)] == [8, 9, 10, 11, 12, 13]
    zone.close()
    zone = keeper(tmp_path, clock)
    land(zone, 13, 14)
    zone.close()
    assert [entry.seq for entry in entries(tmp_path)][-1] == 14


def test_segments_outlive_data_that_goes_by_size(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are young: a batch that comes again is recognized by them."""
    short_segments(monkeypatch)
    acknowledge(tmp_path, "job", {"a": 99})
    zone = keeper(tmp_path, clock, bytes_max=1)
    land(zone, *range(14))
    zone.close()
    assert len(numbers(tmp_path)) < 3
    assert [entry.seq for entry in entries(tmp_path)] == list(range(14))


def test_a_reader_that_was_left_behind_is_told(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader without a registered consumer, whose next lines were removed, gets an error, never a gap."""
    short_segments(monkeypatch)
    acknowledge(tmp_path, "job", {})
    zone = keeper(tmp_path, clock)
    land(zone, 0)
    follower = Tail(tmp_path)
    follower.poll()
    land(zone, *range(1, 12))
    acknowledge(tmp_path, "job", {"a": 11})
    clock.now_ms += 2 * HOUR_MS
    land(zone, 12, 13)
    zone.close()
    with pytest.raises(ZoneError, match="from number 1 to 7 was removed unread"):
        follower.poll()


def test_killed_while_it_removes(tmp_path: Path, clock: Clock) -> None:
    """A process that ends while it removes leaves no reader at a loss, and the next start removes the rest."""
    for at in range(1, 30):
        root = tmp_path / str(at)
        clock.now_ms = Clock.now_ms
        acknowledge(root, "job", {})
        zone = keeper(root, clock)
        land(zone, *range(6))
        zone.close()
        acknowledge(root, "job", {"a": 3})
        clock.now_ms += 2 * HOUR_MS
        with disk(Disk(at, death=True)) as trouble, contextlib.suppress(ProcessDied):
            land(keeper(root, clock), 6)
        newcomer = [entry for entry in entries(root) if entry.seq > Tail(root).floors()["a"]]
        assert sum(table.num_rows for entry in newcomer for table in read(root, entry)) == 3 * len(newcomer), at
        zone = keeper(root, clock)
        land(zone, 6, 7)
        zone.close()
        floor = Tail(root).floors()["a"]
        assert floor == 3, at
        assert numbers(root) == [4, 5, 6, 7], at
        if not trouble.died:
            break
    assert at > 15


@pytest.mark.parametrize("kept", ["no floor", "floor"])
@pytest.mark.parametrize("read", [6, 9])
def test_an_older_manifest_removes_nothing(tmp_path: Path, clock: Clock, read: int, kept: str) -> None:
    """A manifest that ends before what retention removed is an error, and all files stay until it is restored."""
    acknowledge(tmp_path, "job", {})
    zone = keeper(tmp_path, clock)
    land(zone, *range(4))
    folder = tmp_path / "manifest" / "a"
    older = {path: path.read_bytes() for path in folder.iterdir()}
    land(zone, *range(4, 10))
    acknowledge(tmp_path, "job", {"a": read})
    clock.now_ms += 2 * HOUR_MS
    land(zone, 10)
    zone.close()
    hour = next((tmp_path / "data" / "a").iterdir())
    (hour / "000000000005-paid-3.arrow").write_bytes(b"half")
    (hour / ".000000000011-paid-3.arrow").write_bytes(b"half")
    begun = data_files(tmp_path)
    last = {path: path.read_bytes() for path in folder.iterdir()}
    for path in last if kept == "no floor" else older:
        path.unlink()
    for path, data in older.items():
        path.write_bytes(data)
    for _ in range(2):
        with pytest.raises(ZoneError, match=r"manifest of writer a in .* ends before number 4, which") as refused:
            keeper(tmp_path, clock)
        assert "Restore manifest/a as it was last" in refused.value.hint
        assert data_files(tmp_path) == begun
    for path, data in last.items():
        path.write_bytes(data)
    told: list[str] = []
    writer(tmp_path, report=told.append).close()
    assert len(told) == 2
    assert numbers(tmp_path) == list(range(read + 1, 11))


def test_not_too_much_at_once(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery removes a bounded number of files, and the next one goes on."""
    assert FILES_MAX == 1000
    monkeypatch.setattr("sidecar.zone.retention.FILES_MAX", 2)
    monkeypatch.setattr("sidecar.zone.writer.COLLECT_EVERY_S", 1e9)
    acknowledge(tmp_path, "job", {"a": 99})
    zone = keeper(tmp_path, clock)
    land(zone, *range(5))
    zone._room._collect_at_s = 0.0
    clock.now_ms += 2 * HOUR_MS
    land(zone, 5)
    assert len(numbers(tmp_path)) == 4
    land(zone, 6, 7, 8)
    zone.close()
    assert numbers(tmp_path) == [5, 6, 7, 8]


def test_an_acknowledgement_never_goes_back(tmp_path: Path) -> None:
    """Of two numbers the higher stays, other writers stay, and a name that could leave the folder is refused."""
    acknowledge(tmp_path, "job", {"a": 5})
    acknowledge(tmp_path, "job", {"a": 3, "b": 0})
    acknowledge(tmp_path, "other.job-1", {})
    assert acknowledged(tmp_path) == {"job": {"a": 5, "b": 0}, "other.job-1": {}}
    for name in ("", "../x", ".hidden", "a/b", "x" * 129, "a\0"):
        with pytest.raises(ValueError, match="not a valid consumer name"):
            acknowledge(tmp_path, name, {})


@pytest.mark.parametrize("damaged", [b"", b"{", b"[]", b'{"a":"x"}', b'{"a":true}', b"\xff"])
def test_a_damaged_acknowledgement_removes_nothing(tmp_path: Path, clock: Clock, damaged: bytes) -> None:
    """A consumer whose file cannot be read counts as one that has read nothing."""
    acknowledge(tmp_path, "job", {})
    zone = keeper(tmp_path, clock)
    land(zone, *range(3))
    (tmp_path / "ack" / "job.json").write_bytes(damaged)
    clock.now_ms += 2 * HOUR_MS
    land(zone, 3)
    zone.close()
    assert numbers(tmp_path) == [0, 1, 2, 3]
    assert arrived(tmp_path) == [message(i) for i in range(12)]


def test_a_half_written_acknowledgement_is_not_one(tmp_path: Path) -> None:
    """A consumer that ends while it acknowledges has acknowledged what it had, or all."""
    acknowledge(tmp_path, "job", {"a": 1})
    for at in range(1, 10):
        with disk(Disk(at, death=True)) as trouble, contextlib.suppress(ProcessDied):
            acknowledge(tmp_path, "job", {"a": 2})
        assert acknowledged(tmp_path)["job"]["a"] in (1, 2)
        if not trouble.died:
            break
    assert files.read_from(tmp_path / "ack" / "job.json") == b'{"a":2}'
