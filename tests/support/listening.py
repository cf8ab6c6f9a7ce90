"""A listener for a source without a daemon. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from sidecar.core.records import TopicPartition
from sidecar.sources.base import Assignment


class Listening:
    """A listener that remembers what it is told, and does what a test asks when it is told of some."""

    def __init__(self) -> None:
        self.found: list[Assignment] = []
        self.results: list[Mapping[TopicPartition, bool]] = []
        self.gone: list[TopicPartition] = []
        self.on_assigned: Callable[[], None] = lambda: None
        self.on_committed: Callable[[], None] = lambda: None

    def assigned(self, found: Sequence[Assignment]) -> None:
        self.found += found
        self.on_assigned()

    def handing_over(self, tps: Collection[TopicPartition]) -> bool:
        return True

    def revoking(self, tps: Collection[TopicPartition]) -> None:
        self.gone += tps

    def lost(self, tps: Collection[TopicPartition]) -> None:
        self.gone += tps

    def reloading(self, tp: TopicPartition) -> None:
        self.gone.append(tp)

    def committed(self, results: Mapping[TopicPartition, bool], elapsed_s: float) -> None:
        self.results.append(results)
        self.on_committed()

    def waiting(self, what: str) -> None:
        pass

    def event(self, name: str, level: str, fields: Mapping[str, object]) -> None:
        pass
