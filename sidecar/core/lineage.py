"""Decides which memory of a partition is newer, the broker's or the state folder's, and where to continue. Values only.

The broker may lose its newest commits: a coordinator fails over uncleanly, or `__consumer_offsets` is restored from an
older copy. So each commit has a stamp, and the folder keeps the newest state with the stamps that it came after. A log
may lose its end as well, and get other messages at the same offsets; so the folder keeps fingerprints of messages, and
its memory beyond the broker's commit is trusted as far as the log still has those messages.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple, Protocol

from sidecar.core.partition_state import PartitionState

TOKEN_BITS = 48
ANCESTORS_MAX = 64
ANCESTORS_NAMED = 8
"""Number of ancestors that a commit names beside its parent: an owner without a folder knows only these."""
FINGERPRINTS_MAX = 48


class Stamp(NamedTuple):
    """Identity of a commit: the token of the ownership that made it, and its number there, counted from 1."""

    token: int
    number: int


class Fingerprint(NamedTuple):
    """Identity of the message at an offset: 64 bits over leader epoch, timestamp, key, headers and value."""

    offset: int
    digest: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """The origin of an ownership's state.

    Args:
        token: Random bits of its own, for the stamps of its commits.
        parent: The stamp of the commit that it found, None if that had none.
        ancestors: The highest number, by token, of the commits that its state came after; oldest first.
        fingerprints: Fingerprints of the log as read so far, oldest first.
        durable: Whether the broker has the same state. Intents that only the folder has must be committed before their
            parts are sent, or a successor without the folder would not know them.
    """

    token: int = 0
    parent: Stamp | None = None
    ancestors: Mapping[int, int] = field(default_factory=dict)
    fingerprints: tuple[Fingerprint, ...] = ()
    durable: bool = True

    @property
    def named(self) -> tuple[Stamp, ...]:
        """The newest ancestors beside the parent, oldest first: those that a commit names."""
        stamps = [Stamp(*each) for each in self.ancestors.items()]
        return tuple([each for each in stamps if each != self.parent][-ANCESTORS_NAMED:])


@dataclass(frozen=True, slots=True)
class Committed:
    """The state at the broker."""

    state: PartitionState
    stamp: Stamp | None = None
    parent: Stamp | None = None
    ancestors: tuple[Stamp, ...] = ()
    """Commits before the parent, oldest first."""

    @property
    def line(self) -> list[Stamp]:
        """All commits that are known of its line, oldest first."""
        return [each for each in (*self.ancestors, self.parent, self.stamp) if each is not None]


@dataclass(frozen=True, slots=True)
class Remembered:
    """The state in the folder: the one of this host's newest acknowledged commit."""

    state: PartitionState
    stamp: Stamp
    ancestors: Mapping[int, int] = field(default_factory=dict)
    fingerprints: tuple[Fingerprint, ...] = ()

    @property
    def known_below(self) -> int:
        """Offset below which the window is valid: above all messages read, if they were read before a rewind."""
        return max(self.state.seen, self.fingerprints[-1].offset + 1 if self.fingerprints else 0)


class Basis(enum.Enum):
    """Result of the comparison of two states."""

    BROKER = "broker"
    FOLDER = "folder"
    BOTH = "both"
    """Neither came after the other: after a rewind, another member continued from the older state."""
    UNKNOWN = "unknown"
    """The commit names no commit that the folder knows: more owners came in between than a commit names."""


class ComparedLog(Protocol):
    """A partition's log as it is at the broker now."""

    @property
    def low(self) -> int:
        """The first offset that can be read."""
        ...

    @property
    def high(self) -> int:
        """The offset that the next message gets."""
        ...

    def has(self, mark: Fingerprint) -> bool | None:
        """Whether the same message is at this offset; None if the offset has no message any more."""
        ...

    def confirm_end(self, seen: int) -> None:
        """Raise a retriable error unless it is certain that the log ends before `seen`."""
        ...


class Recalled(NamedTuple):
    """The state to continue from, and the reason.

    Args:
        whose: The owner of the state.
        settled_below: Offset below which the folder's window is valid; above it the window is ignored.
        fresh: Whether earlier names must not be used again, because other messages are at their offsets.
        agreed: Offset up to which the log is unchanged: that of the last fingerprint if none differs, -1 if all differ,
            None if nothing was or could be compared.
        compared: Whether a comparison was tried, because the folder has progress beyond the broker's commit.
    """

    state: PartitionState
    whose: Basis
    settled_below: int
    fresh: bool
    agreed: int | None = None
    compared: bool = False

    @property
    def is_committed(self) -> bool:
        """Whether the broker has this state."""
        return self.whose in (Basis.BROKER, Basis.UNKNOWN)


