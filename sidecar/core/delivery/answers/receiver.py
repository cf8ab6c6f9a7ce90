"""State of the receiver: whether the messages or the receiver itself cause the refusals."""

from __future__ import annotations

from collections.abc import Collection

from sidecar.core.backoff import RefusalGuard
from sidecar.core.parts import Part
from sidecar.core.records import TopicPartition


class Receiver:
    """State of the receiver. While it is doubted, nothing is read, and nothing is dead-lettered."""

    def __init__(self) -> None:
        self._halted = ""
        self._guard = RefusalGuard()

    @property
    def halted(self) -> str:
        """The reason for which the sink refuses every request, without a message at fault; empty if it does not."""
        return self._halted

    @property
    def refuses(self) -> bool:
        """Whether recent refusals are too many to be caused by messages."""
        return self._guard.tripped

    @property
    def doubted(self) -> bool:
        """Whether requests or messages are refused for the receiver's own fault."""
        return bool(self._halted) or self._guard.tripped

    def halt(self, reason: str) -> None:
        """Record that the receiver refuses every request."""
        self._halted = reason or "no reason given"

    def resume(self) -> None:
        """Record that the receiver evaluated a request, which ends a halt."""
        self._halted = ""

    def judge(self, part: Part, refused: Collection[int], taken: int) -> None:
        """Count rows of a part that were permanently refused, and `taken` others that were accepted."""
        before = self._guard.tripped
        offsets = [offset for fragment in part.fragments for offset in fragment.offsets] if refused or before else []
        for index in refused:
            self._guard.refused((part.tp, offsets[index]))
        if taken:
            self._guard.taken(taken, ((part.tp, offset) for i, offset in enumerate(offsets) if i not in refused))

    def recall(self, tp: TopicPartition, taken: int, refused: int) -> None:
        """Add answers of an earlier process, whose messages are unknown."""
        self._guard.taken(taken, ())
        for _ in range(refused):
            self._guard.refused((tp, -1))

    def trust(self) -> None:
        """Reset the state: no batch is left that could test the receiver, so the next one has to."""
        if self.doubted:
            self._halted = ""
            self._guard = RefusalGuard()

    def forget(self, tp: TopicPartition) -> None:
        """Drop the messages of a partition that is no longer owned."""
        self._guard.forget(tp)
