"""The folder that a configuration without `state.dir` gets."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.config.loader import InvalidConfigError, load
from sidecar.config.model import Settings
from sidecar.config.state_dir import NAME_BYTES_MAX, folder_name
from sidecar.errors import StateError
from sidecar.state.folder import StateFolder
from tests.support.jars import ROOT

MINIMAL = ROOT / "config" / "minimal.yaml"
GROUPS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=255)


@pytest.mark.parametrize(
    ("environ", "base"),
    [
        ({"HOME": "/home/me"}, "/home/me/.local/state"),
        ({"HOME": "/"}, "/.local/state"),
        ({"HOME": "/home/me", "XDG_STATE_HOME": "/states"}, "/states"),
        ({"XDG_STATE_HOME": "/states"}, "/states"),
        ({"HOME": "/home/me", "XDG_STATE_HOME": ""}, "/home/me/.local/state"),
        ({"HOME": "/home/me", "XDG_STATE_HOME": "relative"}, "/home/me/.local/state"),
    ],
)
def test_a_file_without_a_state_folder_gets_that_of_the_group(environ: Mapping[str, str], base: str) -> None:
    """It is below XDG's folder of states, or the home; a relative path in the variable is ignored."""
    assert load(MINIMAL, environ).state.dir == Path(base) / "sidecar" / "orders-sidecar"


@pytest.mark.parametrize("environ", [{}, {"HOME": ""}, {"HOME": "relative", "XDG_STATE_HOME": "relative"}])
def test_without_a_home_the_key_is_needed(environ: Mapping[str, str]) -> None:
    """The problem names the key and the variables."""
    with pytest.raises(InvalidConfigError, match=r"state\.dir is missing, and neither XDG_STATE_HOME nor HOME is set"):
        load(MINIMAL, environ)


def test_the_folder_of_rocketmq_is_named_after_its_group() -> None:
    """Its section has another key for the group."""
    file = load(ROOT / "config" / "rocketmq.yaml", {"HOME": "/home/me"}).public()
    found = Settings.model_validate({**file, "state": {}}, context={"HOME": "/home/me"})
    assert found.state.dir == Path("/home/me/.local/state/sidecar") / found.source.group_id


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("orders-sidecar_1.x", "orders-sidecar_1.x"),
        ("a/b", "a%2Fb"),
        ("a%2Fb", "a%252Fb"),
        ("..", "%2E."),
        (".hidden", "%2Ehidden"),
        ("~me", "%7Eme"),
        ("é", "%C3%A9"),
    ],
)
def test_a_group_becomes_a_file_name(group: str, name: str) -> None:
    """What a path cannot have, or would read in another way, is escaped."""
    assert folder_name(group) == name


@given(GROUPS)
def test_any_group_has_one_folder_below_the_others(group: str) -> None:
    """Its name is no path, is not hidden, and is not too long for a file system."""
    name = folder_name(group)
    assert Path("/x", name).parent == Path("/x")
    assert not name.startswith(".")
    assert len(name.encode()) <= NAME_BYTES_MAX


@given(GROUPS, GROUPS)
def test_two_groups_have_two_folders(one: str, other: str) -> None:
    """No two names are the same, nor the name of one that is escaped and another that looks like that."""
    assert (folder_name(one) == folder_name(other)) == (one == other)
    assert folder_name(folder_name(one)) != folder_name(one) or folder_name(one) == one


def test_long_groups_that_begin_alike_have_two_folders() -> None:
    """The checksum tells them apart."""
    assert folder_name("é" * 254 + "a") != folder_name("é" * 254 + "b")


def test_a_second_process_of_a_group_is_told_to_set_its_own(tmp_path: Path) -> None:
    """Both would have the same folder, and the error of the lock names the key."""
    folder = load(MINIMAL, {"HOME": str(tmp_path)}).state.dir
    with contextlib.closing(StateFolder(folder)), pytest.raises(StateError, match="in use by pid") as refused:
        StateFolder(load(MINIMAL, {"HOME": str(tmp_path)}).state.dir)
    assert "set state.dir in the configuration" in refused.value.hint
