"""Recognizes rows that were already delivered, by manifest lines and offsets only. Reads no file and knows no Spark.

After a takeover two writers may have landed the same messages. Of several copies the first planned is delivered, and
the decision must be the same after any restart. It needs no state of its own:

* A row's identity is (topic, scope, partition, offset). The lines have the offsets of a batch, so no data is read.
* With a start of ``{writer: seq}`` all entries up to it are *delivered*: their offsets were delivered, or were
  duplicates. That is a union, which does not depend on the order of entries or on their micro-batches. So it is a
  function of manifest and start only, and a restarted query builds the same set.
* Within a micro-batch (start, end] the entries claim their offsets in the order of writer and number. This is a
  function of (start, end) only: the last micro-batch, replayed after a crash, has the same rows of the same copies,
  even if two writers landed the same part within it. So each identity is delivered in the micro-batch whose end is the
  first to cover it.
* An entry may be delivered in part; then the offsets that it may not deliver are passed to the task that reads it.
* All groups claim, including those that a query does not read. So reading some groups is the same as reading all and
  filtering, and the option may change between restarts. (A message that was landed again under another group, because
  the rules had changed, belongs to the first group.)
* A batch never has an offset twice: its parts do not overlap.

Effect of retention: a line outlives its data, until everything in its file is older than `retention.age`. Offsets
without a line no longer count as delivered, so a batch that is landed again after that is delivered again. A running
query forgets them too, later (`Planner` starts again when half of the lines it knows are gone): this bounds its memory.
A decision could differ only if a micro-batch is replayed, lines were removed between the two attempts, and it has
copies that were landed more than `retention.age` apart.

A new query begins after the removed data (at the floors), and counts the offsets in the lines up to there as delivered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from pyroaring import BitMap64

from sidecar.zone.entry import Entry, PartitionId

Drop: TypeAlias = Mapping[PartitionId, BitMap64]
"""Offsets of an entry that must not be delivered."""
YOUNG_MAX: Final = 256
"""Number of bitmaps gathered before they are joined with the large one: a union scans all of that (57 us at 1e8)."""


class Delivered:
    """The offsets of all entries that were added."""

    def __init__(self) -> None:
        self.entries = 0
        self._places: dict[PartitionId, _Offsets] = {}

    def add_entry(self, entry: Entry) -> None:
        """Count all offsets of an entry as delivered."""
        self.entries += 1
        for cover in entry.covers:
            self._deliver(cover.place, cover.offsets())

    def claim(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Drop]]:
        """Each entry with the offsets that it must not deliver, in order, without entries that have none to deliver.

        Changes no state: the same call returns the same result.
        """
        fresh = Delivered()
        for entry in entries:
            drop: dict[PartitionId, BitMap64] = {}
            left = not entry.covers
            for cover in entry.covers:
                offsets = cover.offsets()
                twice = self._among(cover.place, offsets) | fresh._among(cover.place, offsets)
                fresh._deliver(cover.place, offsets)
                left = left or len(twice) < len(offsets)
                if twice:
                    drop[cover.place] = twice
            if left:
                yield entry, drop

    def _deliver(self, partition: PartitionId, offsets: BitMap64) -> None:
        self._places.setdefault(partition, _Offsets()).add_offsets(offsets)

    def _among(self, partition: PartitionId, offsets: BitMap64) -> BitMap64:
        held = self._places.get(partition)
        return held.among(offsets) if held else BitMap64()


class _Offsets:
    """A growing set of offsets in two layers."""

    __slots__ = ("_added", "_old", "_young")

    def __init__(self) -> None:
        self._old, self._young, self._added = BitMap64(), BitMap64(), 0

    def add_offsets(self, offsets: BitMap64) -> None:
        self._young |= offsets
        self._added += 1
        if self._added % YOUNG_MAX == 0:
            self._old |= self._young
            self._old.run_optimize()
            self._young = BitMap64()

    def among(self, offsets: BitMap64) -> BitMap64:
        common = BitMap64()
        for layer in (self._old, self._young):
            if layer.intersect(offsets):
                common |= offsets & layer
        return common
