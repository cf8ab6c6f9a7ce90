"""Sorts a run: position, cancellation, filter, id, framing. Decides about each message; cuts and sends nothing."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, groupby, repeat
from operator import call, itemgetter, not_

from pyroaring import BitMap64

from sidecar.core.batching import UNFRAMEABLE, held_bytes, pick_keys
from sidecar.core.books import LOOKS
from sidecar.core.intake.known import NoIdentities, Positions
from sidecar.core.intake.reading import ReadingRules
from sidecar.core.messages.fields import Raw
from sidecar.core.messages.tag_index import NO_TAGS
from sidecar.core.messages.tags import Memo
from sidecar.core.partition.holding import Holding
from sidecar.core.partition.partition import Partition
from sidecar.core.parts import Intent, Lane
from sidecar.core.records import NO_ID, Fragment, Message, Run, RunSorter, TopicPartition

FIRST = 1_000
"""Messages read without a wanted one before this is reported: a mistake in the tags would look like an idle topic."""


class Unwanted:
    """Counts messages that no tag group wants, until the first one is wanted."""

    def __init__(self) -> None:
        self.count = 0
        self.is_all = False
        """Whether at least `FIRST` messages were read, and none was wanted."""
        self._any_wanted = False

    def add_messages(self, wanted: int, filtered: int) -> bool:
        """Add messages; return whether `is_all` begins with them."""
        before = self.is_all
        self._any_wanted = self._any_wanted or wanted > 0
        self.count += filtered
        self.is_all = self.count >= FIRST and not self._any_wanted
        return self.is_all and not before


def fragment_of(
    reading: ReadingRules,
    tp: TopicPartition,
    messages: list[Message],
    now_ms: float,
    refused: Mapping[int, str],
) -> Fragment:
    """The fragment of messages that were read together, at least one; an unframeable message has only its offset.

    Args:
        refused: Offsets of messages that are given up, perhaps of others too, with the reasons.
    """
    offsets: array[int] = array("q", reading.columns.offsets(messages))
    reasons = {offset: refused[offset] for offset in offsets if offset in refused} if refused else {}
    if reasons:
        accepted = [message for message, offset in zip(messages, offsets, strict=True) if offset not in reasons]
        rest = fragment_of(reading, tp, accepted, now_ms, {}) if accepted else _without_rows(reading)
        rest.unframeable = {o: reasons.get(o, UNFRAMEABLE) for o in sorted([*rest.unframeable, *reasons])}
        rest.at_ms = now_ms
        return rest
    data, odd = reading.framer.frame(tp.source, messages)
    ids = None
    if reading.ids is not None and not tp.delayed:
        ids = array("q", [NO_ID if number is None else number for number in reading.ids(tp, messages)])
    keys = b"" if reading.keys is None else reading.keys(tp, messages)
    unframeable: Sequence[int] = ()
    if odd:
        unframeable = array("q", [offsets[i] for i in odd])
        left_out = set(odd)
        keep = [i for i in range(len(messages)) if i not in left_out]
        offsets = array("q", [offsets[i] for i in keep])
        ids = ids and array("q", [ids[i] for i in keep])
        keys = pick_keys(keys, keep)
    return Fragment(offsets, data, ids, unframeable, now_ms, keys)


def _without_rows(reading: ReadingRules) -> Fragment:
    return Fragment(array("q"), b"", None if reading.ids is None else array("q"))


CHOSEN_MAX, CHOSEN_CHARACTERS_MAX = 256, 64 << 10
_Placed = tuple[str, Intent | Lane | Holding | None, list[Message]]
"""A group, the owner of its messages (None: they are settled, or held by the store already), and the messages."""


@dataclass(slots=True)
class Sorted:
    """The result of sorting a run."""

    replayed: bool = False
    """Whether an earlier owner had read these messages; only for a tap."""
    duplicate: int = 0
    filtered: int = 0
    judged: int = 0
    """The filtered ones, and those that a tag group wants."""
    is_all_unwanted: bool = False
    """Whether with this run `FIRST` messages were filtered and none was wanted: an operator should know."""
    masked: int = 0
    """Filtered messages that the mask of tags refused."""
    cancelling: int = 0
    """Filtered messages that cancel others; their tags were not read."""
    opened: list[tuple[str, Fragment]] = field(default_factory=list)
    """Groups and fragments for the open lanes."""
    collected_bytes: int = 0
    """Memory of the messages that went to recovered intents."""
    delayed: list[Message] = field(default_factory=list)
    """Messages that the store is to hold, in the order of their offsets."""
    due_ms: dict[int, int] = field(default_factory=dict)
    """Due times by offset, of these messages and of those that a store has already."""
    tags: dict[int, bytes] = field(default_factory=dict)
    """Index entries of the messages' tags for a store, by offset; see `core.messages.tag_index`."""
    refused: dict[int, str] = field(default_factory=dict)
    """Why messages are given up, by offset."""
    cancels: dict[bytes, int] = field(default_factory=dict)
    """By name, the offset below which held messages are cancelled."""


