"""Files of sorted ids: whole or set aside, few, and never a reason to stop."""

from __future__ import annotations

import errno
import os
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from sidecar.core.records import TopicPartition
from sidecar.core.windows.idruns import Keys, mixed, unmixed
from sidecar.errors import StateError
from sidecar.state.ids import file as id_file
from sidecar.state.ids.file import DamagedIdsError, open_run, write
from sidecar.state.ids.files import IdFiles
from sidecar.state.interface import Damage, IdSegment
from sidecar.state.store import Store

ORDERS = TopicPartition("orders", 3)


def keys_of(*numbers: int) -> Keys:
    """Rising keys."""
    return np.sort(mixed(numbers))


def segment(first: int, last: int, generation: int = 1) -> IdSegment:
    """Ids in a row."""
    return IdSegment(ORDERS, generation, array("q", range(first, last)).tobytes())


def known(store: Store) -> list[int]:
    """All ids of the partition."""
    runs = [run for found in store.ids.sort(ORDERS).runs.values() for run in found]
    return sorted(number for run in runs for number in unmixed(run.keys).tolist())


def id_files(folder: Path) -> list[Path]:
    """The files of sorted ids."""
    return sorted(folder.rglob("*.ids"))


def test_a_file_is_the_run_that_was_written(tmp_path: Path) -> None:
    """Keys, index and filter come back from the file, in which each is mapped, and takes 11 bytes at most."""
    keys = [keys_of(*range(0, 60_000, 2)), keys_of(*range(1, 60_000, 2)), keys_of(*range(100))]
    write(tmp_path / "x", keys, lambda: False)
    run = open_run(tmp_path / "x")
    assert run.keys.tolist() == keys_of(*range(60_000)).tolist()
    assert run.contains(mixed(range(60_000))).all()
    assert not run.contains(mixed(range(60_000, 70_000))).any()
    assert not run.keys.flags.owndata
    assert run.nbytes < 11 * 60_000


def test_small_files_take_no_descriptors(tmp_path: Path) -> None:
    """Each rebalance may leave one for each partition, and a process has 1,024 descriptors by default."""
    write(tmp_path / "x", [keys_of(*range(5_000))], lambda: False)
    before = len(list(Path("/proc/self/fd").iterdir()))
    runs = [open_run(tmp_path / "x") for _ in range(12)]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert all(len(run) == 5_000 for run in runs)


def test_partitions_may_get_their_first_files_at_once(tmp_path: Path) -> None:
    """Several threads begin the folder together, each for a partition of its own, and all of their files stand."""
    for folder in (tmp_path / str(number) for number in range(20)):
        kept = IdFiles(folder, print)
        with ThreadPoolExecutor(8) as pool:
            tps = [TopicPartition("orders", number) for number in range(8)]
            list(pool.map(lambda tp: kept.add_keys(tp, 1, keys_of(1, 2, 3)), tps))  # noqa: B023  # done within the turn
        assert len(id_files(folder)) == 8


@pytest.mark.parametrize("at", [0, 9, 40, 5_000, 30_000, -1])
def test_a_flipped_bit_is_found(tmp_path: Path, at: int) -> None:
    """Wherever in the file a bit is flipped, it is not taken for sound."""
    write(tmp_path / "x", [keys_of(*range(5_000))], lambda: False)
    raw = bytearray((tmp_path / "x").read_bytes())
    raw[at] ^= 4
    (tmp_path / "x").write_bytes(raw)
    with pytest.raises(DamagedIdsError):
        open_run(tmp_path / "x")


@pytest.mark.parametrize("size", [0, 10, 4_096, 20_000, 90_000])
def test_a_torn_file_is_found(tmp_path: Path, size: int) -> None:
    """A file of another length is not taken for sound."""
    write(tmp_path / "x", [keys_of(*range(5_000))], lambda: False)
    os.truncate(tmp_path / "x", size)
    with pytest.raises(DamagedIdsError):
        open_run(tmp_path / "x")


def test_a_damaged_file_is_set_aside(tmp_path: Path) -> None:
    """Its ids are forgotten and that is told; the others are known, and new ones are kept."""
    store = Store(tmp_path)
    for generation in (1, 2):
        store.ids.append([segment(generation * 10_000, generation * 10_000 + 5_000, generation)])
        store.ids.sort(ORDERS)
    store.close()
    first = id_files(tmp_path)[0]
    raw = bytearray(first.read_bytes())
    raw[20_000] ^= 1
    first.write_bytes(raw)
    store = Store(tmp_path)
    assert known(store) == [*range(20_000, 25_000)]
    [damage] = store.take_damages()
    assert (damage.what, "checksum of block 0") == ("message ids", damage.reason)
    store.ids.append([segment(0, 2_000, 2)])
    assert known(store) == [*range(2_000), *range(20_000, 25_000)]
    store.close()
    assert id_files(tmp_path)[0].name.startswith("2-")
    assert len(list(tmp_path.rglob("damaged"))) == 1


