"""A zone in an object store: whatever is lost, late or killed, each row arrives once. By the thousand, from seeds."""

from __future__ import annotations

import pytest

from sidecar.zone import retention
from tests.support.bucket import Odds
from tests.support.object_zone import BATCHES, ROWS, ObjectZone

TROUBLE = Odds(fails=0.03, lost=0.05, again=0.1, late=0.04, dies=0.02)
CASES = {
    "answers lost, late and repeated, processes killed": (TROUBLE, 0.0, range(300)),
    "and second processes as the same writer": (TROUBLE, 0.05, range(1_000, 1_120)),
    "killed at nearly every request": (Odds(dies=0.12, lost=0.1), 0.0, range(2_000, 2_080)),
}


@pytest.mark.parametrize("case", CASES)
def test_each_row_arrives_once(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writers and a reader: all acknowledged rows are visible, in order, once, and no object is left over."""
    monkeypatch.setattr(retention, "LINES_MIN", 3)
    odds, zombies, seeds = CASES[case]
    for seed in seeds:
        try:
            rows = ObjectZone(seed, odds, zombies).run()
        except Exception as error:
            raise AssertionError(f"seed {seed} of {case!r}") from error
        assert rows == 2 * BATCHES * ROWS
