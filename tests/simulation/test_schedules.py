"""Every promise, checked over seeded schedules of crashes, takeovers, lost answers, refusals and compaction."""

from __future__ import annotations

import pytest

from tests.simulation.run import main, run
from tests.simulation.world import run_schedule

SCHEDULES, STEPS, JOBS = 500, 200, 2
LEDGER_SCHEDULES = RELOAD_SCHEDULES = 250
HERE = 25
"""Schedules in this process, where coverage makes them slow."""

REGRESSIONS = {
    116: "a commit in the same step settled what the client had skipped",
    489: "a part whose taken rows were compacted away was sent again for ever",
    4512: "a state that was read back was overtaken by an outstanding commit",
    6957: "a piece had another name when one of its rows was compacted away",
    7268: "a message that is gone arrives late, out of order",
    25877: "many groups and a planned stop",
    76540: "a partition that was given up already was fenced for ever",
    2972: "ids that the journal kept with the next generation made that one rotate before its time",
    8969: "what a state rested on had no fingerprint, as the folder knew one further on",
    20633: "a log was refilled beyond all that was relied on: its names go on, and the model took them for others",
    126201: "a dead letter of a zombie was taken for one of the log as it was refilled since, by the model",
    75865: "a request arrived when the log had been refilled behind it, and the model forgot what it stored",
    381165: "a window that was not trusted was trusted by the next life, which found newer commits",
    546829: "what another member had read lay between two fingerprints, and the later one differed",
    662681: "a part of a shared intent spanned what the window knew of another group, which a crash sent with it",
    983649: "a request of the log as it was arrived behind one of the log as it was refilled, by the model",
    512447: "a zombie sent less of a part than was refused, since some was compacted away: the model's limit",
    445417: "a loss of power took what said that a commit was an ancestor: the model's limit",
    12853: "a part spanned what the window knew, and went out with it after a crash",
}
OLDER = {116, 489, 4512, 6957, 7268, 25877}
LEDGER_REGRESSIONS = {
    42155: "a twin took what was refused among others, whose name was sent again after a crash",
    9835: "a zombie claimed again what a twin had taken, under a name that its successor had sent without it",
    3004: "a piece was given up since the rest of its part had failed for so long, which the model did not know",
    107307: "the receiver knew under a name what a twin had taken since",
}


@pytest.mark.parametrize("seed", REGRESSIONS, ids=str)
def test_seed_that_failed_once(seed: int) -> None:
    """A schedule that found a mistake once passes."""
    assert run_schedule(seed, STEPS, newer=seed not in OLDER) >= STEPS


@pytest.mark.parametrize("seed", LEDGER_REGRESSIONS, ids=str)
def test_seed_with_a_ledger_that_failed_once(seed: int) -> None:
    """The same, of those with a ledger."""
    assert run_schedule(seed, STEPS, ledger=True) >= STEPS


def test_some_schedules_in_this_process() -> None:
    """Schedules hold every promise; run here, where coverage counts them."""
    outcome = run(HERE, seed=1_000_000, steps=STEPS)
    assert not outcome.failures, outcome.failures[0]
    assert outcome.schedules == HERE


def test_some_schedules_with_a_ledger_in_this_process() -> None:
    """The same, where a ledger that all processes share tells duplicates over all partitions."""
    outcome = run(HERE, seed=1_000_000, steps=STEPS, ledger=True)
    assert not outcome.failures, outcome.failures[0]
    assert outcome.schedules == HERE


@pytest.mark.slow
def test_hundreds_of_schedules_with_a_ledger() -> None:
    """With a ledger that is away at times one of each message's copies arrives, wherever they were produced."""
    outcome = run(LEDGER_SCHEDULES, seed=0, steps=STEPS, ledger=True)
    assert not outcome.failures, outcome.failures[0]
    assert outcome.steps >= LEDGER_SCHEDULES * STEPS


def test_some_schedules_with_reloads_in_this_process() -> None:
    """The same, while the configuration is changed and read again."""
    outcome = run(HERE, seed=1_000_000, kind="reloads")
    assert not outcome.failures, outcome.failures[0]
    assert outcome.schedules == HERE


@pytest.mark.parametrize("kind", ["lane", "lane-reloads"])
def test_some_schedules_with_runs_that_sort_themselves(kind: str) -> None:
    """The same, where the core decides only about messages that it has seen before."""
    outcome = run(150, seed=0, jobs=JOBS, kind=kind)
    assert not outcome.failures, outcome.failures[0]
    assert outcome.schedules == 150


@pytest.mark.slow
def test_hundreds_of_schedules_with_reloads() -> None:
    """Messages that go to other groups under changed rules are not lost, nor sent twice but where a crash allows."""
    outcome = run(RELOAD_SCHEDULES, seed=0, kind="reloads")
    assert not outcome.failures, outcome.failures[0]
    assert outcome.schedules == RELOAD_SCHEDULES


@pytest.mark.slow
def test_hundreds_of_schedules() -> None:
    """In 500 schedules nothing is lost, sent twice or stuck, and every other promise holds."""
    outcome = run(SCHEDULES, seed=0, steps=STEPS)
    assert not outcome.failures, outcome.failures[0]
    assert outcome.schedules == SCHEDULES
    assert outcome.steps >= SCHEDULES * STEPS


def test_a_seed_is_the_same_schedule_again(capsys: pytest.CaptureFixture[str]) -> None:
    """The command repeats a seed exactly, and prints one line."""
    assert main(["--schedules", "3", "--seed", "7"]) == 0
    first = capsys.readouterr().out.split(" (")[0]
    assert main(["--schedules", "3", "--seed", "7"]) == 0
    assert capsys.readouterr().out.split(" (")[0] == first
    assert "3 schedules" in first
    assert "lost 0, twice 0, stuck 0" in first
