"""What a consumer may commit: the watermark below which everything read is settled. No broker, no clock, no thread."""

from __future__ import annotations

import struct
from collections.abc import Hashable
from typing import Generic, TypeVar

from pyroaring import BitMap64

from sidecar.core.snapshots import seal, unseal

K = TypeVar("K", bound=Hashable)
OFFSET_MAX = (1 << 63) - 2
VERSION = 1


class _Span:
    """One key: all below `position` is settled, but for two sets."""

    __slots__ = ("again", "committed", "position", "unsettled")

    def __init__(self, position: int, committed: int) -> None:
        self.position = position
        self.committed = committed
        self.unsettled = BitMap64()
        self.again = BitMap64()  # unsettled in the snapshot that was loaded, and not read since

    @property
    def watermark(self) -> int:
        heads = [offsets.min() for offsets in (self.unsettled, self.again) if offsets]
        return min(heads, default=self.position)

    def settle_below(self, offset: int) -> None:
        self.unsettled.remove_range(0, offset)
        self.again.remove_range(0, offset)

    def read(self, offset: int) -> bool:
        if self.again:
            self.again.remove_range(0, offset)  # reading goes upwards: what was passed over is gone from the log
        if offset in self.again:
            self.again.remove(offset)
        elif offset < self.position:
            return False
        else:
            self.position = offset + 1
        self.unsettled.add(offset)
        return True


class Progress(Generic[K]):
    """Tells what to commit when messages are settled in any order, for each key apart (say, a topic and partition).

    An offset is committed only when everything read below it is settled. Offsets of a key are read upwards, with any
    gaps: what compaction removed, and control records. What is kept grows with what is unsettled alone: Roaring
    bitmaps, at most 150 bytes for each unsettled message and down to a bit where many lie together. Not safe for
    threads.

    Make what tells two logs of one name apart a part of the key (a topic's id, say), where topics are made anew.

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
        """Begin a key where its commit stands; not needed where there is no commit: `read` begins it too.

        A key that is known, after `load` say, goes on: what it holds below `offset` counts as settled.

        Args:
            key: The key.
            offset: Committed: all below it is settled, and it is the next one to read.

        Raises:
            ValueError: The offset is below 0, or beyond 63 bits.
        """
        _check(offset)
        span = self._spans.setdefault(key, _Span(offset, offset))
        span.settle_below(offset)
        span.position, span.committed = max(span.position, offset), offset

    def read(self, key: K, offset: int) -> bool:
        """A message was read; False when it was read before and is settled, or is about to be: pass over it.

        Raises:
            ValueError: The offset is below 0, or beyond 63 bits.
        """
        _check(offset)
        span = self._spans.get(key)
        if span is None:
            span = self._spans[key] = _Span(offset, -1)
        return span.read(offset)

    def advance(self, key: K, position: int) -> None:
        """Nothing else is below `position`: the consumer's own position, beyond control records at a log's end.

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
        """A message has its end; False when it was not waiting for it: settled before, or its key was forgotten.

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
        """What to commit, as Kafka means it: for each key the next offset to read; none that is committed already."""
        watermarks = {key: span.watermark for key, span in self._spans.items()}
        return {key: offset for key, offset in watermarks.items() if offset != self._spans[key].committed}

    def committed(self, key: K, offset: int) -> None:
        """The broker has this commit; until it is told, `to_commit` names it again. A forgotten key is passed over."""
        span = self._spans.get(key)
        if span is not None:
            span.committed = offset

    def forget(self, key: K) -> int:
        """Drop a key, which was revoked or lost; how many of its messages were unsettled."""
        span = self._spans.pop(key, None)
        return len(span.unsettled) if span else 0

    def keys(self) -> list[K]:
        """The keys that were begun."""
        return list(self._spans)

    def unsettled(self, key: K | None = None) -> int:
        """How many messages were read and are not settled, of a key or of all."""
        if key is None:
            return sum(len(span.unsettled) for span in self._spans.values())
        return len(self._spans[key].unsettled) if key in self._spans else 0

    def oldest(self, key: K) -> int | None:
        """The lowest offset of a key that was read and is not settled: what holds up its commit."""
        span = self._spans.get(key)
        return span.unsettled.min() if span and span.unsettled else None

    def span(self, key: K) -> int:
        """How many offsets lie between what can be committed and what was read: what a crash repeats at most."""
        span = self._spans.get(key)
        return span.position - span.watermark if span else 0

    def dump(self, key: K) -> bytes:
        """What a key has settled, for `load` in a later process: so it need not be settled again.

        Keep it in one transaction with what the settled messages changed, or write it after that.

        Raises:
            KeyError: The key was not begun.
        """
        span = self._spans[key]
        unsettled = span.unsettled | span.again
        return seal("Progress", VERSION, struct.pack("<q", span.position) + unsettled.serialize())

    def load(self, key: K, dumped: bytes) -> None:
        """Begin a key anew as it was dumped, and read on from what `to_commit` says, or below it.

        `read` is False then for what was settled, and True for what was not. Where the broker's commit may be newer
        than the snapshot, `begin` with it afterwards.

        Raises:
            ValueError: The bytes are no snapshot of `Progress`, or damaged.
        """
        payload = unseal("Progress", VERSION, dumped)
        span = _Span(struct.unpack_from("<q", payload)[0], -1)
        span.again = BitMap64.deserialize(payload[8:])
        self._spans[key] = span


def _check(offset: int) -> None:
    if not 0 <= offset <= OFFSET_MAX:
        raise ValueError(f"an offset lies between 0 and {OFFSET_MAX}, unlike {offset}")
