"""Which rows were delivered already: decided by manifest lines and offsets alone. Reads no file and knows no Spark.

After a takeover two writers may have landed the same messages. Of several copies the first one planned is delivered,
and the decision has to be the same after any restart. It needs no state of its own:

* A row's identity is (topic, scope, partition, offset). The lines tell which ones a batch has, so no data is read.
* With a start of ``{writer: seq}`` all entries up to it are *delivered*: their offsets were, or were duplicates of
  such. That is a union, in which the order of the entries does not matter, nor in which micro-batches they came. So
  it is a function of the manifest and the start alone, and a restarted query builds the same one.
* Within a micro-batch (start, end] the entries claim their offsets in the order of writer and number. Again a function
  of (start, end) alone: the last micro-batch, replayed after a crash, has the same rows of the same copies, also when
  two writers landed the same part within it. So each identity is delivered in the one micro-batch whose end is the
  first to cover it.
* An entry may be delivered in part; then the offsets that it may not deliver travel with it to the task that reads it.
* All groups claim, also those that a query does not ask for. So to read some groups is the same as to read all and
  filter, and the option may change between restarts. (A message that was landed again under another group, because the
  rules had changed, belongs to the first one.)
* A batch never has an offset twice: its parts do not overlap.

What retention does to this: a line outlives its data, until everything in its file is older than `retention.age`. What
no line tells any more does not count as delivered any more, so a batch that comes again after that is delivered again.
A running query forgets it too, later (`Planner` begins anew when half of the lines it knows are gone): this bounds its
memory. A decision could come out otherwise only when a micro-batch is replayed, lines were removed between the two
attempts, and it has copies that were landed more than `retention.age` apart.

A new query begins behind what retention removed (the floors), and counts as delivered what the lines up to there tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from pyroaring import BitMap64

from sidecar.zone.entry import Entry, PartitionId

Drop: TypeAlias = Mapping[PartitionId, BitMap64]
"""Offsets that an entry has and may not deliver."""
YOUNG_MAX: Final = 256
"""Bitmaps that are gathered before they are joined with the large one: a union walks all of that (57 us at 1e8)."""


class Delivered:
    """The offsets of all entries that were added."""

    def __init__(self) -> None:
        self.entries = 0
        """How many were added."""
        self._places: dict[PartitionId, _Offsets] = {}

    def add(self, entry: Entry) -> None:
        """Count all that an entry has as delivered."""
        self.entries += 1
        for cover in entry.covers:
            self._deliver(cover.place, cover.offsets())

    def claim(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Drop]]:
        """Each entry with what it may not deliver, in order; those with nothing to deliver are left out.

        Nothing of it counts as delivered afterwards: the same call gives the same again.
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
        self._places.setdefault(partition, _Offsets()).add(offsets)

    def _among(self, partition: PartitionId, offsets: BitMap64) -> BitMap64:
        held = self._places.get(partition)
        return held.among(offsets) if held else BitMap64()


class _Offsets:
    """A growing set of offsets in two layers."""

    __slots__ = ("_added", "_old", "_young")

    def __init__(self) -> None:
        self._old, self._young, self._added = BitMap64(), BitMap64(), 0

    def add(self, offsets: BitMap64) -> None:
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
