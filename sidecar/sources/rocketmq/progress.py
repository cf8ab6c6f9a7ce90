"""Progress of a queue, as text for the state file: the core's state, and the marks that show if it is valid. No broker.

RocketMQ's commits have no metadata, so unlike with Kafka the state file is the authority as long as the broker's own
committed offset agrees with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple, Self

from sidecar.core.json_text import loads
from sidecar.sources.rocketmq.wire.frames import Code, Frame
from sidecar.sources.rocketmq.wire.messages import StoredMessage, as_stored
from sidecar.sources.rocketmq.wire.requests import read_offset
from sidecar.state.offset_map import Decoded, Identity, decode

MARKS_MAX = 16
MARKS_RATIO = 2
"""Each mark is at most this many times as far behind the newest as the mark before it, as far as possible."""


class QueueMark(NamedTuple):
    """A message that was read: if its offset has another message, or none, the queue was replaced."""

    offset: int
    position: int
    """Commit-log offset; not enough alone, because a broker that lost its store starts at 0 again.

    Messages of one batch that is stored as one message share it. Compaction changes it.
    """
    stored_ms: int
    """Time at the broker's clock; compared only with the broker's answers, never with a clock."""

    def stands_in(self, messages: Iterable[StoredMessage]) -> bool:
        """Whether this message is among those of a broker's answer."""
        return any(
            message.stored_ms == self.stored_ms and (message.position == self.position or message.offset == self.offset)
            for message in messages
        )

    def found_in(self, messages: Sequence[StoredMessage]) -> bool | None:
        """Whether the answer to a request for this message has it, and not another one at its offset.

        None if compaction removed it: the offsets of a queue have no other gaps, so this does not prove another queue.
        """
        if messages and messages[0].offset > self.offset:
            return None
        return self.stands_in(messages)

    def stands(self, answer: Frame) -> bool | None:
        """Whether an answer from the mark's offset on has this message, or it is gone; None if that is unknown."""
        if answer.code == Code.SUCCESS:
            return self.found_in(as_stored(answer.body)) is not False
        if answer.code not in (Code.PULL_OFFSET_MOVED, Code.PULL_NOT_FOUND, Code.PULL_RETRY_IMMEDIATELY):
            return None
        if self.offset < read_offset(answer, "minOffset"):
            return True
        return False if self.offset >= read_offset(answer, "maxOffset") else None


def with_newest(marks: Sequence[QueueMark], newest: QueueMark) -> tuple[QueueMark, ...]:
    """Marks, the newest first, at growing distances: if a log lost its end, a mark shortly before is still there."""
    older = [mark for mark in marks if mark.offset < newest.offset]
    kept = [newest]
    for mark, next_one in zip_longest(older, older[1:]):
        reach = MARKS_RATIO * (newest.offset - kept[-1].offset)
        if next_one is None or newest.offset - next_one.offset > reach:
            kept.append(mark)
    return tuple(kept[:MARKS_MAX])


class Told(NamedTuple):
    """The last commit that a broker accepted: while its process runs, an older one was set by an operator."""

    boot: int = 0
    """0 if unknown."""
    offset: int = -1


class QueueProgress(NamedTuple):
    """The stored progress of a queue.

    Args:
        text: The core's state, as in the metadata of a commit.
        floor: An offset that the broker certainly has on disk: it writes committed offsets every 5 s.
        marks: Messages that were read, the newest first; see `with_newest`.
        told: The newest offset that the broker accepted, and the run of its process.
    """

    text: str
    incarnation: int
    watermark: int
    floor: int
    marks: tuple[QueueMark, ...] = ()
    told: Told = Told()

    def dump(self) -> str:
        return json.dumps(self)

    @classmethod
    def load(cls, text: str) -> Self | None:
        """Parse progress from text; None if the text is invalid."""
        try:
            state, incarnation, watermark, floor, marks, told = loads(text)
            kept = tuple(QueueMark(*map(int, mark)) for mark in marks)
            return cls(str(state), int(incarnation), int(watermark), int(floor), kept, Told(*map(int, told)))
        except (ValueError, TypeError, OverflowError):  # the last for a number that is infinite
            return None

    @property
    def mark(self) -> QueueMark | None:
        return self.marks[0] if self.marks else None

    def was_set_back(self, committed: int, boot: int) -> bool:
        """Whether a committed offset is older than one that this run of the broker, or its disk, had."""
        is_same = bool(boot) and boot == self.told.boot
        return committed < (self.told.offset if is_same else self.floor)

    def reset_to(self, offset: int) -> Self:
        """The progress after a reset by command: the next start reads from this committed offset, whatever it knows."""
        return self._replace(told=Told(), floor=offset + 1)

    def decoded(self, known: Identity, rules: bytes) -> Decoded:
        """The core's state, if it is of this group and these rules."""
        return decode(self.text, self.watermark, known, rules)
