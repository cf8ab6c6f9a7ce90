"""Start offset of a queue, from the broker's commit, the state file and the messages in the queue.

The state file is exact while no other program has moved the committed offset and the queue is the same: then the newest
message read is still at its offset.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from sidecar.core.partition_state import PartitionState
from sidecar.core.records import TopicPartition
from sidecar.sources.base import Assignment, Tell
from sidecar.sources.rocketmq.progress import QueueMark, QueueProgress
from sidecar.sources.rocketmq.remoting.routes import Brokers
from sidecar.sources.rocketmq.wire.frames import Code, Frame, ProtocolError
from sidecar.sources.rocketmq.wire.messages import as_stored
from sidecar.sources.rocketmq.wire.network import NoAnswerError, RefusedError, refusal
from sidecar.sources.rocketmq.wire.requests import Asks, ask_start, read_offset
from sidecar.state.offset_map import Decoded, Identity, Origin

MESSAGE_BYTES = 4 << 20
"""Size of the largest message by a broker's default: an answer with one message may take as much."""


Looked: TypeAlias = tuple[Frame | None, bool | None]
"""The answer about a mark's offset, without its large body; and whether it has the mark's message.

None stands for no answer, and for a message that compaction removed.
"""


_UNKNOWN = (NoAnswerError, RefusedError, ProtocolError)
"""Raised if the brokers' answers are inconclusive."""


class ResetError(Exception):
    """The broker reported a reset instead, which it does only once."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the offset was set to {offset} at this moment")
        self.offset = offset


class Marked:
    """Requests marked messages, at most `room_bytes` at the same time; one is always allowed."""

    def __init__(self, brokers: Brokers, asks: Asks, room_bytes: int) -> None:
        self._brokers = brokers
        self._asks = asks
        self._at_once = max(1, room_bytes // MESSAGE_BYTES)

    def look(self, marks: Sequence[tuple[TopicPartition, QueueMark]]) -> Iterator[Looked]:
        """Look at these marks' offsets, a few at a time: only so many messages fit into the memory budget."""
        for at in range(0, len(marks), self._at_once):
            some = marks[at : at + self._at_once]
            asks = [(tp, self._asks.one(tp, mark.offset)) for tp, mark in some]
            for (_, mark), answer in zip(some, self._brokers.ask(asks), strict=True):
                is_there = answer is not None and answer.code == Code.SUCCESS
                stands = mark.found_in(as_stored(answer.body)) if answer is not None and is_there else False
                yield answer and answer._replace(body=b""), stands

    def newest_standing(self, tp: TopicPartition, marks: Sequence[QueueMark]) -> QueueMark | None:
        """The newest of these marks that is still there. No clock is used: a corrected clock would skip messages.

        If none is, the newest that compaction may have removed: no older one has another message.
        """
        removed = None
        for mark, (answer, stands) in zip(marks, self.look([(tp, mark) for mark in marks]), strict=True):
            if answer is None:
                raise NoAnswerError(_SILENT)
            if stands:
                return mark
            removed = (removed or mark) if stands is None else None
        return removed

    def is_still_same(self, tp: TopicPartition, progress: QueueProgress, low: int, high: int) -> bool:
        """Whether a queue whose newest mark was removed by compaction has no other message at an older one."""
        older = progress.marks[1:]
        found = zip(older, self.look([(tp, mark) for mark in older]), strict=True)
        stands = (is_same(mark, looked, low, high) for mark, looked in found)
        return next((one for one in stands if one is not None), True)


def is_same(mark: QueueMark, looked: Looked, low: int, high: int) -> bool | None:
    """Whether the mark's message is still there, or has expired; None if compaction removed it."""
    message, stands = looked
    if message is None:
        raise NoAnswerError(_SILENT)
    if message.code == Code.PULL_OFFSET_MOVED:  # use its own ends: the other answers may already count more messages
        ends = read_offset(message, "minOffset"), read_offset(message, "maxOffset")
        if ends[0] <= mark.offset <= ends[1]:
            raise ResetError(read_offset(message, "nextBeginOffset"))
    if mark.offset < low:
        return True
    if message.code == Code.SUCCESS:
        return stands
    if mark.offset >= high:
        return False
    raise refusal(message, "the broker")


DOUBT_S = 300.0
"""How long a possibly ignored reset of an operator is reported as a problem."""


