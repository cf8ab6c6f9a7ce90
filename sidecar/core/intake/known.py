"""Offsets and ids that were handed over, in this ownership and earlier ones: they are not new. Knows no group."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np
from pyroaring import BitMap64

from sidecar.core.intake.reading import ReadingRules
from sidecar.core.partition.partition import Partition
from sidecar.core.records import NO_ID, Columns, Message, Run, TopicPartition
from sidecar.core.windows.dedup import Deduplicator, Moment, RotatingBitmap, RotatingSet
from sidecar.core.windows.idruns import SortedRun


class HoleError(Exception):
    """A message below the position was never read: the client skipped it."""


class Positions:
    """Recognizes offsets that were read before, so that each message is decided once in an ownership.

    Args:
        capacity: Number of offsets remembered per partition.
    """

    def __init__(self, columns: Columns, capacity: int) -> None:
        self._columns = columns
        self._windows = defaultdict[TopicPartition, RotatingBitmap](partial(RotatingBitmap, capacity))
        self._settled: dict[TopicPartition, BitMap64] = {}
        """Offsets at or above the watermark that earlier ownerships settled; used until they are read past."""

    def forget_partition(self, tp: TopicPartition) -> None:
        """Drop the windows of a partition that is no longer owned."""
        self._windows.pop(tp, None)
        self._settled.pop(tp, None)

    def take_whole(self, partition: Partition, run: Run) -> bool:
        """Record all offsets of a run, if none was handed over or settled before; else record nothing."""
        if run.first < partition.reach.position or run.tp in self._settled:
            return False
        self._add(partition, run)
        return True

    def _add(self, partition: Partition, run: Run) -> None:
        window, keep_from = self._windows[run.tp], partition.reach.committed
        if run.last - run.first + 1 == len(run.messages):
            window.add_range(run.first, run.last, keep_from)
        else:
            window.update(list(self._columns.offsets(run.messages)), keep_from)

    def unseen(self, partition: Partition, run: Run) -> tuple[Sequence[Message], BitMap64 | None]:
        """The messages not handed over before in this ownership, and their offsets that were settled earlier, if any.

        Raises:
            HoleError: A message below the position was never read.
        """
        if run.tp.delayed:  # the store gives each message once, and a second of positions would take 16,384 containers
            return self._not_parked(run), None
        messages, first = run.messages, run.first
        if first >= partition.reach.position:
            self._add(partition, run)
        else:
            window, keep_from, first = self._windows[run.tp], partition.reach.committed, partition.reach.position
            offsets = list(self._columns.offsets(messages))
            border = bisect_left(offsets, first)
            for offset in offsets[:border]:
                if offset >= keep_from and offset not in window:
                    raise HoleError(f"{run.tp}@{offset}")
            window.update(offsets[border:], keep_from)
            messages = messages[border:]
        settled = self._settled.get(run.tp)
        if settled is None:
            return messages, None
        if first > settled.max():
            del self._settled[run.tp]
            return messages, None
        span = BitMap64()
        span.add_range(first, run.last + 1)
        return messages, (span & settled) or None

    def _not_parked(self, run: Run) -> Sequence[Message]:
        parked = self._settled.get(run.tp)
        if parked is None:
            return run.messages
        offsets = self._columns.offsets(run.messages)
        return [message for message, offset in zip(run.messages, offsets, strict=True) if offset not in parked]

    def not_parked(self, tp: TopicPartition, positions: Sequence[int]) -> int:
        """How many of these delayed messages are in no parked part."""
        parked = self._settled.get(tp) if positions else None
        return len(positions) - (0 if parked is None else len(parked & BitMap64(positions)))

    def leave_out(self, tp: TopicPartition, parked: Iterable[BitMap64]) -> None:
        """Delayed messages at these positions are in parked parts: other rules must not cut them again."""
        self._settled[tp] = BitMap64().union(*parked)

    def dump(self, partition: Partition) -> tuple[bytes, bytes]:
        """The window of settled offsets, for `load`; messages in flight are new again after a crash."""
        return self._windows[partition.tp].dump(self._settled.get(partition.tp), partition.unsettled())

    def load(self, partition: Partition, dumped: tuple[bytes, bytes], below: int) -> bool:
        """Load the offsets below `below` of an earlier ownership's `dump` as settled.

        Returns:
            Whether offsets from `below` on were dropped. Then dump again before the next commit: otherwise a later
            owner that finds the commit would trust the old dump for other messages at these offsets.
        """
        window = self._windows[partition.tp]
        window.load(dumped)
        settled = window.pop_from(partition.reach.position)
        known = len(settled)
        settled.remove_range(below, 1 << 63)
        if settled:
            self._settled[partition.tp] = settled
        return len(settled) < known


class Identities:
    """Remembers ids from the first look-up on; they are durable only once their messages are settled."""

    def __init__(self, reading: ReadingRules, windows: Deduplicator[TopicPartition]) -> None:
        self._read = reading.ids
        self._odd = reading.odd_ids
        self.copies = reading.copies
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

    def take_ids(self, partition: Partition, last: int, numbers: Sequence[int | None], now_ms: float) -> list[bool]:
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
        """Like `take_ids`, with a byte per message; `NO_ID` is a missing id, and no other partition has copies."""
        ids, window = np.frombuffer(numbers, np.int64), self._windows.window(partition.tp)
        assert isinstance(window, RotatingSet)
        new, moment = ids == NO_ID, Moment(last, partition.reach.committed, now_ms)
        if new.any():
            new[~new] = window.take_all(ids[~new], moment)
        else:
            new = window.take_all(ids, moment)
        return bytes(new.tobytes())

    def restore(
        self,
        tp: TopicPartition,
        runs: Mapping[int, Sequence[SortedRun]],
        begun_ms: Mapping[int, float],
        now_ms: float,
        decided: int,
    ) -> int:
        """Remember the ids that an earlier process stored, see `RotatingSet.restore`; return their number."""
        self._windows.forget(tp)
        window = self._windows.window(tp)
        assert isinstance(window, RotatingSet)
        window.restore(runs, begun_ms, now_ms, decided)
        return len(window)

    def install(self, tp: TopicPartition, runs: Mapping[int, Sequence[SortedRun]]) -> None:
        """Use all runs of ids that the shell stored of a partition, by generation."""
        window = self._windows.window(tp)
        assert isinstance(window, RotatingSet)
        window.install(runs)

    def know(self, partition: Partition, numbers: Sequence[int], now_ms: float) -> None:
        """Remember the ids of messages that are settled; they are not durable."""
        self._windows.window(partition.tp).take(numbers, Moment(-1, partition.reach.committed, now_ms))

    def generation(self, tp: TopicPartition) -> int:
        """Generation of the partition's window of message ids."""
        return self._windows.window(tp).generation

    def has_copies(self, tp: TopicPartition) -> bool:
        """Whether ids are also looked up in other partitions of the broker, which must be replayed first."""
        return self.copies is not None and self.copies(tp)

    def _known_of_origins(self, tp: TopicPartition, numbers: Sequence[int | None]) -> set[int]:
        if not self.has_copies(tp):
            return set()
        remembered = self._windows.keys()
        windows = [self._windows.window(key) for key in remembered if key.broker == tp.broker and key != tp]
        return {n for n in numbers if n is not None and any(n in window for window in windows)}
