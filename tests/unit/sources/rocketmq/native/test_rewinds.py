"""Where a queue that was replaced is read on: behind what was read and is there still, or at its first message."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.core.records import TopicPartition
from sidecar.sources.rocketmq.native.cluster import Rewinds
from sidecar.sources.rocketmq.progress import QueueMark
from sidecar.sources.rocketmq.wire.frames import Code, Frame, RequestCode
from sidecar.sources.rocketmq.wire.network import Ask
from sidecar.sources.rocketmq.wire.requests import Asks

TP = TopicPartition("orders", 0, "b")


class Answers:
    """A broker whose queue begins at an offset, and has these messages of before."""

    def __init__(self, low: int, *stand: int, accepts: bool = True) -> None:
        self.low, self.stand, self.accepts = low, stand, accepts
        self.commits: list[int] = []

    def ask(self, asks: Sequence[tuple[TopicPartition, Ask]]) -> list[Frame | None]:
        return [self._answer(ask) for _, ask in asks]

    def _answer(self, ask: Ask) -> Frame:
        if ask.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            self.commits.append(int(ask.fields["commitOffset"]))
            return Frame(Code.SUCCESS if self.accepts else 1, 1, 1, "", {}, b"")
        return Frame(Code.SUCCESS, 1, 1, "", {"offset": str(self.low), "place": ask.fields.get("queueOffset", "")}, b"")


def rewound(answers: Answers, *read: int) -> dict[TopicPartition, tuple[int, bool]]:
    """What is committed, if these messages were read, the newest first."""

    class Stands(QueueMark):
        def stands(self, _: Any) -> bool:
            return self.offset in answers.stand

    marks: Any = SimpleNamespace(
        by_queue=lambda: {TP: [Stands(offset, 0, 0) for offset in read]},
        of=lambda tp, mark: Asks("me", "g").low(tp), forget_partitions=lambda _: None,
    )  # fmt: skip
    brokers: Any = answers
    return Rewinds(Asks("me", "g"), brokers, marks).commit()


@pytest.mark.parametrize(
    ("low", "stand", "start"),
    [
        (0, (), (0, False)),  # a new queue of this name
        (3, (), (3, False)),
        (0, (7,), (8, True)),  # the queue lost its end
        (9, (7,), (9, True)),
    ],
)
def test_a_replaced_queue_begins_behind_what_was_read_of_it(
    low: int, stand: tuple[int, ...], start: tuple[int, bool]
) -> None:
    """And never before its first message."""
    answers = Answers(low, *stand)
    assert rewound(answers, 12, 7) == {TP: start}
    assert answers.commits == [start[0]]


def test_a_queue_whose_newest_message_stands_is_not_replaced() -> None:
    """Nothing is committed over its own commit."""
    answers = Answers(0, 12, 7)
    assert (rewound(answers, 12, 7), answers.commits) == ({}, [])


def test_a_start_that_the_broker_refuses_is_found_again() -> None:
    """It does not count as committed."""
    assert rewound(Answers(0, accepts=False), 12) == {}
