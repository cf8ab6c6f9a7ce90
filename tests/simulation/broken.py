"""Runs the simulator against a copy of the package that has a mistake in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MISTAKES = Path(__file__).parent / "mistakes"


def broken_copy(patch: Path, place: Path) -> None:
    """A copy of the package with the mistake in it."""
    copy_package(place)
    plant(patch, place)


def copy_package(place: Path) -> None:
    """A copy of the package, with its byte code: without that each start takes twice as long."""
    shutil.copytree(ROOT / "sidecar", place / "sidecar", ignore=shutil.ignore_patterns("*.pyc.*"))


def plant(patch: Path, place: Path) -> None:
    """Put the mistake into the files that it changes."""
    command = ["git", "apply", "--verbose", "-p1", str(patch)]
    done = subprocess.run(command, cwd=place, env={**os.environ, "GIT_DIR": os.devnull}, capture_output=True, text=True)
    assert not done.returncode, f"{patch.name} does not apply any more: make it again\n{done.stderr}"


def simulate(place: Path, schedules: int, seed: int = 0, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the simulator against the copy."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "tests.simulation.run",
        "--schedules",
        str(schedules),
        "--seed",
        str(seed),
        "--failures-max",
        "1",
        *options,
    ]
    environment = {**os.environ, "PYTHONPATH": f"{place}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTHONHASHSEED"] = "0"  # the command would start itself again with it
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