def test_a_file_that_cannot_be_opened_for_now_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many open files say nothing about this one: it is no damage, and its ids are there at the next try."""
    store = Store(tmp_path)
    store.ids.append([segment(0, 4_000)])
    store.ids.sort(ORDERS)
    store.close()
    store = Store(tmp_path)

    def too_many(fd: int) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as broken:
        broken.setattr(id_file, "_map", too_many)
        with pytest.raises(StateError, match="Too many open files"):
            store.ids.sort(ORDERS)
    assert known(store) == [*range(4_000)]
    assert store.take_damages() == []
    store.close()


def test_there_are_few_files(tmp_path: Path) -> None:
    """However often ids are sorted, a partition has a handful of files, and no row is left in the database."""
    store = Store(tmp_path)
    for at in range(0, 90_000, 1_500):
        store.ids.append([segment(at, at + 1_500)])
        store.ids.sort(ORDERS)
    assert known(store) == [*range(90_000)]
    store.close()
    assert len(id_files(tmp_path)) <= 4
    assert sum(path.stat().st_size for path in id_files(tmp_path)) < 12 * 90_000


def test_what_a_crash_leaves_is_tidied(tmp_path: Path) -> None:
    """Files that were being made are removed, and files that are whole in another one; each id is still known."""
    store = Store(tmp_path)
    store.ids.append([segment(0, 4_000)])
    store.ids.sort(ORDERS)
    part = id_files(tmp_path)[0]
    copy = part.read_bytes()
    store.ids.append([segment(4_000, 8_000)])
    store.ids.sort(ORDERS)
    store.close()
    [whole] = id_files(tmp_path)
    assert (part.name, whole.name) == ("1-1-1.ids", "1-1-2.ids")
    part.write_bytes(copy)
    (part.parent / ".1-3-3.ids").write_bytes(copy[:5_000])
    store = Store(tmp_path)
    assert known(store) == [*range(8_000)]
    store.close()
    assert [path.name for path in part.parent.iterdir()] == ["1-1-2.ids"]


def test_ids_in_rows_and_in_a_file_are_known_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends between making a file and deleting its rows loses no id."""
    store = Store(tmp_path)
    store.ids.append([segment(0, 4_000)])
    with monkeypatch.context() as broken:
        broken.setattr("sidecar.state.ids.segments.remove", lambda connection, rows: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.ids.sort(ORDERS)
    store.close()
    store = Store(tmp_path)
    assert known(store) == [*range(4_000)]
    store.close()


def test_a_full_disk_leaves_ids_in_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no file can be made all ids are known all the same, the reason is told, and nothing half made is left."""
    store = Store(tmp_path)
    store.ids.append([segment(0, 4_000)])

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        found = store.ids.sort(ORDERS)
        assert "No space left" in found.problem
        assert sum(len(run) for run in found.runs[1]) == 4_000
    assert not list(tmp_path.rglob("ids/*/*"))
    assert known(store) == [*range(4_000)]
    assert len(id_files(tmp_path)) == 1
    store.close()


def test_a_stop_ends_the_sorting(tmp_path: Path) -> None:
    """What is being sorted when the process ends is given up; no id is lost."""
    store = Store(tmp_path)
    store.ids.append([segment(0, 4_000)])
    store.ids.stop_sorting()
    with pytest.raises(StateError, match="stops"):
        store.ids.sort(ORDERS)
    store.close()
    store = Store(tmp_path)
    assert known(store) == [*range(4_000)]
    store.close()


def test_what_is_dropped_while_it_is_merged_stays_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merged file whose parts went meanwhile is not kept."""
    found: list[Damage] = []
    files = IdFiles(tmp_path, found.append)
    for at in (0, 2_000):
        files.add_keys(ORDERS, 1, keys_of(*range(at, at + 2_000)))

    def interrupted(path: Path, *more: object) -> None:
        write(path, *more)  # type: ignore[arg-type]
        files.drop_before(ORDERS, 2)

    monkeypatch.setattr("sidecar.state.ids.files.write", interrupted)
    files.tidy(ORDERS)
    assert files.runs(ORDERS) == {}
    assert not id_files(tmp_path)


def test_names_of_partitions_are_told_apart(tmp_path: Path) -> None:
    """Topics of any name have folders of their own."""
    places = [
        TopicPartition("a,0", 1), TopicPartition("a", 0, "1"), TopicPartition("%RETRY%g/x", 0), TopicPartition("..", 0),
    ]  # fmt: skip
    files = IdFiles(tmp_path, lambda damage: None)
    for number, tp in enumerate(places):
        files.add_keys(tp, 1, keys_of(number))
    again = IdFiles(tmp_path, lambda damage: None)
    assert [unmixed(again.runs(tp)[1][0].keys).tolist() for tp in places] == [[0], [1], [2], [3]]
    assert len([path for path in (tmp_path / "ids").iterdir() if path.is_dir()]) == 4


def test_a_large_table_of_an_earlier_version_is_taken_over_in_pieces(tmp_path: Path) -> None:
    """Its segments may have 10 MiB each: no more than a page of them is held at once, and each id is known after it."""
    store = Store(tmp_path)
    for at in range(0, 2_400_000, 600_000):
        store.ids.append([segment(at, at + 600_000)])
    before = len(id_files(tmp_path))
    store.ids.sort(ORDERS, merge=False)
    assert (before, len(id_files(tmp_path))) == (0, 4)
    assert len(known(store)) == 2_400_000
    store.close()
