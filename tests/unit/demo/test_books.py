"""The demo's books find every kind of mistake; they balance only when each message has its proper end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from sidecar.demo.books import (
    PARTITIONS,
    Arrival,
    DeliveredRow,
    DemoBooks,
    Lateness,
    Made,
    Position,
    count,
    lateness,
    stream,
)
from sidecar.demo.http_act import HttpOutcome, receiver_file
from sidecar.demo.show import Show
from sidecar.demo.spark_act import SparkOutcome, as_table
from tests.support.jars import ROOT

TOTAL = 2_000


def placed() -> dict[Position, Made]:
    """The stream's messages by partition and offset."""
    found: dict[Position, Made] = {}
    following = [0] * PARTITIONS
    for made in stream(TOTAL):
        found[made.partition, following[made.partition]] = made
        following[made.partition] += 1
    return found


class Run:
    """What a run without a mistake leaves, to be spoilt."""

    def __init__(self) -> None:
        self.made = placed()
        self.consumed = TOTAL
        self.rows = [DeliveredRow(place, made.value) for place, made in self.made.items() if made.kind == "wanted"]
        self.letters = [place for place, made in self.made.items() if made.kind == "poison"]

    def count(self) -> DemoBooks:
        """Its books."""
        return count(stream(TOTAL), self.consumed, self.rows, self.letters)

    def first(self, kind: str) -> DeliveredRow:
        """The row that the first message of this kind would be."""
        return next(DeliveredRow(place, made.value) for place, made in self.made.items() if made.kind == kind)


def test_a_run_without_a_mistake_balances() -> None:
    """Each message has one end, and all kinds occur."""
    books = Run().count()
    assert books.balanced
    assert books.produced == TOTAL
    assert min(books.delivered, books.duplicate, books.filtered, books.dead_lettered) > 0
    assert 0.04 < books.duplicate / TOTAL < 0.06


def test_a_table_takes_poison() -> None:
    """Where nothing is refused poison is a row like others, and none may be missing."""
    run = Run()
    poison = [DeliveredRow(place, made.value) for place, made in run.made.items() if made.kind == "poison"]
    assert count(as_table(stream(TOTAL)), TOTAL, run.rows + poison, []).balanced
    assert count(as_table(stream(TOTAL)), TOTAL, run.rows + poison[1:], []).lost == 1


def lose_a_row(run: Run) -> None:
    """The receiver lacks one."""
    run.rows.pop()


def deliver_twice(run: Run) -> None:
    """The receiver has one twice."""
    run.rows.append(run.rows[0])


def deliver_a_twin(run: Run) -> None:
    """A repeated id came through."""
    run.rows.append(run.first("repeated"))


def deliver_the_unwanted(run: Run) -> None:
    """A tag that is not subscribed came through."""
    run.rows.append(run.first("unwanted"))


def deliver_poison(run: Run) -> None:
    """A refused message is at the receiver all the same."""
    run.rows.append(run.first("poison"))


def change_a_value(run: Run) -> None:
    """A row has another value than was sent."""
    run.rows[0] = DeliveredRow(run.rows[0].place, "{}")


def invent_a_row(run: Run) -> None:
    """A row of a place where nothing was sent."""
    run.rows.append(DeliveredRow((0, TOTAL), "{}"))


def forget_a_letter(run: Run) -> None:
    """A poison message is nowhere."""
    run.letters.pop()


def give_up_the_wanted(run: Run) -> None:
    """A delivered message is in the dead letters too."""
    run.letters.append(run.rows[0].place)


def give_up_in_place_of_delivery(run: Run) -> None:
    """A sound message is in the dead letters instead."""
    run.letters.append(run.rows.pop().place)


def consume_too_little(run: Run) -> None:
    """The committed offsets do not reach the end."""
    run.consumed -= 1


@pytest.mark.parametrize(
    ("mistake", "number"),
    [
        (lose_a_row, "lost"),
        (deliver_twice, "twice"),
        (deliver_a_twin, "twice"),
        (deliver_the_unwanted, "wrong"),
        (deliver_poison, "wrong"),
        (change_a_value, "wrong"),
        (invent_a_row, "wrong"),
        (forget_a_letter, "lost"),
        (give_up_the_wanted, "wrong"),
        (give_up_in_place_of_delivery, "lost"),
        (consume_too_little, "consumed"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_every_mistake_is_found(mistake: Callable[[Run], None], number: str) -> None:
    """One mistake anywhere, and the books do not balance; the number that tells of it changes."""
    run = Run()
    mistake(run)
    books = run.count()
    assert not books.balanced
    assert getattr(books, number) != getattr(Run().count(), number)


LATE = Lateness(0, 149.0, 12_206.0, 8_639)


def test_lateness_is_that_of_messages_for_which_a_daemon_was_there() -> None:
    """Others waited for the next daemon; early ones count whenever they were due."""
    before, after = [Arrival(i, i + 10) for i in range(100)], [Arrival(1_000 + i, 1_020 + i) for i in range(100)]
    waited = [Arrival(190, 910), Arrival(500, 920)]
    early = [Arrival(950, 940)]
    assert lateness([*before, *waited, *after, *early], 200, 900) == Lateness(1, 10, 20, 2)


@pytest.mark.parametrize("width", [30, 44, 80, 200])
def test_the_screen_fits(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The books stay within the terminal's width, and an unbalanced end shows the daemon's log."""
    run = Run()
    run.rows.pop()
    Show(Console(width=width)).http_outcome(HttpOutcome(run.count(), 174, 17.1, 12.2, 43_615, "  the [log]", LATE))
    Show(Console(width=width)).spark_outcome(SparkOutcome(run.count(), 1_480, 1_479, 1_479, "  the [log]"))
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= width
    assert " ".join(said.split()).count("DO NOT BALANCE") == 2
    assert said.count("the [log]") == 2


def test_the_receiver_is_the_one_of_the_examples() -> None:
    """In a checkout the demo runs `examples/receiver.py`, and only a built wheel has a copy."""
    assert receiver_file() == ROOT / "examples" / "receiver.py"
    assert not (Path(receiver_file()).parents[1] / "sidecar" / "demo" / "receiver.py").exists()
