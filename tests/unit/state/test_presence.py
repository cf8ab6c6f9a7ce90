"""State files that are moved, removed or replaced while they are open: nothing is called durable that nobody finds."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sidecar.errors import StateError
from sidecar.state.interface import StoredLetter
from sidecar.state.store import Store


def letter(offset: int) -> StoredLetter:
    """A dead letter of a given offset."""
    return StoredLetter("orders", 3, offset, "9f3ac2d1", "paid", "bad", 400, (), 1, b"row", b"envelope")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An open state with a dead letter, in a folder of its own."""
    with contextlib.closing(Store(tmp_path / "state")) as store:
        store.letters.put([letter(1)])
        yield store


def move(folder: Path) -> None:
    """Give the folder another name."""
    folder.rename(folder.with_name("moved"))


def replace(folder: Path) -> None:
    """Put a sound state of other content in its place."""
    move(folder)
    Store(folder).close()


def hide(folder: Path) -> None:
    """Put a link that leads nowhere in its place."""
    move(folder)
    folder.symlink_to("nowhere")


def remove(name: str) -> Callable[[Path], None]:
    """Remove one of its files."""
    return lambda folder: (folder / name).unlink()


AWAY: dict[str, Callable[[Path], object]] = {
    "moved": move,
    "removed": shutil.rmtree,
    "replaced": replace,
    "hidden": hide,
    "without its file": remove("state.db"),
    "without its log": remove("state.db-wal"),
    "without its index": remove("state.db-shm"),
}


@pytest.mark.parametrize("how", AWAY)
def test_nothing_is_stored_where_nobody_finds_it(store: Store, tmp_path: Path, how: str) -> None:
    """Every write is refused, with the file's name and what to do; what had been read before can be read still."""
    AWAY[how](tmp_path / "state")
    for write in (lambda: store.letters.put([letter(2)]), lambda: store.save_member(None), store.check_in_place):
        with pytest.raises(StateError, match=r"state\.db.* was (removed or moved|replaced)") as caught:
            write()
        assert "restart the daemon" in caught.value.hint
    assert [one.offset for one in store.letters.load(10)] == [1]


def test_a_folder_that_cannot_be_looked_into_is_no_place(store: Store, tmp_path: Path) -> None:
    """Where it cannot be told what stands under the name, nothing is stored."""
    (tmp_path / "state").rename(tmp_path / "moved")
    (tmp_path / "state").symlink_to("state")
    with pytest.raises(StateError, match="can no longer be found: Too many levels of symbolic links"):
        store.letters.put([letter(2)])


def test_a_folder_that_is_put_back_is_used_again(store: Store, tmp_path: Path) -> None:
    """Moved away and back, it takes writes again, and has all that it was given."""
    move(tmp_path / "state")
    with pytest.raises(StateError):
        store.letters.put([letter(2)])
    (tmp_path / "moved").rename(tmp_path / "state")
    store.check_in_place()
    store.letters.put([letter(2)])
    assert [one.offset for one in store.letters.load(10)] == [1, 2]


def test_a_write_is_refused_when_the_folder_goes_meanwhile(store: Store, tmp_path: Path) -> None:
    """What is committed into a file that was moved between beginning and end of the write counts as not stored."""

    class Letters(list[StoredLetter]):
        def __iter__(self) -> Iterator[StoredLetter]:
            move(tmp_path / "state")
            return super().__iter__()

    with pytest.raises(StateError, match="removed or moved"):
        store.letters.put(Letters([letter(2)]))


def test_a_file_that_took_its_place_is_left_alone(store: Store, tmp_path: Path) -> None:
    """A new process's state under the same name is neither set aside nor shortened when the old one is closed."""
    move(tmp_path / "state")
    with contextlib.closing(Store(tmp_path / "state")) as other:
        other.letters.put([letter(7)])
        (tmp_path / "moved" / "state.db").write_bytes(b"no database at all\n" * 4000)
        with pytest.raises(StateError):
            store.load_partitions()
        (tmp_path / "moved" / "state.db-wal").write_bytes(b"no log at all\n" * 20_000)
        with pytest.raises(StateError):
            store.letters.load(10)
        store.close()
        other.letters.put([letter(8)])
        assert [one.offset for one in other.letters.load(10)] == [7, 8]
    assert [path.name for path in (tmp_path / "state").glob("*.damaged-*")] == []
    with contextlib.closing(Store(tmp_path / "state")) as again:
        assert again.letters.count() == 2
