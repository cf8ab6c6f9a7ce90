"""Offsets that were handed over, in this ownership and earlier ones: they are not new. Knows no group."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from sidecar.core.partition.partition import Partition
from sidecar.core.records import Columns, Message, Run, TopicPartition
from sidecar.core.windows.bitmap import IdCounts, RotatingBitmap

if TYPE_CHECKING:
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


class NoIdentities:
    """Messages have no ids that are compared here. `Identities` is the same with ids, so few callers ask."""

    remembered = False
    """Whether messages have ids that are compared here."""
    copies: Callable[[TopicPartition], bool] | None = None
    """See `ReadingRules`."""

    def forget_partition(self, tp: TopicPartition) -> None:
        """Drop the ids of a partition that is no longer owned."""

    def resize(self, newest: int) -> None:
        """Set how many of the newest ids of all partitions are kept outside of sorted runs."""

    def count(self) -> IdCounts:
        """Count the remembered ids."""
        return IdCounts()

    def has_copies(self, tp: TopicPartition) -> bool:
        """Whether ids are also looked up in other partitions of the broker, which must be replayed first."""
        return self.copies is not None and self.copies(tp)

    def read(self, tp: TopicPartition, messages: Sequence[Message]) -> Sequence[int | None]:  # noqa: ARG002
        """The id of each message; empty if there are none."""
        return ()

    def take_ids(self, partition: Partition, last: int, numbers: Sequence[int | None], now_ms: float) -> list[bool]:  # noqa: ARG002
        """Whether the id of each message is new, in the order of their offsets; new ids are known from now on.

        Args:
            last: The offset of the last of them, -1 if there is none.
            now_ms: Monotonic time.
        """
        return [True] * len(numbers)

    def take_all(self, partition: Partition, last: int, numbers: array[int], now_ms: float) -> bytes:  # noqa: ARG002
        """Like `take_ids`, with a byte per message; `NO_ID` is a missing id, and no other partition has copies."""
        return b"\1" * len(numbers)

    def restore(
        self,
        tp: TopicPartition,  # noqa: ARG002
        runs: Mapping[int, Sequence[SortedRun]],  # noqa: ARG002
        begun_ms: Mapping[int, float],  # noqa: ARG002
        now_ms: float,  # noqa: ARG002
        decided: int,  # noqa: ARG002
    ) -> int:
        """Remember the ids that an earlier process stored, see `RotatingSet.restore`; return their number."""
        return 0

    def install(self, tp: TopicPartition, runs: Mapping[int, Sequence[SortedRun]]) -> None:
        """Use all runs of ids that the shell stored of a partition, by generation."""

    def know(self, partition: Partition, numbers: Sequence[int], now_ms: float) -> None:
        """Remember the ids of messages that are settled; they are not durable."""

    def generation(self, tp: TopicPartition) -> int:  # noqa: ARG002
        """Generation of the partition's window of message ids."""
        return 0
