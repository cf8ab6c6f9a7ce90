"""Damaged state files: set aside or skipped, reported, gone on; how a sound one behaves is elsewhere."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.core.records import TopicPartition
from sidecar.errors import ConfigError, StateError
from sidecar.state import schema
from sidecar.state.folder import DAMAGED_KEPT_MAX
from sidecar.state.interface import IdSegment, PartitionSnapshot, ProgressKey, StoredLetter
from sidecar.state.store import Store

ORDERS = TopicPartition("orders", 3)
QUEUE = ProgressKey("orders", 3, "b0")
BITMAPS = (bytes(range(256)) * 30, b"older" * 500)
IDS = array("q", range(2_000)).tobytes()


def snapshot(tp: TopicPartition = ORDERS) -> PartitionSnapshot:
    """A snapshot of a partition."""
    return PartitionSnapshot(tp, "topic-id", 99, 1200, 7, BITMAPS)


def letter(offset: int) -> StoredLetter:
    """A dead letter of a given offset."""
    return StoredLetter("orders", 3, offset, "9f3ac2d1", "paid", "bad", 400, (), 1, b"row" * 900, b"envelope")


def fill(folder: Path) -> None:
    """Write one of everything."""
    store = Store(folder)
    store.bind("c1", "g")
    store.save_member(("g", "m"))
    store.save_partitions([snapshot(), snapshot(TopicPartition("orders", 4))])
    store.save_progress({QUEUE: "how far"})
    store.ids.append([IdSegment(ORDERS, 1, IDS)])
    store.letters.put([letter(1), letter(2)])
    store.close()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a sound file with one of everything."""
    folder = tmp_path_factory.mktemp("sound")
    fill(folder)
    return (folder / "state.db").read_bytes()


def use(store: Store) -> None:
    """All that a daemon does with a state in a life; what is found must be what was written."""
    assert store.bind("c1", "g")
    assert store.member() in (("g", "m"), None)
    for tp, found in store.load_partitions().items():
        assert found == snapshot(tp)
    assert store.load_progress() in ({QUEUE: "how far"}, {})
    for generation, data in store.ids.load(ORDERS):
        assert (generation, data) == (1, IDS)
    for kept in store.letters.load(100):
        assert (kept.row, kept.envelope) == (letter(1).row, letter(1).envelope)
    store.save_member(("g", "m"))
    store.save_partitions([snapshot(), snapshot(TopicPartition("orders", 4))])
    store.ids.drop_before(ORDERS, 2)
    store.save_progress({QUEUE: "how far"})
    store.ids.append([IdSegment(ORDERS, 1, IDS)])
    store.letters.put([letter(1), letter(2), letter(3)])


def survives(folder: Path) -> list[str]:
    """Open and use a state; at most one write may fail on the way. Returns what was reported."""
    store = Store(folder)
    reported: list[str] = []
    for last_try in (False, True):
        try:
            use(store)
            break
        except StateError as error:
            assert "damaged" in str(error) and not last_try, error
        finally:
            reported += [damage.what for damage in store.take_damages()]
    store.close()
    store = Store(folder)
    assert store.load_partitions().keys() >= {ORDERS}
    store.close()
    return reported


def set_aside(folder: Path) -> list[Path]:
    """The files that were set aside."""
    return sorted(folder.glob("state.db.damaged-*"))


def _empty(data: bytes) -> bytes:
    return b""


def _text(data: bytes) -> bytes:
    return b"no database at all\n" * 400


def _zeroes(data: bytes) -> bytes:
    return bytes(len(data))


def _half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _first_page_torn(data: bytes) -> bytes:
    return data[:512] + bytes(3584) + data[4096:]


def _another_page_torn(data: bytes) -> bytes:
    return data[: 4096 * 3] + bytes(4096) + data[4096 * 4 :]


def _tail_of_garbage(data: bytes) -> bytes:
    return data[:-4096] + random.Random(1).randbytes(4096)


