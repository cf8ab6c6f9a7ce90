"""Requests of the core to the shell. Values only."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sidecar.core.claims import ClaimEnd, Want
from sidecar.core.lineage import Lineage, Stamp
from sidecar.core.partition_state import PartitionState
from sidecar.core.parts import Batch
from sidecar.core.records import DeadLetter, Message, Parked, TopicPartition

FieldValue: TypeAlias = str | int | float | None
"""Value of a field of a log event."""


@dataclass(frozen=True, slots=True)
class CommitItem:
    """A partition's watermark and state, to be committed; `scope` names the ownership's incarnation."""

    tp: TopicPartition
    scope: str
    state: PartitionState
    generation: int = 0
    """Generation of the window that `ids` belong to."""
    ids: array[int] | None = None
    """Message ids settled since the last commit: durable in the journal before the commit is sent."""
    marks: tuple[ClaimEnd, ...] = ()
    """Claims that ended since the last commit: durable in the ledger before the commit is sent."""
    stamp: Stamp | None = None
    lineage: Lineage | None = None
    """The commits that the ownership's state came after, with the log's fingerprints so far."""
    puts: bool = False
    """Whether messages or cancellations are on the way to the store: durable there before the commit is sent."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Make these states durable; answer with `Pipeline.committed`. At most one is outstanding."""

    items: list[CommitItem]


@dataclass(frozen=True, slots=True)
class Send:
    """Deliver this batch; answer with `Pipeline.answered`."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim these rows in one transaction of the ledger; answer with `Pipeline.claimed`."""

    number: int
    wants: list[Want]


@dataclass(frozen=True, slots=True)
class StoreDeadLetters:
    """Make these dead letters durable; answer with `Pipeline.stored`."""

    token: int
    letters: list[DeadLetter]


@dataclass(frozen=True, slots=True)
class HoldUntilDue:
    """Hold these messages until they are due; answer with `Pipeline.held` once that is durable."""

    tp: TopicPartition
    token: int
    """Rises with each `HoldUntilDue`."""
    messages: Sequence[Message]
    due_ms: Sequence[int]
    tags: Sequence[bytes]
    """Entries of `core.messages.tag_index`, one for each message."""


@dataclass(frozen=True, slots=True)
class CancelHeld:
    """Cancel held messages; answer with `Pipeline.cancelled` once that is durable."""

    tp: TopicPartition
    token: int
    """As in `HoldUntilDue`."""
    names: Mapping[bytes, int]
    """By name, the offset below which messages with that name are cancelled."""


@dataclass(frozen=True, slots=True)
class Park:
    """Keep this part; answer with `Pipeline.parked` once that is durable."""

    tp: TopicPartition
    record: Parked
    rows: bytes


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read the rows of a parked part; answer with `Pipeline.fetched`."""

    tp: TopicPartition
    number: int


@dataclass(frozen=True, slots=True)
class Unpark:
    """Remove parked parts, which have ended or do not count."""

    tp: TopicPartition
    numbers: Sequence[int]


@dataclass(frozen=True, slots=True)
class Flow:
    """Read from all assigned partitions except these."""

    paused: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Reload:
    """Give up the partition and take it again from its committed state."""

    tp: TopicPartition
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """A log event."""

    event: str
    level: str = "info"
    fields: dict[str, FieldValue] = field(default_factory=dict)


Effect: TypeAlias = (
    Commit
    | Send
    | Claim
    | StoreDeadLetters
    | HoldUntilDue
    | CancelHeld
    | Park
    | Fetch
    | Unpark
    | Flow
    | Reload
    | Report
)
