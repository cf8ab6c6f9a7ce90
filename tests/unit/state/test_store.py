"""The state folder of one process: lock, permissions, bounds, kill -9; damage is in test_state_damage."""

from __future__ import annotations

import os
import random
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from sidecar.core.records import TopicPartition
from sidecar.errors import StateError
from sidecar.state.ids.store import FILED_MIN
from sidecar.state.interface import IdSegment, NoStoredIds, PartitionSnapshot, StoredIds, StoredLetter
from sidecar.state.store import Store

ORDERS = TopicPartition("orders", 3)
NOBODY = 65534


def letter(offset: int, row: bytes = b"row") -> StoredLetter:
    """A dead letter of a given offset."""
    return StoredLetter("orders", 3, offset, "9f3ac2d1", "paid", "bad", 400, (), 1, row, None)


@contextmanager
def unprivileged() -> Iterator[Path]:
    """A folder to work in, without root's power to write anywhere."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o777)
        before = os.geteuid()
        if before == 0:
            os.seteuid(NOBODY)
        try:
            yield Path(place)
        finally:
            os.seteuid(before)


def test_the_folder_is_made_private(tmp_path: Path) -> None:
    """A missing folder is made with its parents; nobody else can read it or any file in it, whatever the umask."""
    folder = tmp_path / "a" / "b"
    before = os.umask(0)
    try:
        store = Store(folder)
        store.letters.put([letter(1)])
        store.ids.append([IdSegment(ORDERS, 1, array("q", range(FILED_MIN)).tobytes())])
        store.ids.sort(ORDERS)
        store.ids.copy(ORDERS, ORDERS._replace(partition=4))
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
        store.close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name for path in modes} >= {"lock", "state.db", "state.db-wal", "ids"}
    assert sum(path.suffix == ".ids" for path in modes) == 2
    assert {(path.is_dir(), mode) for path, mode in modes.items()} == {(True, 0o700), (False, 0o600)}


@pytest.mark.parametrize("count", [1, FILED_MIN], ids=["a row", "a file"])
def test_ids_that_are_left_are_dropped_by_an_owner_that_remembers_none(tmp_path: Path, count: int) -> None:
    """Otherwise they would come back with the ids, after an operator's reset in between."""
    with closing(Store(tmp_path)) as store:
        store.ids.append([IdSegment(ORDERS, 1, array("q", range(count)).tobytes())])
        store.ids.sort(ORDERS)
    with closing(Store(tmp_path, remembers_ids=False)) as store:
        store.ids.drop_before(ORDERS, 1 << 62)
    with closing(Store(tmp_path)) as store:
        assert store.ids.load(ORDERS) == []


def test_a_state_without_ids_needs_none(tmp_path: Path) -> None:
    """It is bound, takes a partition that starts over, and is sound for an owner with ids."""
    with closing(Store(tmp_path, remembers_ids=False)) as store:
        assert isinstance(store.ids, NoStoredIds)
        assert store.bind("c", "g")
        store.ids.drop_before(ORDERS, 1 << 62)
        assert not store.bind("another", "g")
    with closing(Store(tmp_path)) as store:
        assert store.ids.sort(ORDERS) == StoredIds({}, {})


def test_a_second_process_is_refused_with_the_first_ones_pid(tmp_path: Path) -> None:
    """While one process holds the folder a second one is told which; when the first dies the folder is free at once."""
    script = f"from sidecar.state.store import Store; s = Store({str(tmp_path)!r}); print('held', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StateError, match=f"in use by pid {holder.pid}") as caught:
            Store(tmp_path)
        assert caught.value.exit_code == 73
        assert "state.dir" in caught.value.hint
        holder.kill()
        holder.wait()
    Store(tmp_path).close()


def test_the_lock_holds_within_one_process_and_ends_with_close(tmp_path: Path) -> None:
    """Two stores on one folder cannot be open at once, not even in one process."""
    first = Store(tmp_path)
    with pytest.raises(StateError, match=f"in use by pid {os.getpid()}"):
        Store(tmp_path)
    first.close()
    Store(tmp_path).close()