ShowRun = Callable[[ReadingRules, TopicPartition, Sequence[Message], Sorted], None]


class _Appends(Memo[Raw, Callable[[Message], None]]):
    """By raw tags, the function that takes a message into its group. Remembers the refused tags of `RefusedTags` only.

    Args:
        masked: Takes messages whose tags the mask refuses.
    """

    __slots__ = ("_groups", "_may_want", "_plain_mask", "_refused", "_unwanted")

    def __init__(self, reading: ReadingRules, chosen: dict[str | None, list[Message]], masked: list[Message]) -> None:
        self._groups = groups = reading.groups
        super().__init__(lambda raw: chosen.setdefault(groups[raw], []).append)
        self._refused, self._may_want = reading.refused, reading.may_want
        self._unwanted, self._plain_mask = masked.append, reading.plain_mask

    def each(self, raws: Sequence[Raw]) -> Iterable[Callable[[Message], None]]:
        """The functions that take the messages of a run, one for each message."""
        if self._plain_mask is None or self._refused.room:
            return map(self.__getitem__, raws)
        known = list(map(self.get, raws))
        return known if all(known) else self._plain_mask.fill(raws, known, self.__getitem__, self._unwanted)  # type: ignore[return-value]

    def __missing__(self, key: Raw) -> Callable[[Message], None]:
        if self._may_want(key):
            return super().__missing__(key)
        if self._refused.room:
            self._groups[key]  # shows people the first ones, and may remember it
            if key in self._refused:
                self[key] = self._unwanted
        return self._unwanted


def _identities(reading: ReadingRules) -> NoIdentities:
    if reading.ids is None:
        return NoIdentities()
    from sidecar.core.intake.identities import Identities  # imports numpy, which takes 0.1 s

    return Identities(reading, reading.ids)


