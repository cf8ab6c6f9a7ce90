"""What the pipeline on Spark asks of a source beside the bounds of its logs. Knows no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sidecar.core.records import Columns, Message, Run, TopicPartition
from sidecar.runtime.dead_letters import DeadLetterStore, Keeper
from sidecar.spark.ranges.logs import Places
from sidecar.spark.run.folder import RunFolder

if TYPE_CHECKING:
    from sidecar.sources.kafka.lane import FastLane


class Found(NamedTuple):
    """The messages of a range.

    Args:
        runs: The messages; they are read as they are taken.
        lane: Reads Kafka in C, also without these runs; None if Python reads.
    """

    columns: Columns
    runs: Iterator[Run]
    told: str | None
    lane: FastLane | None = None


class Single(NamedTuple):
    """Single messages of a source.

    Args:
        message: The message at an offset, None if it is gone; raises `UnavailableError`.
    """

    columns: Columns
    message: Callable[[TopicPartition, int], Message | None]


class RunSource(Protocol):
    """A source."""

    def await_cluster(self) -> str:
        """The cluster's id, once it answers and knows all topics.

        Raises:
            UnavailableError: It does not for the whole start-up time.
            CredentialsError: It refuses.
        """
        ...

    def refuse_members(self) -> None:
        """Refuse to run beside members of the consumer group: both engines would each deliver everything.

        Raises:
            UnavailableError: The group has members.
        """
        ...

    def group_offsets(self) -> Places | None:
        """The offsets of the daemon's consumer group; None if it never had any.

        Raises:
            UnavailableError: The cluster does not answer.
        """
        ...

    def claim(self, cluster_id: str, folder: RunFolder, topic: str, *, anew: bool = False) -> str:
        """The identity under which this checkpoint reads the topic.

        Args:
            anew: Whether to ask the cluster now; else what was found in the last 5 s is enough.

        Raises:
            PositionError: The topic was created again since.
            UnavailableError: The cluster does not answer.
        """
        ...

    def read(self, folder: RunFolder, tp: TopicPartition, start: int, end: int) -> Found:
        """The messages of a range, without `end`.

        Taking them raises:
            PositionError: The topic was created again since.
            UnavailableError: The broker does not return them.
        """
        ...

    def single(self, stack: ExitStack) -> Single:
        """Single messages; the stack closes their client."""
        ...

    def open_letters(self, keeper: Keeper, stack: ExitStack) -> DeadLetterStore:
        """The store of dead letters that the settings name.

        Args:
            keeper: Stores them if no topic is named.
            stack: Closes the client that reads messages again.
        """
        ...