def _a_file(place: Path) -> Path:
    (place / "state").write_text("")
    return place / "state"


def _below_a_file(place: Path) -> Path:
    return _a_file(place) / "deeper"


def _read_only_folder(place: Path) -> Path:
    (place / "state").mkdir(mode=0o555)
    return place / "state"


def _read_only_parent(place: Path) -> Path:
    return _read_only_folder(place) / "deeper"


def _unreadable_database(place: Path) -> Path:
    Store(place / "state").close()
    (place / "state" / "state.db").chmod(0o400)
    return place / "state"


def _database_is_a_folder(place: Path) -> Path:
    (place / "state" / "state.db").mkdir(parents=True)
    return place / "state"


def _read_only_file_system(_: Path) -> Path:
    return Path("/proc/self")


@pytest.mark.parametrize(
    "make",
    [
        _a_file,
        _below_a_file,
        _read_only_folder,
        _read_only_parent,
        _unreadable_database,
        _database_is_a_folder,
        _read_only_file_system,
    ],
)
def test_an_unusable_folder_is_named_with_its_cure(make: Callable[[Path], Path]) -> None:
    """Whatever makes a folder unusable ends in one error with the place, the reason, the cure and exit code 73."""
    with unprivileged() as place:
        folder = make(place)
        with pytest.raises(StateError) as caught:
            Store(folder)
    assert caught.value.exit_code == 73
    assert str(folder) in str(caught.value)
    assert caught.value.hint


def test_a_failed_opening_leaves_the_folder_free(tmp_path: Path) -> None:
    """A store that could not be opened holds no lock."""
    (tmp_path / "state.db").mkdir()
    with pytest.raises(StateError):
        Store(tmp_path)
    (tmp_path / "state.db").rmdir()
    Store(tmp_path).close()


def test_small_segments_are_put_together(tmp_path: Path) -> None:
    """However often ids are appended, a generation stays a bounded number of rows, and no id is lost."""
    store = Store(tmp_path)
    rng = random.Random(7)
    expected: list[int] = []
    for _ in range(700):
        values = array("q", (rng.getrandbits(63) for _ in range(rng.choice((1, 50, 3000)))))
        expected.extend(values)
        store.ids.append([IdSegment(ORDERS, 1, values.tobytes())])
    found = store.ids.load(ORDERS)
    store.close()
    assert len(found) <= 2 * 64 + 8 * len(expected) / (256 << 10)
    assert sorted(array("q", b"".join(data for _, data in found))) == sorted(expected)


def test_files_stay_bounded_when_snapshots_are_replaced(tmp_path: Path) -> None:
    """Replacing a snapshot over and over does not make the folder grow."""
    store = Store(tmp_path)
    for watermark in range(60):
        blobs = (os.urandom(400_000), os.urandom(400_000))
        store.save_partitions([PartitionSnapshot(ORDERS, "", 1, watermark, 0, blobs)])
    size_bytes = sum(path.stat().st_size for path in tmp_path.iterdir())
    store.close()
    assert size_bytes < 25_000_000


def test_dropped_ids_give_their_space_back(tmp_path: Path) -> None:
    """The file shrinks when old generations are dropped."""
    store = Store(tmp_path)
    for generation in range(8):
        store.ids.append([IdSegment(ORDERS, generation, bytes(1_000_000))])
    store.ids.drop_before(ORDERS, 7)
    store.close()
    assert (tmp_path / "state.db").stat().st_size < 2_000_000


def test_counting_dead_letters_never_waits_for_a_write(tmp_path: Path) -> None:
    """Another thread reads the dead letters while a write is under way."""
    store = Store(tmp_path)
    store.letters.put([letter(1)])
    seen: list[int] = []

    def read() -> None:
        seen.append(store.letters.count() + len(store.letters.load(5)))

    with store._database.transaction():
        reader = threading.Thread(target=read)
        reader.start()
        reader.join(10)
        assert seen == [2]
    store.close()


