"""Delayed messages hold every promise over seeded schedules of crashes, losses of power, takeovers and resets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.simulation.broken import MISTAKES, broken_copy, simulate
from tests.simulation.run import run

DELAYED = MISTAKES / "delayed"
SCHEDULES = 80
HERE = 8
"""Schedules of a kind in this process, where coverage makes them slow."""
STORES = pytest.mark.parametrize(
    "kind",
    [
        *(f"{kind}{hosts}" for kind in ("delayed", "changelog", "parked", "parked-changelog") for hosts in ("", "-3")),
        "postgresql",
        "postgresql-3",
        "postgresql-bare",
        "parked-postgresql-3",
        "retagged",
        "retagged-changelog",
        "copied-changelog",
        "losses",
        "losses-3",
        "losses-changelog-3",
        "losses-postgresql-3",
    ],
)

REGRESSIONS = [
    ("parked-changelog-3", 1050598),  # void records were removed by a commit that a reset took away
    ("parked-changelog-3", 1169974),  # a void parked part was removed before the changelog told of the commit
    ("parked-changelog-3", 1179749),  # an owner whom no commit had named stored halves, which counted later
    ("parked-changelog-3", 1027068),  # the account forgot a void parked part that counts after a reset
    ("parked-changelog-3", 1194207),  # the account counted parked copies of a message once over several resets
    ("parked-postgresql-3", 1132812),  # likewise
    ("parked-postgresql-3", 30015408),  # the account took a removal on the way, which was rolled back, for done
    ("losses", 5337),  # ids of parked parts outlived the commit that counted the parts, which the broker lost
    ("losses-3", 3000189),  # a store forgot what was void by a commit that the broker lost, the folder counted it
    ("losses-changelog-3", 9559),  # an owner whom no commit had named removed what an operator's reset made void for it
    ("losses-changelog-3", 9767),  # likewise
    ("losses-postgresql-3", 5109),  # the account took what a living owner had asked to remove for held
]


@STORES
def test_some_schedules_in_this_process(kind: str) -> None:
    """Schedules hold every promise; run here, where coverage counts them."""
    outcome = run(HERE, kind=kind)
    assert not outcome.failures, outcome.failures[0]
    assert outcome.schedules == HERE


@pytest.mark.parametrize(("kind", "seed"), REGRESSIONS)
def test_regression(kind: str, seed: int) -> None:
    """Each of these schedules once broke a promise."""
    outcome = run(1, seed=seed, kind=kind)
    assert not outcome.failures, outcome.failures[0]


@pytest.mark.slow
@STORES
def test_hundreds_of_schedules_in_all(kind: str) -> None:
    """Nothing is early, lost, sent twice, stuck, or under a name of other messages."""
    outcome = run(SCHEDULES, seed=10_000, kind=kind)
    assert not outcome.failures, outcome.failures[0]
    assert outcome.schedules == SCHEDULES


@pytest.mark.slow
@pytest.mark.parametrize("patch", sorted(DELAYED.glob("*.patch")), ids=lambda patch: patch.stem)
def test_mistake_is_found(patch: Path, tmp_path: Path) -> None:
    """With this mistake in the code some schedule breaks a promise."""
    broken_copy(patch, tmp_path)
    text = patch.read_text()
    seed, kind = re.search(r"^Seed: (\d+)$", text, re.MULTILINE), re.search(r"^Kind: (\S+)$", text, re.MULTILINE)
    assert seed, f"{patch.name} names no seed"
    assert kind, f"{patch.name} names no kind"
    done = simulate(tmp_path, 500, int(seed[1]), "--kind", kind[1])
    assert done.returncode == 1, f"not found in 500 schedules: {done.stdout}{done.stderr}"
    assert re.search(r"^seed \d+: (?!raised)", done.stdout, re.MULTILINE), done.stdout + done.stderr


def test_no_mistake_is_lost() -> None:
    """So many are kept at least."""
    assert len(list(DELAYED.glob("*.patch"))) >= 84
