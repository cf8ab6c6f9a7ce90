"""From a run to rows: position, filter, id, framing. Decides what each message is; cuts and sends nothing."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, groupby
from operator import call

from pyroaring import BitMap64

from sidecar.core.batching import Buffer, held_bytes, pick_keys
from sidecar.core.dedup import Deduplicator, Moment, RotatingBitmap
from sidecar.core.fields import Raw
from sidecar.core.intents import Intent, Lane
from sidecar.core.progress import Partition
from sidecar.core.records import NO_ID, Columns, Fragment, Framer, Message, Run, TopicPartition
from sidecar.core.tags import Memo

CHOSEN_MAX = 256
ReadTags = Callable[[TopicPartition, Sequence[Message]], Sequence[Raw]]
ReadIds = Callable[[TopicPartition, Sequence[Message]], Sequence[int | None]]
ReadKeys = Callable[[TopicPartition, Sequence[Message]], bytes]


_Placed = tuple[str, Intent | Lane | None, list[Message]]
"""A group, where its messages belong (None: nowhere, they are settled), and the messages."""


class HoleError(Exception):
    """A message stands below the position and was never read: the client skipped it."""


@dataclass(slots=True)
class Sorted:
    """What became of a run."""

    duplicate: int = 0
    filtered: int = 0
    opened: list[tuple[str, Fragment]] = field(default_factory=list)
    """Group and fragment, to be put into the open lanes."""
    collected_bytes: int = 0
    """What is held of what went to intents of an earlier life."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How messages are read.

    Args:
        columns: The source's column readers.
        framer: The sink's format.
        tags: Reads the raw tags of messages.
        groups: Raw tags to group, None for unwanted; computes what is missing.
        ids: Reads message ids, None where only positions tell duplicates.
        capacity: Positions and ids remembered a partition.
        bitmap_ids: Whether ids grow like counters (Roaring) or are random (hash set).
        keys: Reads business keys, where a ledger tells duplicates and `ids` is None.
        keep_ms: How long ids are remembered at least; None as long as `capacity` allows.
        digest: 64 bits that tell a message from any other at its offset, None where the log needs no fingerprints.
        copies: Whether a partition holds copies of messages of others of its broker: an id that is known of one of
            these is known. A copy never makes its origin a duplicate: what an earlier life sent of the origin must go
            out as it was.
    """

    columns: Columns
    framer: Framer
    tags: ReadTags
    groups: Mapping[Raw, str | None]
    ids: ReadIds | None = None
    capacity: int = 100_000_000
    bitmap_ids: bool = False
    keys: ReadKeys | None = None
    keep_ms: float | None = None
    digest: Callable[[Message], int] | None = None
    copies: Callable[[TopicPartition], bool] | None = None


class Intake:
    """Sorts runs; keeps the windows of offsets and of ids."""

    def __init__(self, reading: Reading) -> None:
        self._r = reading
        self.positions: Deduplicator[TopicPartition] = Deduplicator(reading.capacity)
        self._settled: dict[TopicPartition, BitMap64] = {}
        """At or above the watermark, by ownerships before: it decides until it is read past."""
        self._chosen: dict[str | None, list[Message]] = {}
        """Messages of the run in hand by group; empty between runs."""
        self._appends: Memo[Callable[[Message], None]] = Memo(
            lambda raw: self._chosen.setdefault(reading.groups[raw], []).append
        )
        self.ids: Deduplicator[TopicPartition] = Deduplicator(
            reading.capacity, bitmap=reading.bitmap_ids, keep_ms=reading.keep_ms
        )

    @property
    def remembers_ids(self) -> bool:
        """Whether messages have ids that are compared here."""
        return self._r.ids is not None

    def forget(self, tp: TopicPartition) -> None:
        """The partition is not ours any more."""
        self.positions.forget(tp)
        self.ids.forget(tp)
        self._settled.pop(tp, None)

    def sort(self, partition: Partition, run: Run, now_ms: float) -> Sorted:
        """Decide every message of a run; intents of an earlier life get theirs here.

        Of a partition that is replaying the run must end below `seen`.

        Raises:
            HoleError: A message was skipped before; the partition must be read again from its watermark.
        """
        result = Sorted()
        messages, settled = self._unseen(partition, run)
        result.duplicate = len(run.messages) - len(messages)
        if not messages:
            return result
        if partition.replaying or settled:
            self._replay(partition, messages, settled, result, now_ms)
        else:
            for group, chosen in self._wanted(partition, messages, result, now_ms):
                fragment = self._fragment(partition.tp, chosen, now_ms)
                if partition.passed:
                    fragment.after = partition.passed.pop(group, -1)
                result.opened.append((group, fragment))
        return result

    def divide(self, run: Run, border: int) -> tuple[Run | None, Run]:
        """What of a run stands below the offset `border`, and the others; `run.last` is not below it."""
        offsets = list(self._r.columns.offsets(run.messages))
        at = bisect_left(offsets, border)
        if not at:
            return None, run
        below = Run(run.tp, run.messages[:at], run.first, offsets[at - 1])
        return below, Run(run.tp, run.messages[at:], offsets[at], run.last)

    def _unseen(self, partition: Partition, run: Run) -> tuple[list[Message], BitMap64 | None]:
        """What was not handed over before in this ownership; and of its offsets those settled before it, if any."""
        window = self._window(run.tp)
        messages, keep_from = run.messages, partition.committed
        if run.first >= partition.position:
            if run.last - run.first + 1 == len(messages):
                window.add_range(run.first, run.last, keep_from)
            else:
                window.update(list(self._r.columns.offsets(messages)), keep_from)
            return messages, self._settled_within(run.tp, run.first, run.last)
        offsets = list(self._r.columns.offsets(messages))
        border = bisect_left(offsets, partition.position)
        for offset in offsets[:border]:
            if offset >= keep_from and offset not in window:
                raise HoleError(f"{run.tp}@{offset}")
        window.update(offsets[border:], keep_from)
        return messages[border:], self._settled_within(run.tp, partition.position, run.last)

    def _window(self, tp: TopicPartition) -> RotatingBitmap:
        window = self.positions.window(tp)
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
        settled = window.pop_from(partition.position)
        known = len(settled)
        settled.remove_range(below, 1 << 63)
        if settled:
            self._settled[partition.tp] = settled
        return len(settled) < known

    def _wanted(
        self, partition: Partition, messages: list[Message], result: Sorted, now_ms: float
    ) -> Iterator[tuple[str, list[Message]]]:
        raws = self._r.tags(partition.tp, messages)
        if self._r.ids is not None:
            wanted = [
                (raw, message) for raw, message in zip(raws, messages, strict=True) if self._r.groups[raw] is not None
            ]
            result.filtered += len(messages) - len(wanted)
            new = self._new_ids(partition, [message for _, message in wanted], result, now_ms)
            raws, messages = (
                [raw for raw, _ in compress(wanted, new)],
                [message for _, message in compress(wanted, new)],
            )
        deque(map(call, map(self._appends.__getitem__, raws), messages), 0)  # a loop in C: 94 ns against 112
        for group, chosen in self._chosen.items():
            if group is None:
                result.filtered += len(chosen)
            elif chosen:
                yield group, chosen.copy()
            chosen.clear()
        if len(self._chosen) > CHOSEN_MAX:
            self._chosen.clear()
            self._appends.clear()

    def _new_ids(self, partition: Partition, messages: list[Message], result: Sorted, now_ms: float) -> list[bool]:
        new = self._take(partition, messages, self._ids(partition.tp, messages), now_ms)
        result.duplicate += len(new) - sum(new)
        return new

    def _ids(self, tp: TopicPartition, messages: Sequence[Message]) -> Sequence[int | None]:
        assert self._r.ids is not None
        return self._r.ids(tp, messages) if messages else ()

    def _take(
        self, partition: Partition, messages: Sequence[Message], numbers: Sequence[int | None], now_ms: float
    ) -> list[bool]:
        """For each of these, in the order of their offsets, whether its id is new."""
        last = max(self._r.columns.offsets(messages[-1:]), default=-1)
        moment = Moment(last, partition.committed, now_ms)
        known = self._known_of_origins(partition.tp, numbers)
        others = [None if number in known else number for number in numbers] if known else numbers
        new = self.ids.window(partition.tp).take(others, moment)
        return [one and number not in known for one, number in zip(new, numbers, strict=True)] if known else new

    def has_copies(self, tp: TopicPartition) -> bool:
        """Whether ids of a partition are looked up in others of its broker, which must have been read again before."""
        return self._r.copies is not None and self._r.copies(tp)

    def _known_of_origins(self, tp: TopicPartition, numbers: Sequence[int | None]) -> set[int]:
        if not self.has_copies(tp):
            return set()
        remembered = self.ids.keys()
        windows = [self.ids.window(key) for key in remembered if key.broker == tp.broker and key != tp]
        return {n for n in numbers if n is not None and any(n in window for window in windows)}

    def _replay(
        self, partition: Partition, messages: list[Message], settled: BitMap64 | None, result: Sorted, now_ms: float
    ) -> None:
        tp = partition.tp
        table: defaultdict[str | None, list[Message]] = defaultdict(list)
        for message, raw in zip(messages, self._r.tags(tp, messages), strict=True):
            table[self._r.groups[raw]].append(message)
        result.filtered += len(table.pop(None, ()))
        placed: list[_Placed] = []
        for group, chosen in table.items():
            assert group is not None
            placed += self._place(partition, group, chosen, settled)
        if self._r.ids is not None:
            placed = self._without_known_ids(partition, placed, result, now_ms)
        for group, place, chosen in placed:
            if place is None:
                result.duplicate += len(chosen)
                partition.pass_over(group, list(self._r.columns.offsets(chosen)))
                continue
            fragment = self._fragment(tp, chosen, now_ms)
            if isinstance(place, Lane):
                fragment.after = partition.passed.pop(group, -1)
                result.opened.append((group, fragment))
            else:
                assert place.collected is not None
                place.collected.setdefault(group, Buffer(self._r.framer.separator)).add(fragment)
                result.collected_bytes += held_bytes(fragment)

    def _place(
        self, partition: Partition, group: str, messages: list[Message], settled: BitMap64 | None
    ) -> Iterator[_Placed]:
        """Where a group's messages belong: what an intent covers is never thinned, and else the window decides."""
        offsets = list(self._r.columns.offsets(messages))
        for place, start, stop in partition.place(group, offsets):
            known = [offset in settled for offset in offsets[start:stop]] if settled else [False]
            if isinstance(place, Intent) and not all(known):
                place.fresh.add(group)
            if not isinstance(place, Lane) or not any(known):
                yield group, place, messages[start:stop]
                continue
            at = start
            for is_known, run in groupby(known):
                yield group, None if is_known else place, messages[at : (at := at + len(list(run)))]

    def _without_known_ids(
        self, partition: Partition, placed: list[_Placed], result: Sorted, now_ms: float
    ) -> list[_Placed]:
        """Leave out duplicates by id; in offset order, so that the same twin goes out as in the first life.

        What is settled by position makes later twins duplicates, whether or not its id reached the journal; an earlier
        twin stays what it is: the settled one may have been its duplicate.
        """
        messages = [message for _, _, chosen in placed for message in chosen]
        settled = [place is None for _, place, chosen in placed for _ in chosen]
        order = sorted(range(len(messages)), key=list(self._r.columns.offsets(messages)).__getitem__)
        messages = [messages[i] for i in order]
        numbers = self._ids(partition.tp, messages)
        fresh = [True] * len(messages)
        for i, number, new in zip(order, numbers, self._take(partition, messages, numbers, now_ms), strict=True):
            if not settled[i]:
                fresh[i] = new
                result.duplicate += not new
            elif new and number is not None:
                partition.settled_ids.append(number)
        kept, at = [], 0
        for group, place, chosen in placed:
            rest = [message for i, message in enumerate(chosen, at) if fresh[i]]
            at += len(chosen)
            if rest:
                kept.append((group, place, rest))
        return kept

    def _fragment(self, tp: TopicPartition, messages: list[Message], now_ms: float) -> Fragment:
        data, odd = self._r.framer.frame(tp, messages)
        offsets: array[int] = array("q", self._r.columns.offsets(messages))
        ids = None
        if self._r.ids is not None:
            ids = array("q", [NO_ID if number is None else number for number in self._r.ids(tp, messages)])
        keys = b"" if self._r.keys is None else self._r.keys(tp, messages)
        unframeable: Sequence[int] = ()
        if odd:
            unframeable = array("q", [offsets[i] for i in odd])
            left_out = set(odd)
            keep = [i for i in range(len(messages)) if i not in left_out]
            offsets = array("q", [offsets[i] for i in keep])
            ids = ids and array("q", [ids[i] for i in keep])
            keys = pick_keys(keys, keep)
        return Fragment(offsets, data, ids, unframeable, now_ms, keys)
