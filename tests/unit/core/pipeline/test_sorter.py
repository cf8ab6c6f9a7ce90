"""Runs that sort themselves: as the core would have sorted them, and only where every message is new."""

from __future__ import annotations

import random

import pytest

from sidecar.core.partition_state import LaneState, PartitionState
from sidecar.core.records import Run
from tests.simulation.plan import Row
from tests.simulation.sorter import Sorter
from tests.support.shell import TP, AllGroups, Shell, rows

RULES = AllGroups()


def read(shell: Shell, messages: list[Row]) -> Sorter:
    """Hand over a run that can sort itself."""
    sorter = Sorter(messages)
    shell.pipeline.read(Run(TP, messages, messages[0][0], messages[-1][0], sorter), shell.now_ms)
    return sorter


@pytest.mark.parametrize("ids", [False, True], ids=["positions", "ids"])
def test_it_is_as_the_core_sorts_it(ids: bool) -> None:
    """Random runs with gaps, unwanted, unframeable and repeated messages: the same parts, books and dead letters."""
    chance, offset = random.Random(3), 0
    ours, theirs = Shell(ids=ids, sorting=RULES), Shell(ids=ids)
    for _ in range(60):
        messages: list[Row] = []
        for _ in range(chance.randrange(1, 40)):
            offset += chance.choice([1, 1, 1, 2, 7])
            value = None if chance.random() < 0.05 else b"%d" % offset
            messages.append((offset, chance.choice([-1, 0, 1, 2]), chance.choice([None, *range(300)]), value))
        assert read(ours, [*messages]).calls == 1
        theirs.read(*messages)
        for shell in (ours, theirs):
            shell.run(4)
    for shell in (ours, theirs):
        shell.run(100)
        assert shell.pipeline.idle
    assert sorted(ours.sent) == sorted(theirs.sent)
    assert ours.pipeline.books[TP] == theirs.pipeline.books[TP]
    assert sorted(letter.offset for letter in ours.letters) == sorted(letter.offset for letter in theirs.letters)


def test_messages_that_were_read_before_are_sorted_by_the_core() -> None:
    """A run that begins below the position."""
    shell = Shell(sorting=RULES)
    assert read(shell, rows(0, 9)).calls == 1
    assert read(shell, rows(5, 12)).calls == 0
    shell.run()
    books = shell.pipeline.books[TP]
    assert (books.delivered, books.duplicate) == (13, 5)


def test_a_replay_is_sorted_by_the_core() -> None:
    """What an earlier owner settled or may have sent is no new part."""
    shell = Shell(sorting=RULES, start=PartitionState(0, 10, {0: LaneState(0, ())}))
    assert read(shell, rows(0, 9)).calls == 0
    assert read(shell, rows(10, 12)).calls == 1
    shell.run()
    books = shell.pipeline.books[TP]
    assert (books.duplicate, books.delivered) == (10, 3)


def test_whoever_looks_sees_the_messages() -> None:
    """With a tap, a run is not sorted out of sight."""
    shell, seen = Shell(sorting=RULES), list[int]()
    shell.pipeline.intake.tap = lambda reading, partition, messages, found: seen.append(len(messages))
    assert read(shell, rows(0, 9)).calls == 0
    assert seen == [10]


def test_without_rules_the_core_sorts() -> None:
    """Rules that the sorter cannot keep to are those of the core."""
    assert read(Shell(), rows(0, 9)).calls == 0