def test_a_full_disk_at_the_start_is_told(tmp_path: Path) -> None:
    """A new folder on a full disk is refused with the cure, and can be used once there is room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))
    try:
        with pytest.raises(StateError) as caught:
            Store(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.exit_code == 73
    assert "free space" in caught.value.hint
    store = Store(tmp_path)
    assert store.letters.put([letter(1)]) == 1
    assert store.take_damages() == []
    store.close()


def test_a_disk_that_fills_up_is_told_and_heals(tmp_path: Path) -> None:
    """What SQLite calls a full disk raises with the cure, changes nothing, and passes when there is room again."""
    store = Store(tmp_path)
    store.letters.put([letter(1)])
    store._database._writer.execute("PRAGMA max_page_count=60")
    with pytest.raises(StateError, match="full") as caught:
        store.letters.put([letter(number, bytes(50_000)) for number in range(2, 12)])
    assert "free space" in caught.value.hint
    assert [kept.offset for kept in store.letters.load(20)] == [1]
    store._database._writer.execute("PRAGMA max_page_count=1000000")
    assert store.letters.put([letter(number, bytes(50_000)) for number in range(2, 12)]) == 10
    store.close()


def test_letters_deleted_by_hand_make_room(tmp_path: Path) -> None:
    """The cure that the error names works while the daemon runs: deleting rows with another program."""
    store = Store(tmp_path, dead_letters_bytes_max=5_000)
    store.letters.put([letter(1, b"x" * 4_000)])
    with pytest.raises(StateError, match="limit"):
        store.letters.put([letter(2, b"x" * 4_000)])
    shell = sqlite3.connect(tmp_path / "state.db")
    with shell:
        shell.execute("DELETE FROM dead_letters")
    shell.close()
    assert store.letters.count() == 0
    assert store.letters.put([letter(2, b"x" * 4_000)]) == 1
    store.close()


_WRITER = """
import sys
from sidecar.core.records import TopicPartition
from sidecar.state.ids.store import FILED_MIN
from sidecar.state.interface import PartitionSnapshot, StoredLetter
from sidecar.state.store import Store
store = Store(sys.argv[1])
n = int(sys.argv[2])
while True:
    n += 1
    store.letters.put([StoredLetter("t", p, n, "s", "g", "r", None, (), 1, b"x" * 3000, None) for p in range(20)])
    store.save_partitions(
        [PartitionSnapshot(TopicPartition("t", p), "", 1, n, 0, (b"y" * 9000, b"")) for p in range(20)]
    )
    print(n, flush=True)
"""


def test_kill_in_mid_transaction_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """After kill -9 at a random instant all that was acknowledged is there, and each transaction is whole or absent."""
    rng = random.Random(11)
    last = 0
    for _ in range(6):
        command = [sys.executable, "-c", _WRITER, str(tmp_path), str(last)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            acknowledged = int(writer.stdout.readline())
            time.sleep(rng.random() * 0.05)  # the random instant, not a wait for something
            writer.send_signal(signal.SIGKILL)
            acknowledged = int([str(acknowledged), *writer.stdout.read().split()][-1])
        store = Store(tmp_path)
        watermarks = {row.watermark for row in store.load_partitions().values()}
        assert len(watermarks) == 1
        assert acknowledged <= min(watermarks) <= acknowledged + 1
        assert store.letters.count() % 20 == 0
        assert len(store.letters.load(1_000_000)) == store.letters.count()
        assert store.take_damages() == []
        store.close()
        last = acknowledged + 2


def test_what_reads_the_state_cannot_change_it(tmp_path: Path) -> None:
    """Only the writer's connection can: the reader is used on other threads, and beside a write under way."""
    with closing(Store(tmp_path)) as store, pytest.raises(sqlite3.OperationalError, match="readonly"):
        store._database._reader.execute("DELETE FROM meta")