@pytest.mark.parametrize("damage", [_text, _zeroes, _half, _first_page_torn, _another_page_torn])
def test_a_damaged_file_is_set_aside_and_work_goes_on(
    damage: Callable[[bytes], bytes], sound: bytes, tmp_path: Path
) -> None:
    """An unsound file stays byte for byte under another name; a new one works; the report says so."""
    damaged = damage(sound)
    (tmp_path / "state.db").write_bytes(damaged)
    store = Store(tmp_path)
    (report,) = store.take_damages()
    assert (report.what, report.where) == ("database", str(tmp_path / "state.db"))
    (kept,) = set_aside(tmp_path)
    assert kept.name in report.outcome
    assert kept.read_bytes() == damaged
    use(store)
    store.close()


@pytest.mark.parametrize("damage", [_empty, _tail_of_garbage])
def test_other_damage_never_stops_the_daemon(damage: Callable[[bytes], bytes], sound: bytes, tmp_path: Path) -> None:
    """Whatever the damage, a life can be lived with what is left, and the next one meets none."""
    (tmp_path / "state.db").write_bytes(damage(sound))
    survives(tmp_path)
    assert survives(tmp_path) == []


def test_an_old_log_is_not_replayed_into_the_new_file(tmp_path: Path) -> None:
    """The log of a damaged file goes with it: nothing of it turns up in the new one."""
    fill(tmp_path / "live")
    store = Store(tmp_path / "live")
    store.save_member(("g", "from the log"))
    shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    store.close()
    assert (tmp_path / "crashed" / "state.db-wal").stat().st_size > 0
    database = tmp_path / "crashed" / "state.db"
    database.write_bytes(bytes(database.stat().st_size))
    store = Store(tmp_path / "crashed")
    assert [damage.what for damage in store.take_damages()] == ["database"]
    assert store.member() is None
    store.close()


def test_a_flipped_byte_is_found_or_harmless(sound: bytes, tmp_path: Path) -> None:
    """Every header byte and 150 others, flipped by a bit or wholly: the state opens, and no wrong value comes out."""
    rng = random.Random(20)
    places = [(place, 1 << rng.randrange(8)) for place in range(100)]
    places += [(rng.randrange(100, len(sound)), rng.choice((1, 16, 128, 255))) for _ in range(150)]
    outcomes = {"harmless": 0, "reported": 0}
    for number, (place, mask) in enumerate(places):
        folder = tmp_path / str(number)
        folder.mkdir()
        data = bytearray(sound)
        data[place] ^= mask
        (folder / "state.db").write_bytes(data)
        outcomes["reported" if survives(folder) else "harmless"] += 1
        shutil.rmtree(folder)
    assert outcomes["reported"] > 50, outcomes


