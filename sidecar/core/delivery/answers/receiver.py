"""What is thought of the receiver: whether refusals are the messages' fault, or its own."""

from __future__ import annotations

from collections.abc import Collection

from sidecar.core.backoff import RefusalGuard
from sidecar.core.parts import Part
from sidecar.core.records import TopicPartition


class Receiver:
    """While it is doubted, nothing more is read, and nothing is dead-lettered."""

    def __init__(self) -> None:
        self._halted = ""
        self._guard = RefusalGuard()

    @property
    def halted(self) -> str:
        """Why nothing is read: the sink refuses what no message is at fault for."""
        return self._halted

    @property
    def refuses(self) -> bool:
        """Whether it refused too much lately for that to be the messages' fault."""
        return self._guard.tripped

    @property
    def doubted(self) -> bool:
        """Whether either is so."""
        return bool(self._halted) or self._guard.tripped

    def halt(self, reason: str) -> None:
        """It refuses every request."""
        self._halted = reason or "no reason given"

    def resume(self) -> None:
        """It looked at a request."""
        self._halted = ""

    def judge(self, part: Part, refused: Collection[int], taken: int) -> None:
        """Some rows of a part were refused for good, and so many others taken: is it still the messages' fault?"""
        before = self._guard.tripped
        offsets = [offset for fragment in part.fragments for offset in fragment.offsets] if refused or before else []
        for index in refused:
            self._guard.refused((part.tp, offsets[index]))
        if taken:
            self._guard.taken(taken, ((part.tp, offset) for i, offset in enumerate(offsets) if i not in refused))

    def recall(self, tp: TopicPartition, taken: int, refused: int) -> None:
        """It answered so in an earlier life, for messages that are not known any more."""
        self._guard.taken(taken, ())
        for _ in range(refused):
            self._guard.refused((tp, -1))

    def trust(self) -> None:
        """Nothing is left that could ask it again: the next batch has to."""
        if self.doubted:
            self._halted = ""
            self._guard = RefusalGuard()

    def forget(self, tp: TopicPartition) -> None:
        """The partition is not ours any more."""
        self._guard.forget(tp)
