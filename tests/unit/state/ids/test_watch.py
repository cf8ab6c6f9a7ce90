"""What others do to the files of ids, under a daemon and before its start: mended, or told, never passed over."""

from __future__ import annotations

import os
import shutil
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from sidecar.core.records import TopicPartition
from sidecar.core.windows.idruns import unmixed
from sidecar.errors import StateError
from sidecar.state.interface import IdSegment
from sidecar.state.store import Store

ORDERS, OTHER = TopicPartition("orders", 3), TopicPartition("other", 0)
IDS = [*range(10_000, 14_000), *range(20_000, 24_000)]


def filled(folder: Path) -> Store:
    """A store with two files of ids, one a generation."""
    store = Store(folder)
    store.bind("c1", "g")
    for generation in (1, 2):
        ids = array("q", range(generation * 10_000, generation * 10_000 + 4_000)).tobytes()
        store.ids.append([IdSegment(ORDERS, generation, ids)])
        store.ids.sort(ORDERS)
    return store


def opened(folder: Path) -> Store:
    """The next life."""
    store = Store(folder)
    store.bind("c1", "g")
    return store


def known(store: Store) -> list[int]:
    """All ids of the partition."""
    runs = [run for found in store.ids.sort(ORDERS).runs.values() for run in found]
    return sorted(number for run in runs for number in unmixed(run.keys).tolist())


def first_of(folder: Path) -> Path:
    """The older file."""
    return sorted(folder.rglob("*.ids"))[0]


def flip(path: Path) -> None:
    """Change a byte of a file in its place."""
    with path.open("r+b") as file:
        file.seek(20_000)
        file.write(b"!!!!!!!!")


def swap(path: Path) -> None:
    """Put another sound file in its place."""
    other = path.with_name("new")
    shutil.copy(sorted(path.parent.glob("*.ids"))[-1], other)
    other.rename(path)


UNDER_US: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "moved": lambda path: path.rename(path.with_name("elsewhere")),
    "replaced": swap,
    "folder removed": lambda path: shutil.rmtree(path.parent),
    "all removed": lambda path: shutil.rmtree(path.parent.parent),
    "a folder in its place": lambda path: (path.unlink(), path.mkdir(), path.rmdir()),
}


@pytest.mark.parametrize("how", UNDER_US)
def test_a_file_that_goes_is_made_again(tmp_path: Path, how: str) -> None:
    """What is mapped is written once more: no id is forgotten, in this life or the next, and it is told."""
    store = filled(tmp_path)
    assert store.ids.changed() == set()
    UNDER_US[how](first_of(tmp_path))
    assert store.ids.changed() == {ORDERS}
    assert known(store) == IDS
    assert store.ids.changed() == set()
    assert {damage.outcome for damage in store.take_damages()} == {"made again from memory"}
    store.close()
    store = opened(tmp_path)
    assert known(store) == IDS
    assert store.take_damages() == []
    store.close()


@pytest.mark.parametrize("how", [flip, lambda path: os.truncate(path, 30_000)], ids=["written over", "cut"])
@pytest.mark.parametrize("is_running", [True, False])
def test_a_file_that_is_changed_is_set_aside(
    tmp_path: Path, how: Callable[[Path], object], *, is_running: bool
) -> None:
    """Its ids are forgotten, once, and that is told; the others are known, also in the next life."""
    store = filled(tmp_path)
    if not is_running:
        store.close()
    how(first_of(tmp_path))
    if not is_running:
        store = opened(tmp_path)
    assert store.ids.changed() == ({ORDERS} if is_running else set())
    assert known(store) == IDS[4_000:]
    (damage,) = store.take_damages()
    assert damage.outcome.endswith("its ids are forgotten")
    store.close()
    store = opened(tmp_path)
    assert known(store) == IDS[4_000:]
    assert store.take_damages() == []
    store.close()