def recall(
    committed: Committed | None, memory: Remembered | None, log: ComparedLog, *, is_outdated: bool = False
) -> Recalled:
    """Choose the state to continue from.

    Args:
        committed: The broker's state; None if it has no commit any more.
        memory: The folder's state, of the same incarnation.
        is_outdated: Whether it is known that another member continued from a commit before the folder's, though the
            broker may have lost that member's commits as well.
    """
    state = committed.state if committed is not None else PartitionState(log.low, log.low)
    whose = basis(committed, memory)
    if whose is Basis.FOLDER and is_outdated:
        whose = Basis.BOTH
    if memory is not None and whose is Basis.UNKNOWN:
        # The commit has all that the folder has, or is of a line of its own: then messages that the folder calls
        # settled may have been put or parked, and later owners have removed those.
        memory = None
    seen = state.seen if memory is None or whose is Basis.BROKER else max(state.seen, memory.state.seen)
    cut = seen > log.high
    if cut:
        log.confirm_end(seen)
    if memory is None or (whose is Basis.BROKER and not cut and memory.known_below <= state.seen):
        return Recalled(state, whose, 0 if cut else state.seen, cut)
    agreed = _agreed(memory, log)
    if committed is None:  # the topic is the same: messages missing after retention or compaction prove no other log
        agreed = -1 if agreed is None and cut else agreed
    elif agreed is None:
        return Recalled(state, whose, 0, cut, compared=True)
    # The log differs somewhere between `agreed` and the next fingerprint: no message read there is trusted. Nor is any
    # name, even if the logs differ beyond all that the states show: there it was read and sent before a rewind.
    if agreed is not None and (cut or agreed < memory.fingerprints[-1].offset):
        start = min(max(state.watermark, memory.state.watermark), agreed + 1)
        return Recalled(PartitionState(start, start), whose, agreed + 1, fresh=True, agreed=agreed, compared=True)
    if whose is Basis.FOLDER:
        state = memory.state
    elif whose is Basis.BOTH:
        # The other member has read again what this one had parked or held: it removed that, or it is void for it.
        if memory.state.parked or memory.state.has_local:
            return Recalled(state, whose, 0, fresh=False, agreed=agreed, compared=True)
        state = _settled_to(state, memory.state.watermark)
    return Recalled(state, whose, memory.known_below, fresh=False, agreed=agreed, compared=True)


def basis(committed: Committed | None, memory: Remembered | None) -> Basis:
    """Compare the two states."""
    if committed is None:
        return Basis.FOLDER
    if memory is None or memory.state.seen <= committed.state.watermark:
        return Basis.BROKER
    stamp, own = committed.stamp, memory.stamp
    if stamp is not None:
        if any(each.token == own.token and each.number >= own.number for each in committed.line):
            return Basis.BROKER
        if stamp.token == own.token or stamp.number <= memory.ancestors.get(stamp.token, 0):
            return Basis.FOLDER
    if memory.state.watermark >= committed.state.seen and not memory.state.shares_parked:
        return Basis.FOLDER
    return Basis.BOTH if _forked(committed, memory) else Basis.UNKNOWN


def _forked(committed: Committed, memory: Remembered) -> bool:
    """Whether it is certain that a state that did not come before is not a later one either.

    No line goes back. A commit names its line without a gap, so the folder would be in it behind a common commit.
    """
    if memory.state.watermark > committed.state.watermark or memory.state.seen > committed.state.seen:
        return True
    known = {**memory.ancestors, memory.stamp.token: memory.stamp.number}
    return any(each.number <= known.get(each.token, 0) for each in committed.line)


def _agreed(memory: Remembered, log: ComparedLog) -> int | None:
    """`Recalled.agreed`: messages deleted by retention prove nothing; messages missing at the end are a difference."""
    compared = False
    for mark in reversed(memory.fingerprints):
        if mark.offset < log.low:
            break
        same = log.has(mark) if mark.offset < log.high else False
        if same:  # messages removed by compaction prove nothing against earlier ones
            return mark.offset if compared else memory.fingerprints[-1].offset
        compared |= same is not None
    return -1 if compared else None


def _settled_to(state: PartitionState, watermark: int) -> PartitionState:
    """The same state with all below `watermark` settled, except what a part needs to be whole."""
    shared = [each for each in state.shared if each.last >= watermark]
    lanes = {}
    for key, lane in state.lanes.items():
        opened = None if lane.open_from is None else max(lane.open_from, watermark)
        intents = tuple(intent for intent in lane.intents if intent[1] >= watermark)
        if opened is not None or intents:
            lanes[key] = lane._replace(open_from=opened, intents=intents)
    firsts = [each.first for each in shared] + [first for lane in lanes.values() for first, _ in lane.intents]
    low = max(state.watermark, min([watermark, *firsts]))
    shared_from = None if state.shared_from is None else max(state.shared_from, low)
    return replace(
        state, watermark=low, seen=max(state.seen, low), lanes=lanes, shared_from=shared_from, shared=tuple(shared)
    )


def inherited(committed: Committed | None, memory: Remembered | None) -> dict[int, int]:
    """The commits that a state made from these two comes after: the highest number by token, oldest first."""
    stamps: list[Stamp] = []
    if memory is not None:
        stamps += [*(Stamp(*each) for each in memory.ancestors.items()), memory.stamp]
    if committed is not None:
        stamps += committed.line
    table: dict[int, int] = {}
    for each in stamps:
        table[each.token] = max(each.number, table.pop(each.token, 0))
    return dict(list(table.items())[-ANCESTORS_MAX:])


def extended(trail: Iterable[Fingerprint], newest: Fingerprint) -> tuple[Fingerprint, ...]:
    """Add the fingerprint of the last message read, perhaps once more; those beyond it stay. All are oldest first.

    Their distances grow: they are dense where the log was read last, thin where it was read long ago.
    """
    kept = list(trail)
    index = bisect_left(kept, newest.offset, key=attrgetter("offset"))
    kept[index : index + (index < len(kept) and kept[index].offset == newest.offset)] = [newest]
    # Drop a fingerprint if its neighbours are closer together than half the distance from the older one to the end.
    for i in range(index - 1, 0, -1):
        if 2 * (kept[i + 1].offset - kept[i - 1].offset) <= newest.offset - kept[i - 1].offset:
            del kept[i]
    return tuple(kept[-FINGERPRINTS_MAX:])