class QueueStarts(NamedTuple):
    """Start offsets of queues, and for the others the reason why they are unknown."""

    assignments: list[Assignment]
    failed: dict[TopicPartition, str]
    marks: dict[TopicPartition, tuple[QueueMark, ...]]
    """The marks of each queue that are still there."""
    committed: dict[TopicPartition, int]
    """The brokers' committed offsets."""
    lows: dict[TopicPartition, int]
    """The first offsets that can be read."""


class _Facts(NamedTuple):
    """The broker's answers about a queue."""

    committed: int | None
    boot: int
    """Start of the broker's process, in milliseconds; 0 if it is not reported."""
    low: int
    high: int
    is_same: bool
    """Whether the newest message read that compaction left is still at its offset, or has expired."""


class QueueStartOffsets:
    """Determines start offsets.

    Args:
        start: Start of a new group: ``earliest``, ``latest``, or milliseconds since the epoch.
        room_bytes: See `Marked`.
    """

    def __init__(
        self, brokers: Brokers, asks: Asks, cluster_id: str, start: str | int, rules: bytes, tell: Tell, room_bytes: int
    ) -> None:
        self._brokers = brokers
        self._asks = asks
        self._cluster_id = cluster_id
        self._start = start
        self._rules = rules
        self._tell = tell
        self._marked = Marked(brokers, asks, room_bytes)
        self._beginnings: dict[TopicPartition, int] = {}
        self._doubts: dict[TopicPartition, tuple[float, int]] = {}
        """Time until which it is a problem, and the offset, due to a crash or to an ignored reset of an operator."""
        self.resets: dict[TopicPartition, int] = {}
        """Offsets that an operator set, as reported by the broker, for queues that are not taken yet."""

    def begin_starts(self, tps: Sequence[TopicPartition], known: Mapping[TopicPartition, QueueProgress]) -> set[str]:
        """Decide at startup where a new group begins in these queues.

        A group is new if it has no commit and no state. Queues that are added later are read from their first message.

        Returns:
            Brokers that do not answer; nothing is decided then, because any of them may know the group.
        """
        if self._start == "earliest" or {tp.topic for tp in tps} & {tp.topic for tp in known}:
            return set()
        tps = [tp for tp in tps if self._brokers.link_of(tp.broker) is not None]  # those without a master come later
        committed = self._brokers.ask([(tp, self._asks.committed(tp)) for tp in tps])
        if any(frame is not None and frame.code != Code.QUERY_NOT_FOUND for frame in committed):
            return set()
        if silent := {tp.broker for tp, frame in zip(tps, committed, strict=True) if frame is None}:
            return silent
        answers = self._brokers.ask([(tp, ask_start(self._asks, tp, self._start)) for tp in tps])
        for tp, frame in zip(tps, answers, strict=True):
            if frame is not None and frame.code == Code.SUCCESS:
                self._beginnings[tp] = read_offset(frame)
        return {tp.broker for tp, frame in zip(tps, answers, strict=True) if frame is None}

    def find(
        self,
        tps: Sequence[TopicPartition],
        known: Mapping[TopicPartition, QueueProgress],
        replaced: Collection[TopicPartition] = (),
    ) -> QueueStarts:
        """Find the start offsets of queues that this member has locked; a broker that is down is not an error."""
        result = QueueStarts([], {}, {}, {}, {})
        facts = self._facts(tps, known)
        for tp in tps:
            queue_facts = facts[tp]
            if isinstance(queue_facts, str):
                result.failed[tp] = queue_facts
                continue
            try:
                queue_facts = queue_facts._replace(is_same=queue_facts.is_same and tp not in replaced)
                start, result.marks[tp] = self._one(tp, queue_facts, known.get(tp), self.resets.get(tp))
                self.resets.pop(tp, None)
                result.assignments.append(start)
                result.committed[tp] = -1 if queue_facts.committed is None else queue_facts.committed
                result.lows[tp] = queue_facts.low
            except _UNKNOWN as error:
                result.failed[tp] = str(error)
        return result

    def has_moved(
        self,
        tps: Sequence[TopicPartition],
        ours: Mapping[TopicPartition, int],
        known: Mapping[TopicPartition, QueueProgress],
    ) -> set[TopicPartition]:
        """The queues whose offset another program has set, or whose broker does not answer.

        Args:
            ours: The newest commits of this process.
            known: Progress of queues in the state file; the broker may accept its commit after reporting a reset.
        """
        answers = self._brokers.ask([(tp, self._asks.committed(tp)) for tp in tps])
        boots = self._brokers.boots({tp.broker for tp in tps})

        def is_foreign(tp: TopicPartition, committed: int) -> bool:
            boot, row = boots.get(tp.broker, 0), known.get(tp)
            newest = max(ours.get(tp, -1), row.watermark if row else -1)
            return committed > newest or (row is not None and row.was_set_back(committed, boot))

        return {
            tp
            for tp, frame in zip(tps, answers, strict=True)
            if frame is None or (frame.code == Code.SUCCESS and is_foreign(tp, read_offset(frame)))
        }

    def _facts(
        self, tps: Sequence[TopicPartition], known: Mapping[TopicPartition, QueueProgress]
    ) -> dict[TopicPartition, _Facts | str]:
        marks = {tp: mark for tp in tps if tp in known and (mark := known[tp].mark) is not None}
        answers = self._brokers.ask(
            [(tp, ask) for tp in tps for ask in (self._asks.committed(tp), self._asks.low(tp), self._asks.high(tp))]
        )
        looked = dict(zip(marks, self._marked.look(list(marks.items())), strict=True))
        boots = self._brokers.boots({tp.broker for tp in tps})
        facts: dict[TopicPartition, _Facts | str] = {}
        for i, tp in enumerate(tps):
            try:
                ends = _read(answers[3 * i : 3 * i + 3], boots.get(tp.broker))
                same = tp not in marks or is_same(marks[tp], looked[tp], ends.low, ends.high)
                if same is None:
                    same = self._marked.is_still_same(tp, known[tp], ends.low, ends.high)
                facts[tp] = ends._replace(is_same=same)
            except ResetError as reset:
                self.resets[tp] = reset.offset
                facts[tp] = f"{tp.broker}: {reset}"
            except _UNKNOWN as error:
                facts[tp] = f"{tp.broker}: {error}"
        return facts

    def _one(
        self, tp: TopicPartition, facts: _Facts, progress: QueueProgress | None, reset: int | None
    ) -> tuple[Assignment, tuple[QueueMark, ...]]:
        """A queue's start, and the marks that are still there."""
        self._doubts.pop(tp, None)
        committed, boot, low, high, is_same = facts
        if progress is not None and committed is not None and progress.was_set_back(committed, boot):
            reset = committed  # set after any offset that an answer to a pull reported
        decoded = progress.decoded(self.identity(0), self._rules) if progress else Decoded(Origin.NONE)
        marks = progress.marks if progress else ()
        if is_same and (decoded.state is None or decoded.state.seen <= high):
            start_offset = self._same(tp, facts, progress, decoded, reset)
            return replace(start_offset, continues=True, end=high), marks
        low = self._low(tp)  # the first answer may be about the deleted topic
        fields = {**tp.fields(), "committed": committed, "log_start": low, "log_end": high}
        last = self._marked.newest_standing(tp, [mark for mark in marks if low <= mark.offset < high])
        if progress is None or last is None:
            self._beginnings.pop(tp, None)
            self._tell("topic.recreated", "warning", fields | {"action": f"going on at {low}, the first message"})
            return self._fresh(tp, low, held_below=_ALL), ()
        start, why = max(low, min(last.offset + 1, progress.watermark)), _UNSETTLED
        if reset is not None:
            start, why = self._within(reset, low, high, fields), _SET
        self._tell("partition.truncated", "error", fields | {"action": f"going on at {start}: {why}"})
        held_below = min(start, progress.watermark)
        return self._fresh(tp, start, held_below=held_below), marks[marks.index(last) :]

    def _same(
        self, tp: TopicPartition, facts: _Facts, progress: QueueProgress | None, decoded: Decoded, reset: int | None
    ) -> Assignment:
        """The start of a queue that is still the same."""
        committed, _, low, high, _ = facts
        fields = {**tp.fields(), "committed": committed, "log_start": low, "log_end": high}
        if reset is not None:
            self._tell("partition.reset", "warning", fields | {"reason": _SET, "action": f"going on at {reset}"})
            return self._fresh(tp, self._within(reset, low, high, fields))
        if decoded.state is not None and progress is not None:
            if committed is None:
                known = {**tp.fields(), "offset": progress.watermark}
                self._tell("commit.expired", "warning", known | {"action": _FROM_STATE})
            elif committed < progress.watermark:
                self._doubts[tp] = time.monotonic() + DOUBT_S, committed
                action = f"{_FROM_STATE}; {_AGAIN}"
                self._tell("commit.behind", "warning", {**fields, "offset": progress.watermark, "action": action})
            if committed is None or not progress.watermark < committed <= high:
                if low > progress.watermark:
                    self._tell_expired(progress.watermark, low, fields)
                scope, read_from = self.identity(decoded.incarnation).scope, max(decoded.state.watermark, low)
                return Assignment(tp, scope, decoded.state, "", decoded.incarnation, resumed=True, read_from=read_from)
            self._tell("partition.moved_on", "info", {**fields, "known": progress.watermark})
        elif decoded.origin is Origin.OTHER_RULES and progress is not None and committed in (None, progress.watermark):
            self._tell("partition.reset", "warning", fields | {"reason": _RULES, "action": "new window"})
            return self._fresh(tp, self._within(progress.watermark, low, high, fields), resumed=True)
        if committed is not None:
            start = self._within(committed, low, high, fields)
            held_below = start if progress is None else min(start, progress.watermark)
            return self._fresh(tp, start, resumed=progress is not None, held_below=held_below)
        low = self._low(tp) if low else 0  # the first answer may be about a deleted topic
        begin = self._beginnings.get(tp, low)
        return self._fresh(tp, begin if low <= begin <= high else low)

    def doubt(self) -> str:
        """A sentence on resets that may have been ignored; empty if there are none."""
        now_s = time.monotonic()
        self._doubts = {tp: doubt for tp, doubt in self._doubts.items() if doubt[0] > now_s}
        if not self._doubts:
            return ""
        tp = min(self._doubts)
        more = f" and {len(self._doubts) - 1} more" if len(self._doubts) > 1 else ""
        return f"{tp}{more}: {_FROM_STATE} and not from the older offset {self._doubts[tp][1]}; {_AGAIN}"

    def _within(self, offset: int, low: int, high: int, fields: Mapping[str, object]) -> int:
        """Limit an offset to the log. Beyond its end, new messages are unknown: all are read, so that none is lost."""
        if low <= offset <= high:
            return offset
        if offset < low:
            self._tell_expired(offset, low, fields)
        else:
            self._tell("partition.truncated", "error", fields)
        return low

    def _tell_expired(self, offset: int, low: int, fields: Mapping[str, object]) -> None:
        action = "going on at the log's start"
        self._tell("offset.expired", "error", {**fields, "expired": low - offset, "action": action})

    def _low(self, tp: TopicPartition) -> int:
        (frame,) = self._brokers.ask([(tp, self._asks.low(tp))])
        return max(0, read_offset(_good(frame, tp.broker)))

    def identity(self, incarnation: int) -> Identity:
        """The identity of a queue's offsets."""
        return Identity(self._cluster_id, self._asks.wire(self._asks.group), "", incarnation)

    def _fresh(
        self, tp: TopicPartition, offset: int, *, resumed: bool = False, held_below: int | None = None
    ) -> Assignment:
        """A start under new names.

        Args:
            held_below: See `Assignment`; the offset itself if it is not given. Another member that continued has read
                everything from this host's last watermark on, held messages too, and perhaps from an earlier commit if
                that watermark did not reach the broker: these may come twice, and none is lost.
        """
        incarnation = secrets.randbits(64)
        scope, state = self.identity(incarnation).scope, PartitionState(offset, offset)
        held_below = offset if held_below is None else held_below
        return Assignment(tp, scope, state, "", incarnation, resumed, read_from=offset, held_below=held_below)