def test_a_file_that_was_only_touched_stays(tmp_path: Path) -> None:
    """Another time of change, as a backup may leave it, is looked into and is no damage."""
    store = filled(tmp_path)
    os.utime(first_of(tmp_path))
    assert store.ids.changed() == {ORDERS}
    assert known(store) == IDS
    assert (store.ids.changed(), store.take_damages()) == (set(), [])
    store.close()


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (Path.unlink, "removed while no daemon ran"),
        (swap, "another file stands there"),
        (lambda path: shutil.rmtree(path.parent), "removed while no daemon ran"),
    ],
    ids=["removed", "replaced", "folder removed"],
)
def test_a_file_that_is_missing_at_a_start_is_told(tmp_path: Path, how: Callable[[Path], object], reason: str) -> None:
    """Its ids are forgotten, and never in silence; the next start has nothing more to say of it."""
    store = filled(tmp_path)
    store.close()
    how(first_of(tmp_path))
    store = opened(tmp_path)
    assert set(known(store)) <= set(IDS[4_000:])
    assert {damage.reason for damage in store.take_damages()} == {reason}
    store.ids.append([IdSegment(ORDERS, 2, array("q", range(3_000)).tobytes())])
    assert {*range(3_000)} <= set(known(store))
    store.close()
    store = opened(tmp_path)
    assert {*range(3_000)} <= set(known(store))
    assert store.take_damages() == []
    store.close()


def test_what_was_merged_or_dropped_is_not_missed(tmp_path: Path) -> None:
    """Files that went in order are no damage, also when the process died before it could list the new ones."""
    store = filled(tmp_path)
    store.ids.drop_before(ORDERS, 2)
    store.close()
    store = opened(tmp_path)
    assert known(store) == IDS[4_000:]
    part = first_of(tmp_path)
    store.ids.append([IdSegment(ORDERS, 2, array("q", range(3_000)).tobytes())])
    cast(Any, store.ids)._list = lambda tp: None
    assert known(store) == [*range(3_000), *IDS[4_000:]]
    assert not part.exists()
    store.close()
    store = opened(tmp_path)
    assert known(store) == [*range(3_000), *IDS[4_000:]]
    assert store.take_damages() == []
    store.close()


@pytest.mark.parametrize("left", ["", "{", '["c1", "another"]'])
def test_files_without_a_sound_owner_are_those_of_the_state_beside_them(tmp_path: Path, left: str) -> None:
    """A lost `owner` forgets nothing where `state.db` tells whose folder it is; another's files are dropped."""
    store = filled(tmp_path)
    store.close()
    owner = tmp_path / "ids" / "owner"
    owner.unlink()
    if left:
        owner.write_text(left)
    store = opened(tmp_path)
    assert known(store) == ([] if "another" in left else IDS)
    store.close()
    assert owner.read_text() == '["c1", "g"]'


def test_files_that_nobody_can_claim_are_told(tmp_path: Path) -> None:
    """Where `state.db` is gone as well, they may be another group's: they go, and that is told."""
    store = filled(tmp_path)
    store.close()
    for path in tmp_path.glob("state.db*"):
        path.unlink()
    (tmp_path / "ids" / "owner").unlink()
    store = opened(tmp_path)
    assert known(store) == []
    (damage,) = store.take_damages()
    assert damage.outcome == "all are forgotten"
    store.close()


def test_files_outlive_the_database(tmp_path: Path) -> None:
    """Without `state.db` nothing is missed, and the files tell whose they are."""
    store = filled(tmp_path)
    store.close()
    for path in tmp_path.glob("state.db*"):
        path.unlink()
    store = opened(tmp_path)
    assert known(store) == IDS
    assert store.take_damages() == []
    store.close()


def test_a_folder_that_was_moved_away_is_not_started_over(tmp_path: Path) -> None:
    """Files are made again in their own folder alone: what was moved with `state.db` may come back."""
    store = filled(tmp_path / "state")
    (tmp_path / "state").rename(tmp_path / "away")
    assert store.ids.changed() == {ORDERS}
    with pytest.raises(StateError, match="was removed or moved"):
        store.ids.sort(ORDERS)
    assert not (tmp_path / "state").exists()
    (tmp_path / "away").rename(tmp_path / "state")
    assert known(store) == IDS
    assert store.take_damages() == []
    store.close()


def test_a_file_in_the_place_of_a_folder_is_an_error_of_the_state(tmp_path: Path) -> None:
    """It is told with its path, again and again, and ends no thread."""
    store = filled(tmp_path)
    store.close()
    folder = first_of(tmp_path).parent
    shutil.rmtree(folder)
    folder.touch()
    store = opened(tmp_path)
    with pytest.raises(StateError, match="orders,3: Not a directory"):
        store.ids.sort(ORDERS)
    folder.unlink()
    assert known(store) == []
    store.close()
