"""Offsets that a consumer may commit: watermarks below which everything read is settled. No broker, clock or thread."""

from __future__ import annotations

import struct
from collections.abc import Hashable
from typing import Generic, TypeVar

from pyroaring import BitMap64

from sidecar.core.snapshots import Stored, bitmap_of, seal, unseal

K = TypeVar("K", bound=Hashable)
OFFSET_MAX = (1 << 63) - 2
VERSION = 1
_POSITION = struct.Struct("<q")


class _Span:
    """State of one key: all offsets below `position` are settled, except two sets."""

    __slots__ = ("again", "committed", "position", "unsettled")

    def __init__(self, position: int, committed: int) -> None:
        self.position = position
        self.committed = committed
        self.unsettled = BitMap64()
        self.again = BitMap64()  # unsettled in the loaded snapshot, and not read since

    @property
    def watermark(self) -> int:
        heads = [offsets.min() for offsets in (self.unsettled, self.again) if offsets]
        return min(heads, default=self.position)

    def settle_below(self, offset: int) -> None:
        self.unsettled.remove_range(0, offset)
        self.again.remove_range(0, offset)

    def read(self, offset: int) -> bool:
        if self.again:
            self.again.remove_range(0, offset)  # reads go upwards: skipped offsets are gone from the log
        if offset in self.again:
            self.again.remove(offset)
        elif offset < self.position:
            return False
        else:
            self.position = offset + 1
        self.unsettled.add(offset)
        return True


class Progress(Generic[K]):
    """Computes offsets to commit when messages are settled in any order, per key (say, a topic and partition).

    An offset is committed only when everything read below it is settled. Offsets of a key are read upwards, with any
    gaps, such as compacted messages and control records. Memory grows only with the unsettled messages: Roaring
    bitmaps, at most 150 bytes for each, and down to a bit if many are adjacent. Not thread-safe.

    If topics are deleted and created again, include in the key what distinguishes the logs, such as the topic id.

    >>> progress = Progress()
    >>> [progress.read(("orders", 0), offset) for offset in (5, 6, 9)]
    [True, True, True]
    >>> progress.settled(("orders", 0), 6), progress.to_commit()
    (True, {('orders', 0): 5})
    >>> progress.settled(("orders", 0), 5), progress.to_commit()
    (True, {('orders', 0): 9})
    >>> progress.oldest(("orders", 0)), progress.unsettled(), progress.read(("orders", 0), 6)
    (9, 1, False)
    """

    def __init__(self) -> None:
        self._spans: dict[K, _Span] = {}

    def begin(self, key: K, offset: int) -> None:
        """Begin a key at its committed offset; not needed without a commit, as `read` begins it too.

        A key that is known, for example after `load`, continues: its messages below `offset` count as settled.

        Args:
            offset: The committed offset: all below it is settled, and it is the next one to read.

        Raises:
            ValueError: The offset is below 0, or beyond 63 bits.
        """
        _check(offset)
        span = self._spans.setdefault(key, _Span(offset, offset))
        span.settle_below(offset)
        span.position, span.committed = max(span.position, offset), offset

    def read(self, key: K, offset: int) -> bool:
        """Record that a message was read. Return False if it was read before: it is settled or in flight, so skip it.

        Raises:
            ValueError: The offset is below 0, or beyond 63 bits.
        """
        _check(offset)
        span = self._spans.get(key)
        if span is None:
            span = self._spans[key] = _Span(offset, -1)
        return span.read(offset)

    def advance(self, key: K, position: int) -> None:
        """Set the consumer's own position, which includes control records at a log's end: nothing else is below it.

        Raises:
            ValueError: The position is below 0, or beyond 63 bits.
        """
        _check(position)
        span = self._spans.get(key)
        if span is None:
            return
        span.again.remove_range(0, position)
        span.position = max(span.position, position)

    def settled(self, key: K, offset: int) -> bool:
        """Settle a message. Return False if it was settled before, or its key was forgotten.

        Raises:
            ValueError: The offset is below 0, or beyond 63 bits.
        """
        _check(offset)
        span = self._spans.get(key)
        if span is None or offset not in span.unsettled:
            return False
        span.unsettled.remove(offset)
        return True

    def to_commit(self) -> dict[K, int]:
        """Offsets to commit, in Kafka's sense: the next offset to read of each key, without those already committed."""
        watermarks = {key: span.watermark for key, span in self._spans.items()}
        return {key: offset for key, offset in watermarks.items() if offset != self._spans[key].committed}

    def committed(self, key: K, offset: int) -> None:
        """Record a successful commit; until then `to_commit` returns it again. A forgotten key is ignored."""
        span = self._spans.get(key)
        if span is not None:
            span.committed = offset

    def forget(self, key: K) -> int:
        """Drop a key that was revoked or lost; return the number of its unsettled messages."""
        span = self._spans.pop(key, None)
        return len(span.unsettled) if span else 0

    def keys(self) -> list[K]:
        """All keys that were begun."""
        return list(self._spans)

    def unsettled(self, key: K | None = None) -> int:
        """Number of messages that were read and are not settled, of a key or of all."""
        if key is None:
            return sum(len(span.unsettled) for span in self._spans.values())
        return len(self._spans[key].unsettled) if key in self._spans else 0

    def oldest(self, key: K) -> int | None:
        """The lowest unsettled offset of a key, which holds up its commit; None if there is none."""
        span = self._spans.get(key)
        return span.unsettled.min() if span and span.unsettled else None

    def span(self, key: K) -> int:
        """Number of offsets between the offset to commit and the position: the most that a crash repeats."""
        span = self._spans.get(key)
        return span.position - span.watermark if span else 0

    def dump(self, key: K) -> bytes:
        """The settled offsets of a key, for `load` in a later process, so that they need not be settled again.

        Store it in one transaction with the effects of the settled messages, or after these.

        Raises:
            KeyError: The key was not begun.
        """
        span = self._spans[key]
        unsettled = span.unsettled | span.again
        return seal("Progress", VERSION, _POSITION.pack(span.position) + unsettled.serialize())

    def load(self, key: K, dumped: bytes) -> None:
        """Restore a key from a dump; then read from the offset that `to_commit` returns, or below it.

        `read` then returns False for settled messages and True for others. If the broker's commit may be newer than the
        snapshot, call `begin` with it afterwards.

        Raises:
            ValueError: The bytes are no snapshot of `Progress`, or damaged.
        """
        stored = Stored(unseal("Progress", VERSION, dumped))
        (position,) = stored.unpack(_POSITION)
        span = _Span(position, -1)
        span.again = bitmap_of(stored.take(stored.left))
        self._spans[key] = span


def _check(offset: int) -> None:
    if not 0 <= offset <= OFFSET_MAX:
        raise ValueError(f"an offset lies between 0 and {OFFSET_MAX}, unlike {offset}")
