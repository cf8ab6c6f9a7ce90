"""Modes of the state folder and of what is in it."""

from __future__ import annotations

import stat
from contextlib import closing
from pathlib import Path

from sidecar.state.folder import FILES, FOLDERS
from sidecar.state.store import Store


def filled(folder: Path) -> None:
    """A folder as an earlier version or another tool may have made it, open to all."""
    folder.mkdir()
    for name in FOLDERS:
        (folder / name / "inner").mkdir(parents=True)
        (folder / name / "inner" / "file").touch()
    for name in (*FILES, "admin.new", ".zone-writer", "state.db.damaged-1", "state.db.damaged-1-wal"):
        if name != "state.db":
            (folder / name).touch()
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o2777 if path.is_dir() else 0o666)


def modes(folder: Path) -> set[tuple[bool, int]]:
    """Of the folder and all in it; whether it is a folder, and its mode."""
    return {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in (folder, *folder.rglob("*"))}


def test_a_folder_that_exists_gets_private_with_all_that_a_daemon_made(tmp_path: Path) -> None:
    """Others lose their rights; the bit that hands the group on stays."""
    folder = tmp_path / "state"
    filled(folder)
    with closing(Store(folder)):
        assert modes(folder) == {(True, 0o2700), (False, 0o600)}


def test_a_folder_with_anything_else_keeps_its_mode(tmp_path: Path) -> None:
    """Somebody else may need what is there, such as a landing zone; the daemon's own files get private all the same."""
    folder = tmp_path / "state"
    filled(folder)
    other = folder / "zone"
    other.mkdir()
    other.chmod(0o755)
    (folder / "admins").touch(0o644)
    with closing(Store(folder)):
        assert modes(folder) == {(True, 0o2777), (True, 0o755), (True, 0o2700), (False, 0o644), (False, 0o600)}


def test_a_mounted_volume_is_as_good_as_empty(tmp_path: Path) -> None:
    """The folder that every new file system has is nobody's."""
    folder = tmp_path / "state"
    (folder / "lost+found").mkdir(parents=True)
    folder.chmod(0o755)
    with closing(Store(folder)):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_no_link_is_followed(tmp_path: Path) -> None:
    """What a link leads to is outside of the folder."""
    outside = tmp_path / "outside"
    outside.touch()
    outside.chmod(0o644)
    folder = tmp_path / "state"
    (folder / "ids").mkdir(parents=True)
    (folder / "ids" / "link").symlink_to(outside)
    with closing(Store(folder)):
        assert stat.S_IMODE(outside.stat().st_mode) == 0o644
