"""Deliberate mistakes in the core, each kept as a patch; the simulator finds every one of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.broken import MISTAKES, ROOT, broken_copy, copy_package, plant, simulate

SCHEDULES = 1_000
"""So many schedules, from the seed that the patch names on, find any of them; most need a few."""


@pytest.mark.slow
@pytest.mark.parametrize("patch", sorted(MISTAKES.glob("*.patch")), ids=lambda patch: patch.stem)
def test_mistake_is_found(patch: Path, tmp_path: Path) -> None:
    """With this mistake in the core some schedule breaks a promise."""
    broken_copy(patch, tmp_path)
    named = re.search(r"^Seed: (\d+)$", patch.read_text(), re.MULTILINE)
    assert named, f"{patch.name} names no seed"
    options = re.findall("^With: (.*)$", patch.read_text(), re.MULTILINE)
    options = f"--{options[0]}".split() if options else []
    done = simulate(tmp_path, SCHEDULES, int(named[1]), *options)
    assert done.returncode == 1, f"not found in {SCHEDULES} schedules: {done.stdout}{done.stderr}"
    assert re.search(r"^seed \d+: (?!raised)", done.stdout, re.MULTILINE), done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("patch", sorted((MISTAKES / "masks").glob("*.patch")), ids=lambda patch: patch.stem)
def test_mistake_in_the_mask_of_tags_is_found(patch: Path, tmp_path: Path) -> None:
    """With this mistake a wanted message is refused, or each unwanted tag is looked at."""
    broken_copy(patch, tmp_path)
    for name in (
        "unit/core/messages/test_masks.py",
        "unit/core/messages/test_tag_index.py",
        "property/test_tag_masks.py",
    ):
        shutil.copy(ROOT / "tests" / name, tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"^FAILED test_\w*(masks|tag_index).py::", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("patch", sorted((MISTAKES / "members").glob("*.patch")), ids=lambda patch: patch.stem)
def test_mistake_in_the_table_of_deciding_keys_is_found(patch: Path, tmp_path: Path) -> None:
    """With this mistake a key that decides which messages a part has would be forgotten by one of its uses."""
    broken_copy(patch, tmp_path)
    shutil.copy(ROOT / "tests/unit/config/test_members.py", tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"^FAILED test_members.py::", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("patch", sorted(MISTAKES.rglob("*.patch")), ids=lambda patch: patch.stem)
def test_mistake_is_one_of_this_code(patch: Path, tmp_path: Path) -> None:
    """Each applies, changes something, and leaves what Python takes: else its error alone would be found."""
    changed = re.findall(r"^\+\+\+ b/(\S+)$", patch.read_text(), re.MULTILINE)
    assert changed
    for name in changed:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    plant(patch, tmp_path)
    for name in changed:
        mistaken = (tmp_path / name).read_text()
        assert mistaken != (ROOT / name).read_text()
        compile(mistaken, name, "exec")


def test_no_mistake_is_lost() -> None:
    """So many are kept at least."""
    assert len(list(MISTAKES.glob("*.patch"))) >= 33


def test_copy_without_a_mistake_is_sound(tmp_path: Path) -> None:
    """The same harness finds nothing in the core as it is, and does use the copy."""
    copy_package(tmp_path)
    for options in ([], ["--ledger"]):
        done = simulate(tmp_path, 20, 0, *options)
        assert not done.returncode, done.stdout + done.stderr
        assert "20 schedules" in done.stdout
