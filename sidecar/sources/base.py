"""The interface of all sources of messages. It contains no implementation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from typing import NamedTuple, Protocol, runtime_checkable

from sidecar.core.effects import CommitItem
from sidecar.core.lineage import Lineage
from sidecar.core.partition_state import PartitionState
from sidecar.core.records import Columns, Original, Run, TopicPartition

WAKING_POLL_S = 0.2
"""`Source.idle_poll_s` if `poll` returns as soon as a message arrives: each turn of an idle daemon takes CPU time."""

Tell = Callable[[str, str, Mapping[str, object]], None]
"""Writes a log event: its name, its level, its fields."""

SESSION = "session"
"""The key in `Source.problems` of a membership that ended unexpectedly: nothing is read at all."""
POPPED = "popped"
"""The key in `Source.problems` of messages that only another kind of client reads."""
RUN_BYTES = 1 << 20
"""Maximum size of a run of several messages: while its rows are made, its messages are held too."""


def run_length(sizes: Iterable[int]) -> int:
    """The number of the first messages of these sizes that fit into a run; at least one."""
    return max(1, sum(1 for _ in takewhile(RUN_BYTES.__ge__, accumulate(sizes))))


class ReadPast(NamedTuple):
    """Nothing below `position` is left to read, whether messages or gaps."""

    tp: TopicPartition
    position: int


class SettledWindow(NamedTuple):
    """The window of an incarnation, valid for offsets below a limit."""

    incarnation: int
    below: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """A partition that is owned from now on, and its starting state.

    Args:
        scope: Identity of the partition in the names of parts.
        topic_id: Distinguishes a recreated topic; empty if the broker has no topic ids.
        incarnation: Random number, drawn if no valid state was committed.
        resumed: Whether it continues from a predecessor's state, so that its known message ids still identify
            duplicates.
        read_from: The first offset that can be read, at or above the watermark.
        lineage: The commits that precede its state.
        settled: The state folder's window above the watermark, if it is valid.
        held_below: Delayed messages below this offset that this host's store has stay there: no other member read them.
            Only if owners hand on nothing but the offset, and the incarnation is new; else the state decides.
        continues: Whether the state is the last owner's as far as this host knows, though the incarnation may be new,
            since owners hand on nothing but the offset.
        end: The end of the log, if owners hand on nothing but the offset.
        is_remembered: Whether the state is that of the state folder, and the broker's commit is older.
    """

    tp: TopicPartition
    scope: str
    state: PartitionState
    topic_id: str
    incarnation: int
    resumed: bool
    read_from: int
    lineage: Lineage = field(default_factory=Lineage)
    settled: SettledWindow | None = None
    held_below: int | None = None
    continues: bool = False
    end: int | None = None
    is_remembered: bool = False


class Listener(Protocol):
    """Callbacks of a source, always on the thread that calls `poll`, `commit_now` or `close`."""

    def assigned(self, found: Sequence[Assignment]) -> None:
        """These partitions are owned from now on."""
        ...

    def handing_over(self, tps: Collection[TopicPartition]) -> bool:
        """These partitions, all of them, will be revoked soon, and the next owner will know only their watermarks.

        Returns:
            Whether all messages read of them are settled by now. Until then the source asks again between polls.
        """
        ...

    def revoking(self, tps: Collection[TopicPartition]) -> None:
        """These partitions are revoked when this returns: settle and commit as much as possible."""
        ...

    def lost(self, tps: Collection[TopicPartition]) -> None:
        """These partitions already belong to another member: forget them, commit nothing."""
        ...

    def reloading(self, tp: TopicPartition) -> None:
        """This partition is given up and will be taken again from its committed state: forget it, commit nothing."""
        ...

    def committed(self, results: Mapping[TopicPartition, bool], elapsed_s: float) -> None:
        """Handle the end of the commit begun by `commit`; `results` is empty if nothing was left to commit."""
        ...

    def waiting(self, what: str) -> None:
        """Note that the source is opening and waits for `what`."""
        ...

    def event(self, name: str, level: str, fields: Mapping[str, object]) -> None: ...


@runtime_checkable
class TakesBack(Protocol):
    """A source whose broker copies a message that is handed back, for a later delivery or as a dead letter."""

    def send_back(self, tp: TopicPartition, offset: int, level: int, known: str = "") -> bool:
        """Hand a message back; return whether the broker has it as a separate message.

        Args:
            known: Its `Details.offset_message_id`, if the topic may have been recreated since it was read.
        """
        ...


@runtime_checkable
class Remembers(Protocol):
    """A source that continues from the state folder where the broker's commit is older."""

    def distrust(self, tp: TopicPartition) -> None:
        """Take the partition next from the broker's commit: another member continued from that older commit."""
        ...


class Source(Protocol):
    """A source of messages. One thread owns it; only `fetch` may be called from another."""

    columns: Columns
    name: str
    """The kind of broker, in words for an operator."""
    metadata_characters: int
    """Maximum size of a partition's state, known once the source is open."""
    idle_poll_s: float
    """Longest time that `poll` may wait while nothing is in flight."""
    no_lane: str | None = None
    """Why the fast lane does not read, empty if it does; None if there is none for this kind of broker."""

    @property
    def lane_bytes(self) -> int:
        """Memory of the fast lane, without the client's messages."""
        return 0

    @property
    def is_emptied(self) -> bool:
        """Whether the last `poll` left none of the messages that had arrived by then."""
        return True

    def open(self, listener: Listener) -> None:
        """Connect and join the group.

        Raises:
            UnavailableError: The broker cannot be reached, or a topic is unknown, for the whole start-up time.
            CredentialsError: The broker refuses the credentials.
        """
        ...

    def poll(self, timeout_s: float) -> Iterable[Run | ReadPast]:
        """Messages that arrived, in the order of each partition; calls the listener meanwhile."""
        ...

    def commit(self, items: Sequence[CommitItem]) -> None:
        """Begin to make these states durable; `Listener.committed` reports the end."""
        ...

    def commit_now(self, items: Sequence[CommitItem]) -> Mapping[TopicPartition, bool]:
        """Make these states durable after any pending commit, whose end is no longer reported."""
        ...

    def pause(self, tps: Collection[TopicPartition]) -> None:
        """Read from all assigned partitions except these."""
        ...

    def reload(self, tp: TopicPartition) -> None:
        """Give up the partition and take it again from its committed state."""
        ...

    def end_of(self, tp: TopicPartition) -> int | None:  # noqa: ARG002
        """The offset of the partition's next message, as far as known."""
        return None

    def problems(self) -> Mapping[str, str]:
        """Present problems with the broker: a key, and a sentence for an operator."""
        ...

    def fetch(self, tp: TopicPartition, offset: int) -> Original | None:
        """One message as it is at the broker, None if it is gone; may be called from one other thread.

        Raises:
            UnavailableError: The broker does not answer.
        """
        ...

    def close(self) -> None:
        """Leave the group and disconnect; assigned partitions are revoked first."""
        ...
