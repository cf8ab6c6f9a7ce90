"""The one interface to every origin of messages. No implementation may come in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from typing import NamedTuple, Protocol, runtime_checkable

from sidecar.core.effects import CommitItem
from sidecar.core.lineage import Lineage
from sidecar.core.partition_state import PartitionState
from sidecar.core.records import Columns, Details, Header, Run, TopicPartition

WAKING_POLL_S = 0.2
"""`Source.idle_poll_s` where `poll` returns as soon as a message comes: each turn of an idle daemon costs."""

Tell = Callable[[str, str, Mapping[str, object]], None]
"""Writes a log event: its name, its level, its fields."""

SESSION = "session"
"""The key in `Source.problems` of a membership that ended without our doing: nothing is read at all."""
RUN_BYTES = 1 << 20
"""A run of more bytes than these is a single message: while its rows are made its messages are held too."""


def run_length(sizes: Iterable[int]) -> int:
    """How many of the first messages of these sizes fit into a run; one at least."""
    return max(1, sum(1 for _ in takewhile(RUN_BYTES.__ge__, accumulate(sizes))))


class ReadPast(NamedTuple):
    """Nothing below `position` is left to read, whether messages or gaps."""

    tp: TopicPartition
    position: int


class Settled(NamedTuple):
    """The window of an incarnation tells what is settled below an offset."""

    incarnation: int
    below: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """A partition that is ours from now on, and where to go on.

    Args:
        tp: The partition.
        scope: Stands for its identity in the names of parts.
        state: The state to go on from.
        topic_id: Tells a recreated topic, empty where the broker has none.
        incarnation: Drawn when nothing of ours was committed.
        resumed: Whether it goes on from a predecessor's state, so that message ids known of it still tell duplicates.
        read_from: The first offset that can be read, at or above the watermark.
        lineage: From which commits it goes on.
        settled: What the state folder's window tells beyond the watermark, if it counts.
    """

    tp: TopicPartition
    scope: str
    state: PartitionState
    topic_id: str
    incarnation: int
    resumed: bool
    read_from: int
    lineage: Lineage = field(default_factory=Lineage)
    settled: Settled | None = None


class Original(NamedTuple):
    """A message as the broker has it."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    timestamp_ms: int | None
    details: Details | None = None
    """As `Columns.details` has them."""


class Listener(Protocol):
    """What a source tells, always on the thread that calls `poll`, `commit_now` or `close`."""

    def assigned(self, found: Sequence[Assignment]) -> None:
        """These partitions are ours from here on."""
        ...

    def handing_over(self, tps: Collection[TopicPartition]) -> bool:
        """These partitions, all of them, will be revoked soon, and the next owner will know their watermarks alone.

        Returns:
            Whether all that was read of them is settled by now. Until then it is asked again, between polls.
        """
        ...

    def revoking(self, tps: Collection[TopicPartition]) -> None:
        """These partitions are taken away when this returns: settle and commit what can be."""
        ...

    def lost(self, tps: Collection[TopicPartition]) -> None:
        """These partitions are another member's already: forget, commit nothing."""
        ...

    def reloading(self, tp: TopicPartition) -> None:
        """This partition is given up, to be taken again from what is committed: forget, commit nothing."""
        ...

    def committed(self, results: Mapping[TopicPartition, bool], elapsed_s: float) -> None:
        """The commit begun by `commit` ended; nothing is in `results` when nothing was left to commit."""
        ...

    def waiting(self, what: str) -> None:
        """While the source opens: what it waits for at present."""
        ...

    def event(self, name: str, level: str, fields: Mapping[str, object]) -> None:
        """Something for the log."""
        ...


@runtime_checkable
class TakesBack(Protocol):
    """A source whose broker copies a message that is handed back, for a later delivery or as a dead letter."""

    def send_back(self, tp: TopicPartition, offset: int, level: int) -> bool:
        """Hand one message back; whether the broker has it as one message of its own."""
        ...


class Source(Protocol):
    """Where messages come from. One thread owns it; only `fetch` may be called by another."""

    columns: Columns
    name: str
    """The kind of broker, for an operator."""
    metadata_characters: int
    """What a partition's state may take, known once it is open."""
    idle_poll_s: float
    """How long `poll` may wait while nothing is in flight."""

    def open(self, listener: Listener) -> None:
        """Connect and join the group.

        Raises:
            UnavailableError: The broker cannot be reached, or a topic is unknown, for the whole start-up time.
            CredentialsError: The broker refuses the credentials.
        """
        ...

    def poll(self, timeout_s: float) -> Iterable[Run | ReadPast]:
        """What has come, in the order of each partition; serves the listener meanwhile."""
        ...

    def commit(self, items: Sequence[CommitItem]) -> None:
        """Begin to make these states durable; `Listener.committed` tells the end."""
        ...

    def commit_now(self, items: Sequence[CommitItem]) -> Mapping[TopicPartition, bool]:
        """Make these states durable behind any commit begun before, whose end is not told any more."""
        ...

    def pause(self, tps: Collection[TopicPartition]) -> None:
        """Read from all assigned partitions but these."""
        ...

    def reload(self, tp: TopicPartition) -> None:
        """Give the partition up and take it again from what is committed."""
        ...

    def end(self, tp: TopicPartition) -> int | None:
        """The offset that the partition's next message will get, as far as known."""
        ...

    def problems(self) -> Mapping[str, str]:
        """What is wrong with the broker at present: a key, and a sentence for an operator."""
        ...

    def fetch(self, tp: TopicPartition, offset: int) -> Original | None:
        """One message as the broker has it, None when it is gone; from any one other thread.

        Raises:
            UnavailableError: The broker does not answer.
        """
        ...

    def close(self) -> None:
        """Leave the group and disconnect; what is assigned is revoked first."""
        ...
