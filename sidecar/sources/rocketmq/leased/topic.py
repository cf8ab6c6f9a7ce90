"""What a source over a client that hands messages over knows of a topic, and how much it holds. Values only."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from sidecar.core.records import Run, TopicPartition
from sidecar.sources.base import run_length
from sidecar.sources.rocketmq.leased.columns import Taken
from sidecar.sources.rocketmq.leased.slot import Slot


@dataclass(slots=True)
class Topic:
    """A topic's numberings."""

    current: Slot
    earlier: list[Slot]
    inherits: TopicPartition | None = None
    """Whose message ids the current one knows too, where it is new."""
    has_begun: bool = True
    """Whether the current one is the core's."""
    line: list[Taken] = field(default_factory=list)
    """New messages that have no number yet."""
    repeats: list[Taken] = field(default_factory=list)
    """Duplicates that the core has not counted yet."""

    def number(self) -> Iterable[Run]:
        """Number the line, and hold it."""
        while self.line:
            count = run_length(len(message.handed.body) for message in self.line)
            few, self.line = self.line[:count], self.line[count:]
            yield self.current.number(few)


@dataclass(slots=True)
class Room:
    """What is held."""

    count: int = 0
    nbytes: int = 0

    def add(self, count: int, nbytes: int) -> None:
        """More, or less."""
        self.count += count
        self.nbytes += nbytes


@dataclass(slots=True)
class Commit:
    """One that was begun."""

    begun_s: float
    results: dict[TopicPartition, bool]
    saved: Future[None]
