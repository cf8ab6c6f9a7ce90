"""How far a queue is, as text for the state file: the core's state, and what tells whether it still applies. No broker.

RocketMQ's commits have no metadata, so unlike with Kafka the state file is the authority as long as the broker's own
committed offset agrees with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple, Self

from sidecar.sources.rocketmq.wire.codes import Code
from sidecar.sources.rocketmq.wire.frames import Frame
from sidecar.sources.rocketmq.wire.messages import StoredMessage, as_stored
from sidecar.sources.rocketmq.wire.requests import read_offset
from sidecar.state.offset_map import Decoded, Identity, decode

MARKS_MAX = 16
MARKS_RATIO = 2
"""Each mark stands at most so many times as far behind the newest as the one before it, as far as they reach."""


class Mark(NamedTuple):
    """A message that was read: when another one stands at its offset, or none, the queue is not what it was."""

    offset: int
    position: int
    """Commit-log offset; alone it would not do, since a broker that lost its store begins at 0 again."""
    stored_ms: int
    """By the broker's clock; compared with what the broker tells, never with a clock."""

    def stands_in(self, messages: Iterable[StoredMessage]) -> bool:
        """Whether this message is among those that a broker has at the mark's offset."""
        return any((one.position, one.stored_ms) == (self.position, self.stored_ms) for one in messages)

    def stands(self, answer: Frame) -> bool | None:
        """Whether an answer from the mark's offset on has it, or it is gone with its time; None if that is not told."""
        if answer.code == Code.SUCCESS:
            return self.stands_in(as_stored(answer.body))
        if answer.code not in (Code.PULL_OFFSET_MOVED, Code.PULL_NOT_FOUND, Code.PULL_RETRY_IMMEDIATELY):
            return None
        if self.offset < read_offset(answer, "minOffset"):
            return True
        return False if self.offset >= read_offset(answer, "maxOffset") else None


def with_newest(marks: Sequence[Mark], newest: Mark) -> tuple[Mark, ...]:
    """Marks, the newest first, at growing distances: where a log lost its end, one not far before still stands."""
    older = [mark for mark in marks if mark.offset < newest.offset]
    kept = [newest]
    for mark, next_one in zip_longest(older, older[1:]):
        reach = MARKS_RATIO * (newest.offset - kept[-1].offset)
        if next_one is None or newest.offset - next_one.offset > reach:
            kept.append(mark)
    return tuple(kept[:MARKS_MAX])


class Told(NamedTuple):
    """A commit that a broker has taken: for as long as its process runs it has no older one but by somebody's hand."""

    boot: int = 0
    """0 where it is not known."""
    offset: int = -1


class Progress(NamedTuple):
    """What is kept of a queue.

    Args:
        text: The core's state, as it would stand in a commit's metadata.
        incarnation: Of that state.
        watermark: Of that state.
        floor: What the broker certainly has on its disk: it writes committed offsets every 5 s.
        marks: Messages that were read, the newest first; see `with_newest`.
        told: The newest offset that the broker has taken, and what stands for that run of its process.
    """

    text: str
    incarnation: int
    watermark: int
    floor: int
    marks: tuple[Mark, ...] = ()
    told: Told = Told()

    def dump(self) -> str:
        """As text."""
        return json.dumps(self)

    @classmethod
    def load(cls, text: str) -> Self | None:
        """From text; None where it is no such text."""
        try:
            state, incarnation, watermark, floor, marks, *rest = json.loads(text)
            if marks and isinstance(marks[0], int):  # one alone, as it was kept at first
                marks = [marks]
            kept = tuple(Mark(*map(int, mark)) for mark in marks or ())
            told = Told(*map(int, rest[0])) if rest else Told()
            return cls(str(state), int(incarnation), int(watermark), int(floor), kept, told)
        except (ValueError, TypeError):
            return None

    @property
    def mark(self) -> Mark | None:
        """The newest message that was read, None before the first."""
        return self.marks[0] if self.marks else None

    def with_mark(self, newest: Mark) -> Self:
        """With one more message that was read."""
        return self._replace(marks=with_newest(self.marks, newest))

    def was_set_back(self, committed: int, boot: int) -> bool:
        """Whether a committed offset is older than what this run of the broker has, or has kept in any case."""
        is_same = bool(boot) and boot == self.told.boot
        return committed < (self.told.offset if is_same else self.floor)

    def decoded(self, known: Identity, rules: bytes) -> Decoded:
        """The core's state, if it is of this group and these rules."""
        return decode(self.text, self.watermark, known, rules)