class Intake:
    """Sorts runs: each message of a run has one outcome, or is in one fragment."""

    def __init__(self, reading: ReadingRules) -> None:
        self.reading = reading
        self.tap: ShowRun | None = None
        """Called with each run and its outcome while a tap is open."""
        self.positions = Positions(reading.columns, reading.capacity)
        """The windows of offsets."""
        self.unwanted = Unwanted()
        """Whether none of the messages read under these rules was wanted."""
        self._chosen: dict[str | None, list[Message]] = {}
        """Messages of the current run by group; empty between runs."""
        self._masked: list[Message] = []
        """Messages of the current run whose tags the mask refused; empty between runs."""
        self._appends = _Appends(reading, self._chosen, self._masked)
        self.refused = dict.fromkeys(LOOKS, 0)
        """Messages that were filtered by their tags, by what refused them."""
        self.identities = _identities(reading)
        """The windows of ids."""

    def change(self, reading: ReadingRules) -> None:
        """Go on with another filter and format; how ids, due times and names are read stays."""
        self.unwanted = Unwanted()
        self.reading = replace(reading, keys=self.reading.keys, odd_ids=self.reading.odd_ids)
        self._chosen.clear()
        self._appends = _Appends(reading, self._chosen, self._masked)

    @property
    def unwanted_tags(self) -> str:
        """The first unwanted tags of messages that were read, for people."""
        return ", ".join(self.reading.unwanted) or "unknown, since the broker filters"

    def passed(self, offsets: int) -> bool:
        """Take offsets without messages; return whether with them all was unwanted, see `Sorted.is_all_unwanted`."""
        return self.reading.filtered_at_broker and self.unwanted.add_messages(0, offsets)

    def forget_partition(self, tp: TopicPartition) -> None:
        """Drop the memory of a partition that is no longer owned."""
        self.positions.forget_partition(tp)
        self.identities.forget_partition(tp)

    def sort(self, partition: Partition, run: Run, now_ms: float) -> Sorted:
        """Decide about every message of a run; recovered intents get their messages here.

        If the partition is replaying, the run must end below `seen`.

        Raises:
            HoleError: A message was skipped before; the partition must be read again from its watermark.
        """
        result = self._sorted(partition, run, now_ms)
        self.refused["mask"] += result.masked
        self.refused["look"] += result.filtered - result.cancelling - result.masked
        if not partition.tp.delayed:
            result.is_all_unwanted = self.unwanted.add_messages(result.judged - result.filtered, result.filtered)
        if self.tap is not None:
            result.replayed = partition.reach.replaying
            self.tap(self.reading, partition.tp, run.messages, result)
        return result

    def _sorted(self, partition: Partition, run: Run, now_ms: float) -> Sorted:
        result = Sorted()
        if (
            run.sorter is not None
            and self.reading.sorting is not None
            and self.tap is None
            and not partition.reach.replaying
            and self.positions.take_whole(partition, run)
        ):
            result.judged = len(run.messages)
            self._sort_by(run.sorter, partition, result, now_ms)
            return result
        messages, settled = self.positions.unseen(partition, run)
        if run.unwanted:
            result.filtered = result.masked = self.positions.not_parked(run.tp, run.unwanted)
        result.duplicate = len(run.messages) - len(messages) + len(run.unwanted) - result.masked
        if self.reading.cancels is not None and not partition.tp.delayed:
            messages = self._without_cancellers(messages, result)
        result.judged = result.filtered + len(messages)
        if not messages:
            return result
        # Of the first message only: one look at each message would cost more than its place in a batch.
        stamp_ms = None if partition.tp.delayed else next(iter(self.reading.columns.timestamps(messages[:1])))
        due: Sequence[int | str | None] = ()
        if self.reading.due is not None and not partition.tp.delayed:
            due = self.reading.due(partition.tp, messages)
        if partition.reach.replaying or settled or any(due):
            self._sort_slowly(partition, messages, settled, due, result, now_ms)
        else:
            for group, chosen in self._wanted(partition, messages, result, now_ms):
                fragment = fragment_of(self.reading, partition.tp, chosen, now_ms, result.refused)
                fragment.after = partition.passed.pop(group)
                result.opened.append((group, fragment))
        for _, fragment in result.opened:
            fragment.stamp_ms = stamp_ms
        return result

    def _sort_by(self, sorter: RunSorter, partition: Partition, result: Sorted, now_ms: float) -> None:
        """Let a run sort itself, of which every message is new."""
        fresh = None
        if self.reading.ids is not None:
            numbers, last = sorter.ids(self.reading.sorting)
            fresh = self.identities.take_all(partition, last, numbers, now_ms)
        found = sorter.sort(self.reading.sorting, fresh)
        result.filtered, result.masked, result.duplicate = found.filtered, found.masked, found.duplicate
        if self.reading.odd_ids is not None:
            self.reading.odd_ids.note(partition.tp, found.odd_ids)
        for rows in found.rows:
            fragment = Fragment(rows.offsets, rows.data, rows.ids, rows.unframeable, now_ms)
            fragment.after, fragment.stamp_ms = partition.passed.pop(rows.group), found.stamp_ms
            result.opened.append((rows.group, fragment))

    def divide(self, run: Run, border: int) -> tuple[Run | None, Run]:
        """Divide a run at the offset `border`: lower messages, if any, and the others; `run.last` is not below it."""
        offsets = list(self.reading.columns.offsets(run.messages))
        index = bisect_left(offsets, border)
        if not index:
            return None, run
        below = Run(run.tp, run.messages[:index], run.first, offsets[index - 1])
        return below, Run(run.tp, run.messages[index:], offsets[index], run.last)

    def _wanted(
        self, partition: Partition, messages: Sequence[Message], result: Sorted, now_ms: float
    ) -> Iterator[tuple[str, list[Message]]]:
        raws = self.reading.tags(partition.tp, messages)
        if self.reading.ids is not None and not partition.tp.delayed:
            others = self.reading.refused.others
            groups = self.reading.groups
            wanted = [(raw, message) for raw, message in zip(raws, messages, strict=True) if groups[raw] is not None]
            result.filtered += len(messages) - len(wanted)
            result.masked += self.reading.refused.count(raws, others)
            asked = [message for _, message in wanted]
            numbers = self.identities.read(partition.tp, asked)
            last = max(self.reading.columns.offsets(asked[-1:]), default=-1)
            new = self.identities.take_ids(partition, last, numbers, now_ms)
            result.duplicate += len(new) - sum(new)
            raws, messages = (
                [raw for raw, _ in compress(wanted, new)],
                [message for _, message in compress(wanted, new)],
            )
        deque(map(call, self._appends.each(raws), messages), 0)  # a loop in C: 94 ns against 112
        result.filtered += len(self._masked)
        result.masked += len(self._masked)
        self._masked.clear()
        characters = 0
        for group, chosen in self._chosen.items():
            characters += len(group or "")
            if group is None:
                result.filtered += len(chosen)
            elif chosen:
                yield group, chosen.copy()
            chosen.clear()
        if len(self._chosen) > CHOSEN_MAX or characters > CHOSEN_CHARACTERS_MAX:
            self._chosen.clear()
            self._appends.clear()

    def _without_cancellers(self, messages: Sequence[Message], result: Sorted) -> Sequence[Message]:
        """Leave out the messages that cancel others, whatever else they have; they are filtered."""
        assert self.reading.cancels is not None
        found = self.reading.cancels(messages)
        if not found:
            return messages
        offsets = list(self.reading.columns.offsets(messages))
        for place, names in found.items():
            result.cancels |= dict.fromkeys(names, offsets[place])
        result.filtered += len(found)
        result.cancelling = len(found)
        return [message for place, message in enumerate(messages) if place not in found]

    def _sort_slowly(
        self,
        partition: Partition,
        messages: Sequence[Message],
        settled: BitMap64 | None,
        due: Sequence[int | str | None],
        result: Sorted,
        now_ms: float,
    ) -> None:
        """Decide about messages that are read again, or of which some are delayed.

        A delayed message is in no part of its partition, so the state does not show it: a store has it, or gets it.
        """
        tp, is_delayed = partition.tp, self._note_due(messages, due, result)
        table: defaultdict[tuple[str | None, bool], list[Message]] = defaultdict(list)
        raws, others = self.reading.tags(tp, messages), self.reading.refused.others
        for message, raw, later in zip(messages, raws, is_delayed, strict=False):
            table[self.reading.groups[raw], later].append(message)
        result.masked += self.reading.refused.count(raws, others)
        if result.due_ms:
            index = self.reading.tag_index
            entries = repeat(NO_TAGS) if index is None else map(index.entries.__getitem__, raws)
            result.tags = dict(zip(self.reading.columns.offsets(messages), entries, strict=False))
        placed: list[_Placed] = []
        for (group, later), chosen in table.items():
            if group is None:
                result.filtered += len(chosen)
            elif later:
                known = partition.holding.known(list(self.reading.columns.offsets(chosen)))
                placed.append((group, None, list(compress(chosen, known))))
                placed.append((group, partition.holding, list(compress(chosen, map(not_, known)))))
            else:
                placed += self._place(partition, group, chosen, settled)
        if self.reading.ids is not None and not partition.tp.delayed:
            placed = self._without_known_ids(partition, placed, result, now_ms)
        for group, owner, chosen in placed:
            if not chosen:
                continue
            if owner is None:
                result.duplicate += len(chosen)
                partition.passed.add_offsets(group, list(self.reading.columns.offsets(chosen)))
                continue
            if isinstance(owner, Holding):
                result.delayed += chosen
                continue
            fragment = fragment_of(self.reading, tp, chosen, now_ms, result.refused)
            if isinstance(owner, Lane):
                fragment.after = partition.passed.pop(group)
                result.opened.append((group, fragment))
            else:
                owner.collect(group, fragment, self.reading.framer.separator)
                result.collected_bytes += held_bytes(fragment)
        offsets = self.reading.columns.offsets(result.delayed)
        result.delayed = [
            message for _, message in sorted(zip(offsets, result.delayed, strict=True), key=itemgetter(0))
        ]

    def _note_due(self, messages: Sequence[Message], due: Sequence[int | str | None], result: Sorted) -> Iterable[bool]:
        """Note due times and refusals in the result; return for each message whether it is delayed."""
        if not any(due):
            return repeat(object=False)
        for offset, when in zip(self.reading.columns.offsets(messages), due, strict=True):
            if isinstance(when, str):
                result.refused[offset] = when
            elif when is not None:
                result.due_ms[offset] = when
        return [isinstance(when, int) for when in due]

    def _place(
        self, partition: Partition, group: str, messages: list[Message], settled: BitMap64 | None
    ) -> Iterator[_Placed]:
        """Where a group's messages belong: intents keep all of their messages, and for others the window decides."""
        offsets = list(self.reading.columns.offsets(messages))
        for owner, start, stop in partition.place(group, offsets):
            known = [offset in settled for offset in offsets[start:stop]] if settled else [False]
            if isinstance(owner, Intent) and not all(known):
                owner.note_fresh(group)
            if not isinstance(owner, Lane) or not any(known):
                yield group, owner, messages[start:stop]
                continue
            begin = start
            for is_known, run in groupby(known):
                end = begin + len(list(run))
                yield group, None if is_known else owner, messages[begin:end]
                begin = end

    def _without_known_ids(
        self, partition: Partition, placed: list[_Placed], result: Sorted, now_ms: float
    ) -> list[_Placed]:
        """Leave out duplicates by id, in offset order, so that the same twin is delivered as before the restart.

        A message that is settled by position makes later twins duplicates, whether or not its id reached the journal.
        It does not affect an earlier twin, whose duplicate it may have been.
        """
        messages = [message for _, _, chosen in placed for message in chosen]
        settled = [owner is None for _, owner, chosen in placed for _ in chosen]
        order = sorted(range(len(messages)), key=list(self.reading.columns.offsets(messages)).__getitem__)
        messages = [messages[i] for i in order]
        numbers = self.identities.read(partition.tp, messages)
        fresh = [True] * len(messages)
        taken = self.identities.take_ids(
            partition, max(self.reading.columns.offsets(messages[-1:]), default=-1), numbers, now_ms
        )
        for i, number, new in zip(order, numbers, taken, strict=True):
            if not settled[i]:
                fresh[i] = new
                result.duplicate += not new
            elif new and number is not None:
                partition.journal(number)
        kept, before = [], 0
        for group, owner, chosen in placed:
            rest = [message for i, message in enumerate(chosen, before) if fresh[i]]
            before += len(chosen)
            if rest:
                kept.append((group, owner, rest))
        return kept
