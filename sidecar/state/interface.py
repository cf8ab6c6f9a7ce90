"""What the state keeps and the one interface to it; no storage, no thread, no log may come in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from sidecar.core.records import Attempt, DeadLetter, TopicPartition
from sidecar.core.windows.idruns import SortedRun
from sidecar.errors import StateError

DEAD_LETTERS_BYTES_MAX = 1 << 30
"""Rows and envelopes kept in the state folder; one more is refused, never dropped."""
LETTER_OVERHEAD_BYTES = 256
"""What a dead letter counts beyond its row and envelope, so that tiny ones are bounded too."""


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """What is known of a partition at one instant; `bitmaps` are the younger and the older generation, opaque here."""

    tp: TopicPartition
    topic_id: str
    incarnation: int
    watermark: int
    floor: int
    bitmaps: tuple[bytes, bytes]


class ProgressKey(NamedTuple):
    """Names a row of progress: a partition's, or one of another kind that a source keeps beside it."""

    topic: str
    number: int
    label: str = ""
    """A partition's broker, or the row's kind; no source has both."""

    @classmethod
    def of(cls, tp: TopicPartition) -> Self:
        """The row of a partition."""
        return cls(*tp)

    @property
    def tp(self) -> TopicPartition:
        """The partition whose row this is."""
        return TopicPartition(*self)


class IdSegment(NamedTuple):
    """Settled message ids of one partition and generation: an array of native 64-bit integers as bytes."""

    tp: TopicPartition
    generation: int
    ids: bytes


