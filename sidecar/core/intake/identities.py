"""Known message ids, of a partition itself and of the partitions whose copies it has."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from sidecar.core.intake.reading import ReadingRules
from sidecar.core.partition.partition import Partition
from sidecar.core.records import NO_ID, Message, TopicPartition
from sidecar.core.windows.dedup import Deduplicator, Moment, RotatingSet


class Identities:
    """Remembers ids from the first look-up on; they are durable only once their messages are settled."""

    def __init__(self, reading: ReadingRules, windows: Deduplicator[TopicPartition]) -> None:
        self._read = reading.ids
        self._odd = reading.odd_ids
        self._copies = reading.copies
        self._windows = windows

    @property
    def remembered(self) -> bool:
        """Whether messages have ids that are compared here."""
        return self._read is not None

    def read(self, tp: TopicPartition, messages: Sequence[Message]) -> Sequence[int | None]:
        """The id of each message."""
        assert self._read is not None
        numbers = self._read(tp, messages) if messages else ()
        if self._odd is not None and None in numbers:
            self._odd.look(tp, [message for message, number in zip(messages, numbers, strict=True) if number is None])
        return numbers

    def take(self, partition: Partition, last: int, numbers: Sequence[int | None], now_ms: float) -> list[bool]:
        """Whether the id of each message is new, in the order of their offsets; new ids are known from now on.

        Args:
            last: The offset of the last of them, -1 if there is none.
            now_ms: Monotonic time.
        """
        moment = Moment(last, partition.reach.committed, now_ms)
        known = self._known_of_origins(partition.tp, numbers)
        others = [None if number in known else number for number in numbers] if known else numbers
        new = self._windows.window(partition.tp).take(others, moment)
        return [is_new and number not in known for is_new, number in zip(new, numbers, strict=True)] if known else new

    def take_all(self, partition: Partition, last: int, numbers: array[int], now_ms: float) -> bytes:
        """See `take`; `NO_ID` stands for a missing id, and no other partition has copies. A byte for each message."""
        ids, window = np.frombuffer(numbers, np.int64), self._windows.window(partition.tp)
        assert isinstance(window, RotatingSet)
        new, moment = ids == NO_ID, Moment(last, partition.reach.committed, now_ms)
        if new.any():
            new[~new] = window.take_all(ids[~new], moment)
        else:
            new = window.take_all(ids, moment)
        return bytes(new.tobytes())

    def know(self, partition: Partition, numbers: Sequence[int], now_ms: float) -> None:
        """Remember the ids of messages that are settled; they are not durable."""
        self._windows.window(partition.tp).take(numbers, Moment(-1, partition.reach.committed, now_ms))

    def generation(self, tp: TopicPartition) -> int:
        """Generation of the partition's window of message ids."""
        return self._windows.window(tp).generation

    def has_copies(self, tp: TopicPartition) -> bool:
        """Whether ids are also looked up in other partitions of the broker, which must be replayed first."""
        return self._copies is not None and self._copies(tp)

    def _known_of_origins(self, tp: TopicPartition, numbers: Sequence[int | None]) -> set[int]:
        if not self.has_copies(tp):
            return set()
        remembered = self._windows.keys()
        windows = [self._windows.window(key) for key in remembered if key.broker == tp.broker and key != tp]
        return {n for n in numbers if n is not None and any(n in window for window in windows)}