_ALL = 1 << 63
_SILENT = "no answer came"
_UNSETTLED = "what is not settled of the messages that are there still is read again"
_SET = "the offset was set by an operator or another program"
_FROM_STATE = "going on from the state folder"
_AGAIN = "a crash lost commits, or an operator reset the offset: then reset it again while the daemon runs"
_RULES = "tags, groups, ids or format were changed in the configuration"


def _good(frame: Frame | None, where: str, *also: int) -> Frame:
    """The answer, if its code is 0 or one of `also`."""
    if frame is None:
        raise NoAnswerError(_SILENT)
    if frame.code not in (Code.SUCCESS, *also):
        raise refusal(frame, where)
    return frame


def _read(answers: Iterable[Frame | None], boot: int | None) -> _Facts:
    """The facts, except for `is_same`."""
    committed, low, high = (
        _good(frame, "the broker", *also) for frame, also in zip(answers, ([Code.QUERY_NOT_FOUND], [], []), strict=True)
    )
    if boot is None:
        raise NoAnswerError(_SILENT)
    offset = read_offset(committed) if committed.code == Code.SUCCESS else None
    # While a topic is being recreated, its queues may be at -1.
    at_low, at_high = max(0, read_offset(low)), max(0, read_offset(high))
    return _Facts(offset, boot, at_low, at_high, is_same=True)
