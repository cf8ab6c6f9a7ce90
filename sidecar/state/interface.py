"""Contents of the state, and its only interface. Must not contain storage, threads or logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from sidecar.core.records import Attempt, DeadLetter, TopicPartition
from sidecar.errors import StateError
from sidecar.owner import Owner

if TYPE_CHECKING:
    from sidecar.core.windows.idruns import SortedRun


@dataclass(slots=True)
class Rules:
    """The 4-byte hash of the rules that each commit names, and its intents need. A reload may replace it."""

    digest: bytes


DEAD_LETTERS_BYTES_MAX = 1 << 30
"""Maximum size of rows and envelopes in the state folder; further dead letters are refused, never dropped."""
LETTER_OVERHEAD_BYTES = 256
"""Size counted for a dead letter beside its row and envelope, so that the number of tiny letters is bounded too."""


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """State of a partition at one instant; `bitmaps` are the younger and the older generation, opaque here."""

    tp: TopicPartition
    topic_id: str
    incarnation: int
    watermark: int
    floor: int
    bitmaps: tuple[bytes, bytes]


class ProgressKey(NamedTuple):
    """Key of a progress row: of a partition, or of another kind of row that a source keeps."""

    topic: str
    number: int
    label: str = ""
    """The partition's broker, or the kind of the row; no source has both."""

    @classmethod
    def of(cls, tp: TopicPartition) -> Self:
        """The key of a partition's row."""
        return cls(*tp)

    @property
    def tp(self) -> TopicPartition:
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
    """Time at which the first id of each generation was kept, in milliseconds since the epoch."""
    problem: str = ""
    """The reason why they could not be merged in files; empty if there is none."""


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A dead letter as stored; `identity` identifies it, `id` is its place in the list."""

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
        """The stored form of a dead letter.

        Args:
            at_ms: Wall time in milliseconds, used if the message was never sent.
            envelope: The message with its origin, key, headers and value, so that it can be sent again.
        """
        last = letter.attempts[-1] if letter.attempts else None
        topic, partition, broker = letter.tp
        first_at_ms = letter.attempts[0].at_ms if letter.attempts else at_ms
        return cls(
            topic, partition, letter.offset, letter.scope, letter.group, letter.reason, last.status if last else None,
            letter.attempts, first_at_ms, letter.row, envelope, broker,
        )  # fmt: skip

    @property
    def tp(self) -> TopicPartition:
        """The partition, or the delayed messages of one."""
        return TopicPartition(self.topic, self.partition, self.broker)

    @property
    def identity(self) -> tuple[str, str, int, str, int]:
        """Identity of the letter: letters with the same identity are the same letter."""
        return (self.scope, self.topic, self.partition, self.broker, self.offset)

    @property
    def size_bytes(self) -> int:
        """Size of the letter, as counted towards `DEAD_LETTERS_BYTES_MAX`."""
        return LETTER_OVERHEAD_BYTES + len(self.row or b"") + len(self.envelope or b"")


class Damage(NamedTuple):
    """Stored data that was no longer usable, for the log."""

    what: str
    where: str
    reason: str
    outcome: str


class NoStoredIds:
    """The settled message ids of a `State`; here those of an owner that remembers none. `IdStore` stores them."""

    def bind(self, cluster_id: str, group_id: str, *, ours: bool) -> None:
        """Drop the ids of another owner; those without an owner are kept if they are `ours`."""

    def forget_database(self) -> None:
        """Adapt to a new database, in which nothing is stored."""

    def append(self, segments: Iterable[IdSegment]) -> None:
        """Add settled message ids to their generations, in one transaction."""
        raise NotImplementedError(segments)

    def drop_before(self, tp: TopicPartition, generation: int) -> None:
        """Drop all generations below `generation`."""

    def load(self, tp: TopicPartition) -> list[tuple[int, bytes]]:  # noqa: ARG002
        """Pairs of generation and ids, by ascending generation; segments of the same generation are in any order."""
        return []

    def sort(self, tp: TopicPartition, *, merge: bool = True) -> StoredIds:  # noqa: ARG002
        """All ids that were appended and not dropped, sorted; may be called from other threads.

        Args:
            merge: Merge ids that are in many files, which may take seconds; writes continue meanwhile.
        """
        return StoredIds({}, {})

    def copy(self, source: TopicPartition, target: TopicPartition) -> None:
        """Replace the ids of `target` with those of `source`."""

    def stop_sorting(self) -> None:
        """Make a `sort` under way raise `StateError` soon, because the process ends; safe from any thread."""

    def changed(self) -> set[TopicPartition]:
        """Partitions whose ids others modified on disk, which `sort` repairs; quick, safe from any thread."""
        return set()


class Letters(Protocol):
    """The dead letters of a `State`."""

    def put(self, letters: Sequence[StoredLetter]) -> int:
        """Store dead letters and return the number of new ones; raises `StateError` if there is no room for all."""
        ...

    def load(self, limit: int, after: int = 0) -> list[StoredLetter]:
        """Dead letters with an id above `after`, in order of arrival; safe from any thread."""
        ...

    def count(self) -> int:
        """Number of stored dead letters; safe from any thread."""
        ...


class State(Protocol):
    """Everything that survives the process in addition to the broker's data.

    Writes are all or nothing, and durable when the method returns. Every method may raise `StateError`; the state stays
    usable afterwards, and its previous contents are still there.
    """

    @property
    def ids(self) -> NoStoredIds: ...

    @property
    def letters(self) -> Letters: ...

    def bind(self, cluster_id: str, group_id: str) -> bool:
        """Claim the state for a cluster and a consumer group.

        Returns False if it belonged to another cluster: then partitions, progress, ids and the member id were dropped,
        but not the dead letters. An empty cluster id means "unknown" and matches any. Raises `ConfigError` if the state
        belongs to another group.
        """
        ...

    @property
    def cluster_id(self) -> str:
        """Id of the cluster to which `bind` bound the state since it was opened; empty if unbound or unknown."""
        ...

    def member(self) -> tuple[str, str] | None:
        """Consumer group id and member id of the previous process; None if it left no member."""
        ...

    def save_member(self, member: tuple[str, str] | None) -> None:
        """Store group id and member id, so that the next process can evict this member; None if it left by itself."""
        ...

    def save_partitions(self, rows: Iterable[PartitionSnapshot]) -> None:
        """Replace the snapshots of these partitions, in one transaction."""
        ...

    def load_partitions(self) -> dict[TopicPartition, PartitionSnapshot]:
        """All valid snapshots; damaged snapshots are dropped and reported by `take_damages`."""
        ...

    def save_progress(self, rows: Mapping[ProgressKey, str], *, durable: bool = True) -> None:
        """Replace these progress rows, in one transaction.

        An empty text removes the row. Rows that are not durable survive the process, but not always a power loss.
        """
        ...

    def load_progress(self) -> dict[ProgressKey, str]:
        """All valid progress rows; damaged rows are dropped and reported by `take_damages`."""
        ...

    def check_in_place(self) -> None:
        """Raise `StateError` if the next process would not find the written data; quick, safe from any thread."""
        ...

    def take_damages(self) -> list[Damage]:
        """Damages found since the last call."""
        ...

    def close(self) -> None:
        """Release the state; further calls are an error of the caller."""
        ...


def refuse_another_group(place: str, bound: str, wanted: str) -> None:
    """Refuse a state that belongs to another consumer group; raises `ConfigError` if `bound` is another group."""
    Owner(wanted).refuse(Owner(bound), place, "set state.dir so that each group has its own", "move it away")


def no_room_for_letters(place: str, size_bytes: int, size_bytes_max: int) -> StateError:
    """Error for dead letters that would exceed the limit."""
    return StateError(
        f"dead letters in {place} would take {size_bytes} bytes, the limit is {size_bytes_max}; none was dropped",
        hint="read them, then delete them: sidecar dead-letters list, purge; delivery resumes by itself",
    )


def check_ids(ids: bytes) -> None:
    """Raise ValueError unless `ids` is an array of 64-bit integers."""
    if len(ids) % 8:
        raise ValueError(f"{len(ids)} bytes are no array of 64-bit integers")


def same_cluster(bound: str, cluster_id: str) -> bool:
    """Whether two cluster ids may denote the same cluster; the id of brokers that do not report any is empty."""
    return not bound or not cluster_id or bound == cluster_id
