"""A replay that crashes before or after any of its writes, and is run again: nothing is lost, nothing arrives twice."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from sidecar.state.replays import Replays
from sidecar.state.store import Store
from tests.support.letters import ENDED, Crash, Crasher, configure, letter, run
from tests.support.receiver import Receiver

WRITES = ("fix", "halve", "end_part")
LETTERS = 12
POISON = 5


def crashed(folder: Path, crasher: Crasher) -> bool:
    """Run a replay to its end or to the crash; whether it crashed."""
    with pytest.MonkeyPatch.context() as patch:
        for name in WRITES:
            patch.setattr(Replays, name, crasher.around(getattr(Replays, name)))
        try:
            assert run(folder, "replay", "--yes").exit_code in ENDED
        except Crash:
            return True
    return False


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("status", [204, 207, 400, 413])
def test_a_crash_at_any_write_loses_nothing_and_repeats_nothing(tmp_path: Path, status: int, after: bool) -> None:
    """Each row arrives once, and what is refused is still a dead letter, once."""
    at = 0
    goes_on = True
    while goes_on:
        at += 1
        folder = tmp_path / str(at)
        folder.mkdir()
        with Receiver() as receiver, closing(Store(folder / "state")) as store:
            configure(folder, receiver.url, batch={"max_messages": 8})
            store.letters.put([letter(offset) for offset in range(LETTERS)])
            if status != 204:
                receiver.fail("refuse", status=status, marker=f"value {POISON}")
            goes_on = crashed(folder, Crasher(at, after=after))
            if goes_on:
                assert run(folder, "replay", "--yes").exit_code in ENDED
            poison = [] if status == 204 else [POISON]
            assert Counter(row[2] for row in receiver.rows()) == Counter(set(range(LETTERS)) - set(poison)), at
            assert [each.offset for each in store.letters.load(100)] == poison, at
    assert at > 3
