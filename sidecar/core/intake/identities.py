"""Message ids that were handed over, in this ownership and earlier ones: they are not new."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import numpy as np
from typing_extensions import override

from sidecar.core.intake.known import NoIdentities
from sidecar.core.intake.reading import ReadIds, ReadingRules
from sidecar.core.partition.partition import Partition
from sidecar.core.records import NO_ID, Message, TopicPartition
from sidecar.core.windows.bitmap import IdCounts, Moment
from sidecar.core.windows.dedup import Deduplicator, RotatingSet
from sidecar.core.windows.idruns import SortedRun, search


class Identities(NoIdentities):
    """Remembers ids from the first look-up on; they are durable only once their messages are settled."""

    remembered = True

    def __init__(self, reading: ReadingRules, read: ReadIds) -> None:
        self._read = read
        self._odd = reading.odd_ids
        self.copies = reading.copies
        self.windows: Deduplicator[TopicPartition] = Deduplicator(
            reading.capacity, bitmap=reading.bitmap_ids, keep_ms=reading.keep_ms, search=reading.search or search
        )

    def window(self, tp: TopicPartition) -> RotatingSet:
        """The window of a partition's ids, which are not counters."""
        window = self.windows.window(tp)
        assert isinstance(window, RotatingSet)
        return window

    @override
    def forget_partition(self, tp: TopicPartition) -> None:
        self.windows.forget(tp)

    @override
    def resize(self, newest: int) -> None:
        self.windows.room.resize(newest)

    @override
    def count(self) -> IdCounts:
        return self.windows.count()

    @override
    def read(self, tp: TopicPartition, messages: Sequence[Message]) -> Sequence[int | None]:
        numbers = self._read(tp, messages) if messages else ()
        if self._odd is not None and None in numbers:
            self._odd.look(tp, [message for message, number in zip(messages, numbers, strict=True) if number is None])
        return numbers

    @override
    def take_ids(self, partition: Partition, last: int, numbers: Sequence[int | None], now_ms: float) -> list[bool]:
        moment = Moment(last, partition.reach.committed, now_ms)
        known = self._known_of_origins(partition.tp, numbers)
        others = [None if number in known else number for number in numbers] if known else numbers
        new = self.windows.window(partition.tp).take(others, moment)
        return [is_new and number not in known for is_new, number in zip(new, numbers, strict=True)] if known else new

    @override
    def take_all(self, partition: Partition, last: int, numbers: array[int], now_ms: float) -> bytes:
        ids, window = np.frombuffer(numbers, np.int64), self.window(partition.tp)
        new, moment = ids == NO_ID, Moment(last, partition.reach.committed, now_ms)
        if new.any():
            new[~new] = window.take_all(ids[~new], moment)
        else:
            new = window.take_all(ids, moment)
        return bytes(new.tobytes())

    @override
    def restore(
        self,
        tp: TopicPartition,
        runs: Mapping[int, Sequence[SortedRun]],
        begun_ms: Mapping[int, float],
        now_ms: float,
        decided: int,
    ) -> int:
        self.windows.forget(tp)
        window = self.window(tp)
        window.restore(runs, begun_ms, now_ms, decided)
        return len(window)

    @override
    def install(self, tp: TopicPartition, runs: Mapping[int, Sequence[SortedRun]]) -> None:
        self.window(tp).install(runs)

    @override
    def know(self, partition: Partition, numbers: Sequence[int], now_ms: float) -> None:
        self.windows.window(partition.tp).take(numbers, Moment(-1, partition.reach.committed, now_ms))

    @override
    def generation(self, tp: TopicPartition) -> int:
        return self.windows.window(tp).generation

    def _known_of_origins(self, tp: TopicPartition, numbers: Sequence[int | None]) -> set[int]:
        if not self.has_copies(tp):
            return set()
        remembered = self.windows.keys()
        windows = [self.windows.window(key) for key in remembered if key.broker == tp.broker and key != tp]
        return {n for n in numbers if n is not None and any(n in window for window in windows)}
