"""A store whose folder is read while no process has it open; a property test compares all that it has."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar import files
from sidecar.delay.disk.wal import CHECKPOINT
from sidecar.delay.offline.local import OfflineStore
from sidecar.delay.partitions import PartitionStore
from sidecar.errors import NoStateError, StateError, UnavailableError
from tests.support.partition_store import END, killed, rows


def held(folder: Path, *dues: int) -> PartitionStore:
    """A store whose first partition has these messages, in the log alone."""
    store = PartitionStore(folder)
    store.put(store.number(b"g\0t\0\x000"), rows(*dues))
    store.sync()
    return store


def test_a_folder_that_a_process_uses_is_not_read(tmp_path: Path) -> None:
    """The process is named; once it has ended, its folder is read."""
    store = held(tmp_path, 5, 6)
    with pytest.raises(UnavailableError, match=f"in use by pid {os.getpid()}"):
        OfflineStore(tmp_path)
    killed(store)
    assert len(OfflineStore(tmp_path).listed(0, 0, END, 10, None)) == 2


def test_a_process_can_start_while_the_folder_is_read(tmp_path: Path) -> None:
    """The reader finds out that its answer may be of two moments, also if that process has ended."""
    killed(held(tmp_path, 5))
    offline = OfflineStore(tmp_path)
    offline.check()
    store = PartitionStore(tmp_path)
    with pytest.raises(UnavailableError, match="in use by pid"):
        offline.check()
    killed(store)
    with pytest.raises(UnavailableError, match="has used"):
        offline.check()


def test_a_log_larger_than_what_a_process_keeps_in_memory_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is appended to the files."""
    killed(held(tmp_path, *range(1_000)))
    monkeypatch.setattr("sidecar.delay.lanes.BUFFERED_BYTES_MAX", 100)
    monkeypatch.setattr("sidecar.delay.disk.hours.HOUR_BYTES_MAX", 100)
    names = {path.name for path in tmp_path.iterdir()}
    assert sum(OfflineStore(tmp_path).hours().values()) == 1_000
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    """It is not created."""
    with pytest.raises(NoStateError, match="there is no store"):
        OfflineStore(tmp_path / "delay")
    assert not any(tmp_path.iterdir())


def test_an_empty_folder_holds_nothing(tmp_path: Path) -> None:
    """A process may have ended before it wrote the first checkpoint."""
    offline = OfflineStore(tmp_path)
    assert (dict(offline.names()), dict(offline.hours()), offline.disk_bytes()) == ({}, {}, 0)


def _newer(folder: Path) -> None:
    raw = bytearray((folder / CHECKPOINT).read_bytes())
    raw[24] += 1  # the version
    (folder / CHECKPOINT).write_bytes(raw)


@pytest.mark.parametrize("change", [_newer, lambda folder: (folder / CHECKPOINT).unlink()])
def test_a_folder_that_cannot_be_understood_is_refused(tmp_path: Path, change: Callable[[Path], None]) -> None:
    """Exit 73: another version wrote its checkpoint, or there is none."""
    killed(held(tmp_path, 5))
    change(tmp_path)
    with pytest.raises(StateError, match="checkpoint cannot be used") as refused:
        OfflineStore(tmp_path)
    assert refused.value.exit_code == 73


def test_a_log_with_changes_of_a_later_version_is_refused(tmp_path: Path) -> None:
    """Exit 73 with the cure."""
    store = held(tmp_path, 5)
    store._journal._log.write(b"\x63\0\0\0\0")
    killed(store)
    with pytest.raises(StateError, match="99") as refused:
        OfflineStore(tmp_path)
    assert "or a later one" in refused.value.hint


def test_files_that_may_not_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 73; the hint names the daemon's user."""
    killed(held(tmp_path, 5))

    def refuse(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(files, "read_from", refuse)
    with pytest.raises(StateError, match="checkpoint: Permission denied") as refused:
        OfflineStore(tmp_path)
    assert (refused.value.exit_code, "user of the daemon" in refused.value.hint) == (73, True)
