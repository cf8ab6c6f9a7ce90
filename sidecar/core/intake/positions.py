"""Which offsets were handed over, in this ownership and those before. Knows no id and no group."""

from __future__ import annotations

from bisect import bisect_left

from pyroaring import BitMap64

from sidecar.core.partition.partition import Partition
from sidecar.core.records import Columns, Message, Run, TopicPartition
from sidecar.core.windows.dedup import Deduplicator, RotatingBitmap


class HoleError(Exception):
    """A message stands below the position and was never read: the client skipped it."""


class Positions:
    """Tells what is new from what came before, so that each message is decided once in an ownership.

    Args:
        columns: The source's column readers.
        capacity: Offsets remembered a partition.
    """

    def __init__(self, columns: Columns, capacity: int) -> None:
        self._columns = columns
        self._windows: Deduplicator[TopicPartition] = Deduplicator(capacity)
        self._settled: dict[TopicPartition, BitMap64] = {}
        """At or above the watermark, by ownerships before: it decides until it is read past."""

    def forget(self, tp: TopicPartition) -> None:
        """The partition is not ours any more."""
        self._windows.forget(tp)
        self._settled.pop(tp, None)

    def unseen(self, partition: Partition, run: Run) -> tuple[list[Message], BitMap64 | None]:
        """What was not handed over before in this ownership; and of its offsets those settled before it, if any.

        Raises:
            HoleError: A message stands below the position that was never read.
        """
        window = self._window(run.tp)
        messages, keep_from = run.messages, partition.reach.committed
        if run.first >= partition.reach.position:
            if run.last - run.first + 1 == len(messages):
                window.add_range(run.first, run.last, keep_from)
            else:
                window.update(list(self._columns.offsets(messages)), keep_from)
            return messages, self._settled_within(run.tp, run.first, run.last)
        offsets = list(self._columns.offsets(messages))
        border = bisect_left(offsets, partition.reach.position)
        for offset in offsets[:border]:
            if offset >= keep_from and offset not in window:
                raise HoleError(f"{run.tp}@{offset}")
        window.update(offsets[border:], keep_from)
        return messages[border:], self._settled_within(run.tp, partition.reach.position, run.last)

    def _window(self, tp: TopicPartition) -> RotatingBitmap:
        window = self._windows.window(tp)
        assert isinstance(window, RotatingBitmap)
        return window

    def _settled_within(self, tp: TopicPartition, first: int, last: int) -> BitMap64 | None:
        settled = self._settled.get(tp)
        if settled is None:
            return None
        if first > settled.max():
            del self._settled[tp]
            return None
        span = BitMap64()
        span.add_range(first, last + 1)
        return (span & settled) or None

    def dump(self, partition: Partition) -> tuple[bytes, bytes]:
        """The window of what is settled, for `load`; what is in flight is new again after a crash."""
        return self._window(partition.tp).dump(self._settled.get(partition.tp), partition.unsettled())

    def load(self, partition: Partition, dumped: tuple[bytes, bytes], below: int) -> bool:
        """Earlier ownerships settled what `dump` gave, as far as it stands below an offset.

        Returns:
            Whether some of it does not: then dump anew before anything is committed, or a later life, which finds that
            commit, would trust it for what stands there by then.
        """
        window = self._window(partition.tp)
        window.load(dumped)
        settled = window.pop_from(partition.reach.position)
        known = len(settled)
        settled.remove_range(below, 1 << 63)
        if settled:
            self._settled[partition.tp] = settled
        return len(settled) < known