def test_a_flipped_log_loses_at_most_its_end(tmp_path: Path) -> None:
    """A write-ahead log with a flipped byte is cut there: what was before is right, for the next life too."""
    fill(tmp_path / "live")
    store = Store(tmp_path / "live")
    use(store)
    shutil.copytree(tmp_path / "live", tmp_path / "copy")
    store.close()
    size = (tmp_path / "copy" / "state.db-wal").stat().st_size
    for number, place in enumerate(random.Random(3).sample(range(size), 60)):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "copy", folder)
        log = bytearray((folder / "state.db-wal").read_bytes())
        log[place] ^= 4
        (folder / "state.db-wal").write_bytes(log)
        (folder / "state.db-shm").write_bytes(random.Random(number).randbytes(32768))
        survives(folder)
        assert survives(folder) == []


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE partitions SET younger = zeroblob(length(younger)) WHERE partition = 3", "partition"),
        ("UPDATE partitions SET watermark = watermark + 1 WHERE partition = 3", "partition"),
        ("UPDATE partitions SET topic_id = x'ff' WHERE partition = 3", "partition"),
        ("UPDATE progress SET text = 'how near'", "progress"),
        ("UPDATE progress SET broker = 'b1'", "progress"),
        ("UPDATE ids SET data = zeroblob(16000)", "message ids"),
        ("UPDATE ids SET generation = 2", "message ids"),
        ("UPDATE dead_letters SET row = x'00' WHERE \"offset\" = 1", "dead letter"),
        ("UPDATE meta SET value = '[\"c1\", \"h\"]' WHERE name = 'identity'", "identity"),
        ("UPDATE meta SET value = '[]' WHERE name = 'member'", "member"),
    ],
)
def test_a_row_that_does_not_check_is_dropped_alone(statement: str, what: str, tmp_path: Path) -> None:
    """A sound file with one wrong row loses that row, with a report; all others are used."""
    fill(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db")) as shell, shell:
        shell.execute(statement)
    store = Store(tmp_path)
    assert store.bind("c1", "g")
    kept = {
        "partition": len(store.load_partitions()) == 2,
        "progress": store.load_progress() == {QUEUE: "how far"},
        "message ids": bool(store.ids.load(ORDERS)),
        "dead letter": len(store.letters.load(10)) == 2,
        "member": store.member() is not None,
        "identity": True,
    }
    assert [damage.what for damage in store.take_damages()] == [what]
    assert [name for name, there in kept.items() if not there] == ([what] if what != "identity" else [])
    store.close()


def test_damage_in_mid_life_is_healed_without_a_restart(tmp_path: Path) -> None:
    """When the file turns out damaged in a running process, one call fails and the next one finds a new file."""
    fill(tmp_path)
    store = Store(tmp_path)
    store.bind("c1", "g")
    store.letters.put([replace(letter(number), row=bytes(20_000)) for number in range(10, 410)])
    store.close()
    store = Store(tmp_path)
    store.bind("c1", "g")
    with (tmp_path / "state.db").open("r+b") as file:
        file.seek(4096 * 20)
        file.write(bytes(4096 * 1500))
    with pytest.raises(StateError, match="damaged"):
        store.letters.load(1000)
    store.save_partitions([snapshot()])
    assert store.load_partitions() == {ORDERS: snapshot()}
    assert (store.letters.count(), store.letters.load(10)) == (0, [])
    assert [damage.what for damage in store.take_damages()] == ["database"]
    store.close()
    store = Store(tmp_path)
    with pytest.raises(ConfigError, match="'g', not to consumer group 'other'"):
        store.bind("c1", "other")
    store.close()


@pytest.mark.parametrize("ours", [1, 3])
def test_a_file_of_another_version_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: int) -> None:
    """A file of a newer or an older version is refused with the cure, and not touched."""
    fill(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db")) as shell, shell:
        shell.execute("PRAGMA user_version = 2")
        (application,) = shell.execute("PRAGMA application_id").fetchone()
        shell.execute(f"PRAGMA application_id = {application + 1}")
    monkeypatch.setattr(schema, "SCHEMA_VERSION", ours)
    with pytest.raises(StateError, match=f"another version \\(schema 2, this one knows only {ours}\\)") as caught:
        Store(tmp_path)
    assert caught.value.exit_code == 73
    assert "the version that wrote it" in caught.value.hint
    assert set_aside(tmp_path) == []


def test_set_aside_files_are_bounded(tmp_path: Path) -> None:
    """A disk that damages the file again and again keeps the newest few; the report names the one that went."""
    for number in range(DAMAGED_KEPT_MAX + 2):
        (tmp_path / "state.db").write_bytes(b"damage %04d" % number * 100)
        store = Store(tmp_path)
        (report,) = store.take_damages()
        store.close()
    kept = [path.read_bytes()[:11] for path in set_aside(tmp_path)]
    assert sorted(kept) == [b"damage %04d" % number for number in range(2, DAMAGED_KEPT_MAX + 2)]
    assert "removed" in report.outcome
