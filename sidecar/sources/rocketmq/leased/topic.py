"""State of a topic in a leased source, and a pending commit. Values only."""

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
    """The numbering whose message ids a new current one takes over."""
    has_begun: bool = True
    """Whether the current numbering is assigned to the core."""
    line: list[Taken] = field(default_factory=list)
    """New messages that have no number yet."""
    repeats: list[Taken] = field(default_factory=list)
    """Duplicates that the core has not counted yet."""

    def number(self) -> Iterable[Run]:
        """Number the messages in line and hold them."""
        while self.line:
            count = run_length(len(message.handed.body) for message in self.line)
            few, self.line = self.line[:count], self.line[count:]
            yield self.current.number(few)


@dataclass(slots=True)
class Commit:
    """A pending commit."""

    begun_s: float
    results: dict[TopicPartition, bool]
    saved: Future[None]
