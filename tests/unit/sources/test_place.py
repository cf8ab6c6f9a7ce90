"""The client id by which a dead predecessor is known."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from sidecar.sources.context import place_id


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A file like /etc/machine-id."""
    file = tmp_path / "machine-id"
    file.write_text("0123456789abcdef\n")
    return file


def test_one_place_has_one_id(tmp_path: Path, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same folder by any path, there or not, gives the same id, which names the host."""
    state = tmp_path / "state"
    first = place_id(state, machine)
    assert re.fullmatch(r"sidecar-[A-Za-z0-9._-]{0,64}-[0-9a-f]{8}", first)
    state.mkdir()
    (tmp_path / "link").symlink_to(state)
    monkeypatch.chdir(tmp_path)
    assert {place_id(path, machine) for path in (state, tmp_path / "link", Path("state"))} == {first}


def test_other_places_have_other_ids(tmp_path: Path, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another folder, another machine or another host's name is another place; an odd name makes no odd id."""
    ids = {place_id(tmp_path / "a", machine), place_id(tmp_path / "b", machine), place_id(tmp_path / "a", tmp_path)}
    monkeypatch.setattr(socket, "gethostname", lambda: "höst name/" + "x" * 100)
    odd = place_id(tmp_path / "a", machine)
    assert re.fullmatch(r"sidecar-h_st_name_x{54}-[0-9a-f]{8}", odd)
    assert len(ids | {odd}) == 4
