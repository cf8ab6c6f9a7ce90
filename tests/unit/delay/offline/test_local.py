"""A store whose folder is read while no process has it open; a property test compares all that it has."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar import files
from sidecar.delay.offline.local import OfflineStore
from sidecar.delay.partitions import PartitionStore
from sidecar.delay.stored import IDENTITY
from sidecar.errors import NoStateError, StateError, UnavailableError
from tests.support.partition_store import END, killed, rows


def held(folder: Path, *dues: int) -> PartitionStore:
    """A store whose first partition has these messages, in the log alone."""
    store = PartitionStore(folder)
    store.put(store.number(b"g\0t\0\x000"), rows(*dues))
    store.writes.sync()
    return store


def test_a_folder_that_a_process_uses_is_not_read(tmp_path: Path) -> None:
    """The process is named; once it has ended, its folder is read."""
    store = held(tmp_path / "store", 5, 6)
    with pytest.raises(UnavailableError, match=f"in use by pid {os.getpid()}"):
        OfflineStore(tmp_path / "store")
    assert len(OfflineStore(killed(store)).listed(0, 0, END, 10, None)) == 2


def test_a_process_can_start_while_the_folder_is_read(tmp_path: Path) -> None:
    """The reader finds out that its answer may be of two moments, also if that process has ended."""
    folder = killed(held(tmp_path / "store", 5))
    offline = OfflineStore(folder)
    offline.check()
    store = PartitionStore(folder)
    with pytest.raises(UnavailableError, match="in use by pid"):
        offline.check()
    store.close()
    with pytest.raises(UnavailableError, match="has used"):
        offline.check()


def test_no_file_is_written(tmp_path: Path) -> None:
    """So a folder can be read on a file system that is read-only, or by a user who must not change what it has."""

    def found() -> dict[Path, tuple[int, int]]:
        return {each: (each.stat().st_mtime_ns, each.stat().st_ino) for each in folder.rglob("*")}

    folder = killed(held(tmp_path / "store", 5, 6))
    before = found()
    offline = OfflineStore(folder)
    assert len(offline.listed(0, 0, END, 10, None)) == 2
    offline.check()
    assert found() == before


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    """It is not created."""
    with pytest.raises(NoStateError, match="there is no store"):
        OfflineStore(tmp_path / "delay")
    assert not any(tmp_path.iterdir())


def test_messages_of_another_group_are_not_counted(tmp_path: Path) -> None:
    """They are in the same folder, and no daemon of this group delivers them."""
    store = held(tmp_path / "store", 5, 6)
    store.put(store.number(b"other\0t\0\x000"), rows(7))
    offline = OfflineStore(killed(store), lambda name: name.startswith(b"g\0"))
    assert sum(offline.hours().values()) == 2


def test_an_empty_folder_holds_nothing(tmp_path: Path) -> None:
    """A process may have ended before it wrote the first checkpoint."""
    offline = OfflineStore(tmp_path)
    assert (dict(offline.names()), dict(offline.hours()), offline.disk_bytes()) == ({}, {}, 0)


def _newer(folder: Path) -> None:
    raw = bytearray((folder / IDENTITY).read_bytes())
    raw[24] += 1  # the version
    (folder / IDENTITY).write_bytes(raw)


def _without_a_file(folder: Path) -> None:
    for each in folder.glob("rows/MANIFEST-*"):
        each.unlink()


@pytest.mark.parametrize("change", [_newer, _without_a_file])
def test_a_folder_that_cannot_be_understood_is_refused(tmp_path: Path, change: Callable[[Path], None]) -> None:
    """Exit 73: another version wrote it, or something is missing."""
    folder = killed(held(tmp_path / "store", 5))
    change(folder)
    with pytest.raises(StateError, match="cannot be used") as refused:
        OfflineStore(folder)
    assert refused.value.exit_code == 73


def test_a_folder_without_its_identity_is_read(tmp_path: Path) -> None:
    """The database names the store, too."""
    folder = killed(held(tmp_path / "store", 5))
    before = OfflineStore(folder).place(0)
    (folder / IDENTITY).unlink()
    assert OfflineStore(folder).place(0) == before


def test_files_that_may_not_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 73; the hint names the daemon's user."""
    folder = killed(held(tmp_path / "store", 5))

    def refuse(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(files, "read_from", refuse)
    with pytest.raises(StateError, match="identity: Permission denied") as refused:
        OfflineStore(folder)
    assert (refused.value.exit_code, "user of the daemon" in refused.value.hint) == (73, True)