class StoredIds(NamedTuple):
    """A partition's settled message ids, by generation."""

    runs: Mapping[int, Sequence[SortedRun]]
    begun_at_ms: Mapping[int, int]
    """When the first id of a generation was kept, in milliseconds since the epoch."""
    problem: str = ""
    """Why they could not be put together in files."""


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A dead letter as it is kept; `identity` says which, `id` is its place in the list."""

    topic: str
    partition: int
    offset: int
    scope: str
    group_name: str
    reason: str
    status: int | None
    attempts: tuple[Attempt, ...]
    first_at_ms: int
    row: bytes | None
    envelope: bytes | None
    broker: str = ""
    id: int = 0

    @classmethod
    def of(cls, letter: DeadLetter, *, at_ms: int, envelope: bytes | None) -> StoredLetter:
        """The form in which a dead letter is kept.

        Args:
            letter: What the core gave up.
            at_ms: Wall time in milliseconds, used where the letter was never sent.
            envelope: The message with its origin, key, headers and value, so that it can be sent again.
        """
        last = letter.attempts[-1] if letter.attempts else None
        return cls(
            topic=letter.tp.topic,
            partition=letter.tp.partition,
            offset=letter.offset,
            scope=letter.scope,
            group_name=letter.group,
            reason=letter.reason,
            status=last.status if last else None,
            attempts=letter.attempts,
            first_at_ms=letter.attempts[0].at_ms if letter.attempts else at_ms,
            row=letter.row,
            envelope=envelope,
            broker=letter.tp.broker,
        )

    @property
    def identity(self) -> tuple[str, str, int, str, int]:
        """Two letters with the same identity are the same letter."""
        return (self.scope, self.topic, self.partition, self.broker, self.offset)

    @property
    def size_bytes(self) -> int:
        """What the letter counts towards `DEAD_LETTERS_BYTES_MAX`."""
        return LETTER_OVERHEAD_BYTES + len(self.row or b"") + len(self.envelope or b"")


class Damage(NamedTuple):
    """Something stored that could not be used any more, for the log."""

    what: str
    where: str
    reason: str
    outcome: str


class Ids(Protocol):
    """The settled message ids of a `State`."""

    def append(self, segments: Iterable[IdSegment]) -> None:
        """Add settled message ids to their generations, in one transaction."""
        ...

    def drop_before(self, tp: TopicPartition, generation: int) -> None:
        """Forget the generations below this one."""
        ...

    def load(self, tp: TopicPartition) -> list[tuple[int, bytes]]:
        """(generation, ids) with generations rising; within one the segments stand in any order."""
        ...

    def sort(self, tp: TopicPartition, *, merge: bool = True) -> StoredIds:
        """All that was appended and not dropped, sorted; from any other threads.

        Args:
            tp: The partition.
            merge: Put together what lies in many files, which may take seconds; writes go on meanwhile.
        """
        ...

    def copy(self, source: TopicPartition, target: TopicPartition) -> None:
        """Keep of `target` what is kept of `source`, in place of what was there."""
        ...

    def stop_sorting(self) -> None:
        """The process ends: `sort` under way raises `StateError` soon; from any thread."""
        ...

    def changed(self) -> set[TopicPartition]:
        """Partitions whose ids others have touched on the disk: `sort` mends that; quick, from any thread."""
        ...


class Letters(Protocol):
    """The dead letters of a `State`."""

    def put(self, letters: Sequence[StoredLetter]) -> int:
        """Keep these dead letters and return how many were new; raises `StateError` when there is no room for all."""
        ...

    def load(self, limit: int, after: int = 0) -> list[StoredLetter]:
        """Dead letters with an id above `after`, in the order they came; safe from any thread."""
        ...

    def count(self) -> int:
        """Dead letters kept; safe from any thread."""
        ...


class State(Protocol):
    """Everything that outlives the process beside what the broker keeps.

    A method that writes is durable when it returns, and all or nothing. Every method may raise `StateError`; the state
    stays usable afterwards, and what was there before is still there.
    """

    @property
    def ids(self) -> Ids:
        """Settled message ids."""
        ...

    @property
    def letters(self) -> Letters:
        """Dead letters."""
        ...

    def bind(self, cluster_id: str, group_id: str) -> bool:
        """Claim the state for a cluster and a consumer group.

        False: it was another cluster's, so partitions, progress, ids and the member id were dropped; dead letters stay.
        An empty cluster id means "unknown" and fits any. Raises `StateError` when the state is another group's.
        """
        ...

    def member(self) -> tuple[str, str] | None:
        """Group id and consumer group member id of the last life, if it left one."""
        ...

    def save_member(self, group_id: str, member_id: str) -> None:
        """Remember the member id, so that the next life can evict this one."""
        ...

    def forget_member(self) -> None:
        """Nothing is left to evict: this life left the group itself."""
        ...

    def save_partitions(self, rows: Iterable[PartitionSnapshot]) -> None:
        """Replace the snapshots of these partitions, in one transaction."""
        ...

    def load_partitions(self) -> dict[TopicPartition, PartitionSnapshot]:
        """All sound snapshots; damaged ones are dropped and reported by `take_damages`."""
        ...

    def save_progress(self, rows: Mapping[ProgressKey, str], *, durable: bool = True) -> None:
        """Replace these rows of how far partitions are, in one transaction.

        An empty text drops what was there. What is not durable outlives the process, and not always a loss of power.
        """
        ...

    def load_progress(self) -> dict[ProgressKey, str]:
        """What `save_progress` kept; damaged rows are dropped and reported by `take_damages`."""
        ...

    def check_in_place(self) -> None:
        """Raise `StateError` when the next process would not find what is written; quick, safe from any thread."""
        ...

    def take_damages(self) -> list[Damage]:
        """What was found damaged since the last call."""
        ...

    def close(self) -> None:
        """Let go of the state; further calls are a mistake of the caller."""
        ...


def another_group(place: str, bound: str, wanted: str) -> StateError:
    """The error of a state that belongs to another consumer group."""
    return StateError(
        f"{place} belongs to consumer group {bound!r}, not to {wanted!r}",
        hint="give each consumer group its own state.dir, or move this one away if the old group is no longer used",
    )


def no_room_for_letters(place: str, size_bytes: int, size_bytes_max: int) -> StateError:
    """The error of dead letters that would pass the bound."""
    return StateError(
        f"dead letters in {place} would take {size_bytes} bytes, the limit is {size_bytes_max}; none was dropped",
        hint="read them, then delete them: sqlite3 state.db 'DELETE FROM dead_letters'; delivery resumes by itself",
    )


def check_ids(ids: bytes) -> None:
    """Raise ValueError unless `ids` is an array of 64-bit integers."""
    if len(ids) % 8:
        raise ValueError(f"{len(ids)} bytes are no array of 64-bit integers")


def same_cluster(bound: str, cluster_id: str) -> bool:
    """Whether two cluster ids may be of one cluster: brokers that do not tell theirs have an empty one."""
    return not bound or not cluster_id or bound == cluster_id
