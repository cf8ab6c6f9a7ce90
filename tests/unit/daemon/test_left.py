"""When delayed messages that nobody delivers are looked for, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from sidecar.config.source.section import SourceSection
from sidecar.daemon.delays.left import LOOK_AFTER_S, LOOK_AGAIN_S, LeftBehind, LeftMessages, Reads, summed
from sidecar.errors import UnavailableError

GONE = LeftMessages("gone", 3, "the topic does not exist")


KAFKA = {"kafka": {"bootstrap_servers": "h:1", "group_id": "g", "topics": ["a", "^b"]}}
ROCKETMQ = {"rocketmq": {"name_servers": "h:1", "group": "g", "topics": ["a"]}}


class World:
    """Looks at what a test says, on a thread that the test is."""

    def __init__(self) -> None:
        self.now_s, self.looks = 0.0, 0
        self.answer: list[LeftMessages] | UnavailableError = [GONE]
        self.jobs: list[Callable[[], None]] = []
        self.left = LeftBehind(self.look, self.jobs.append, lambda: self.now_s)

    def look(self) -> list[LeftMessages]:
        """What is found."""
        self.looks += 1
        if isinstance(self.answer, UnavailableError):
            raise self.answer
        return self.answer

    def pass_time(self, seconds: float) -> int:
        """Let time pass; return the number of looks so far."""
        self.now_s += seconds
        self.left.tend()
        while self.jobs:
            self.jobs.pop()()
        return self.looks


def test_a_look_follows_partitions_that_came_or_went() -> None:
    """Once they have done so, and every 5 minutes; never before the first."""
    world = World()
    assert world.pass_time(LOOK_AGAIN_S) == 0
    world.left.look_soon()
    assert world.pass_time(LOOK_AFTER_S - 1) == 0
    world.left.look_soon()
    assert [world.pass_time(1), world.pass_time(LOOK_AFTER_S - 1)] == [0, 1]
    assert world.left.found == (GONE,)
    assert [world.pass_time(LOOK_AGAIN_S - 1), world.pass_time(1)] == [1, 2]


def test_one_look_follows_the_other() -> None:
    """None begins while one is under way."""
    world = World()
    world.left.look_soon()
    world.now_s = LOOK_AFTER_S
    world.left.tend()
    world.left.look_soon()
    world.now_s += LOOK_AGAIN_S
    world.left.tend()
    assert len(world.jobs) == 1


def test_what_is_left_is_logged_once() -> None:
    """Again with another number; a look that fails is logged, and what was found stays."""
    world = World()
    with capture_logs() as logs:
        for answer in ([GONE], [GONE], UnavailableError("no answer"), [GONE._replace(held=4)], []):
            world.answer = answer
            world.left.look_soon()
            world.pass_time(LOOK_AFTER_S)
            if answer:
                assert world.left.found
    assert [(each["event"], each.get("count")) for each in logs] == [
        ("delay.left_behind", 3),
        ("delay.left_unknown", None),
        ("delay.left_behind", 4),
    ]
    assert world.left.found == ()


@pytest.mark.parametrize(
    ("source", "topic", "known", "why"),
    [
        (KAFKA, "a", None, ""),
        (KAFKA, "bc", ["bc"], ""),
        (
            KAFKA,
            "bc",
            ["a"],
            "does not exist",
        ),
        (KAFKA, "c", ["c"], "kafka.topics"),
        (ROCKETMQ, "a", None, ""),
        (ROCKETMQ, "%RETRY%g", None, ""),
        (ROCKETMQ, "b", None, "rocketmq.topics"),
    ],
)
def test_a_topic_is_read_or_the_reason_is_told(
    source: dict[str, object], topic: str, known: list[str] | None, why: str
) -> None:
    """It is not named, or does not exist; RocketMQ's retry topic is read with any other."""
    reads = Reads(SourceSection.model_validate(source))
    reads.known = known
    assert why in reads.why_not(topic)
    assert bool(why) == bool(reads.why_not(topic))


def test_partitions_of_a_topic_are_summed() -> None:
    """A topic of which nothing is held is not told."""
    assert summed([("a", 1), ("b", 0), ("a", 2)], str.upper) == [LeftMessages("a", 3, "A")]
    assert str(LeftMessages("a", 1_200, "why")) == "1,200 delayed messages of a are held and not delivered: why"
