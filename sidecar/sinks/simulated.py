"""A destination in memory that answers as told, for tests of the daemon and of users. No socket may come in."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from sidecar.core.records import Answer, Batch, FailedRow, Framer, Part, TopicPartition, Verdict


@dataclass(frozen=True, slots=True)
class Request:
    """What one call of `deliver` brought."""

    key: str
    group: str
    attempt: int
    parts: tuple[str, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Row:
    """A row that was stored."""

    group: str
    part: str
    tp: TopicPartition
    offset: int
    data: bytes


class SimulatedSink:
    """Keeps rows in memory and answers as told; acknowledges when nothing was told.

    Args:
        framer: How messages become rows.
        remembers: Whether it keeps the names of parts, and stores none of them twice.

    Attributes:
        requests: Every call, in order.
        rows: Every row that was stored, in order.
    """

    def __init__(self, framer: Framer, *, remembers: bool = True) -> None:
        self.framer = framer
        self.requests: list[Request] = []
        self.rows: list[Row] = []
        self._remembers = remembers
        self._known: dict[tuple[str, str], dict[int, FailedRow]] = {}
        self._script: deque[tuple[Answer, bool]] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def script(self, *answers: Answer, lost: bool = False) -> None:
        """Queue answers for the next calls.

        Args:
            answers: An acknowledgement stores the rows, a partial one those that it does not name, others nothing.
            lost: Store the rows all the same, as if the real answer got lost on its way.
        """
        self._script.extend((answer, lost) for answer in answers)

    def deliver(self, batch: Batch) -> Answer:
        """Store the rows of parts that are not known yet, as the script says."""
        with self._lock:
            names = tuple(part.name for part in batch.parts)
            self.requests.append(Request(batch.key, batch.group, batch.attempt, names, batch.count))
            if self._closed:
                return Answer(Verdict.RETRY, "the sink is closed")
            answer, lost = self._script.popleft() if self._script else (Answer(Verdict.ACK), False)
            if not lost and answer.verdict not in (Verdict.ACK, Verdict.PARTIAL):
                return answer
            if len(answer.failed) == batch.count:  # nothing was taken, so no name is either
                return answer
            taken = self._take(batch, answer.failed)
            return answer if lost else taken

    def _take(self, batch: Batch, failed: tuple[FailedRow, ...]) -> Answer:
        refused = {row.index: row for row in failed}
        again: list[FailedRow] = []
        at = 0
        for part in batch.parts:
            again += self._take_part(part, at, refused)
            at += part.count
        return Answer(Verdict.PARTIAL, "some rows failed", failed=tuple(again)) if again else Answer(Verdict.ACK)

    def _take_part(self, part: Part, at: int, refused: dict[int, FailedRow]) -> list[FailedRow]:
        """Store a part, or find it known; either way name its failed rows, by what is remembered of their offsets."""
        offsets = [offset for fragment in part.fragments for offset in fragment.offsets]
        known = self._known.get((part.group, part.name)) if self._remembers else None
        if known is None:
            known = {offsets[i - at]: row for i, row in refused.items() if at <= i < at + part.count}
            if len(known) < len(offsets):  # of a part that failed wholly nothing is stored, not its name either
                self._known[part.group, part.name] = known
            rows = [row for f in part.fragments if f.offsets for row in f.data.split(self.framer.separator)]
            stored = zip(offsets, rows, strict=True)
            self.rows += [Row(part.group, part.name, part.tp, o, row) for o, row in stored if o not in known]
        return [
            FailedRow(at + i, known[offset].retry, known[offset].reason)
            for i, offset in enumerate(offsets)
            if offset in known
        ]

    def close(self) -> None:
        """Answer every later call with a retry."""
        self._closed = True
