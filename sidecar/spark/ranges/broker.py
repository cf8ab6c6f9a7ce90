"""A broker by ranges of offsets: the requests of jobs, queries and tasks, and the bounds of ranges. Has no client.

A range is some offsets of one partition, without its end. It ends where the log ends, or earlier if a micro-batch would
be too large. `KafkaRanges` and `RocketMqRanges` are values, so that a plan can contain them: a connection is opened in
the process that needs it.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, get_args
from urllib.parse import unquote

from sidecar.core.records import Columns, Message, Run, TopicPartition
from sidecar.errors import UnavailableError
from sidecar.spark.workers import configure_log

if TYPE_CHECKING:
    from sidecar.config.failures import DeadLetterSettings
    from sidecar.config.source.kafka import KafkaSettings
    from sidecar.config.source.rocketmq import RocketMqSettings
    from sidecar.runtime.dead_letters import DeadLetterStore, Keeper

P = TypeVar("P")
T = TypeVar("T")

Places: TypeAlias = dict[str, dict[str, int]]
"""Offsets by topic and `TopicPartition.queue`; for Kafka, this is the JSON form of Spark's connector."""
OnGap: TypeAlias = Literal["stop", "log_start"]
"""The treatment of a partition whose log begins behind the offset up to which it was read."""
ON_GAP: Final = get_args(OnGap)
START_OVER: Final = "start over with another spark.checkpoint"
"""A hint within error texts, since Spark passes on only those."""
RETRY_S = 0.5
PATIENCE_S = 30.0
"""Limit of planning's wait for a cluster that does not answer, in seconds."""


class LogExtent(NamedTuple):
    """The first offset of a log, and the offset of its next message."""

    low: int
    high: int


class Logs(Protocol):
    """Requests to a cluster about the logs that are read. Nothing is open before the first request."""

    def bounds(self) -> Mapping[TopicPartition, LogExtent]:
        """The bounds of all logs; raises `SidecarError` if the cluster does not answer, refuses, or lacks a topic."""
        ...

    def at_time(self, bounds: Mapping[TopicPartition, LogExtent], at_ms: int) -> Mapping[TopicPartition, int]:
        """The first offset of each log that is not older; its end if there is none."""
        ...

    def topic_ids(self, topics: list[str]) -> Mapping[str, str]:
        """The id of each topic; empty where the cluster has none."""
        ...

    def is_read(self, topic: str) -> bool:
        """Whether the settings name this topic."""
        ...

    def close(self) -> None: ...


ReadLane: TypeAlias = Callable[[TopicPartition, int, int], Iterator[Run]]
"""Reads a range, without its end, in C: runs as the lane gives them. The last may have messages behind the range. Take
the next run only when one is done with. Taking them raises `UnavailableError`."""


class RangeMessages(NamedTuple):
    """The messages of a range.

    Args:
        told: The reason why the lane does not read them, empty if it does; None if the settings do not want it.
        lane: Reads a range in C; it may be used instead of these runs; None if Python reads them.
    """

    columns: Columns
    runs: Iterator[Run]
    told: str | None
    lane: ReadLane | None = None


SingleMessages: TypeAlias = tuple[Columns, Callable[[TopicPartition, int], Message | None]]
"""A reader of columns, and a function that returns the message at an offset, None if it is gone; the function raises
`UnavailableError`."""


@dataclass(frozen=True, slots=True)
class BrokerRanges:
    """A cluster, and the topics that are read there; the default answers are those of a broker without topic ids.

    Args:
        row_format: The sink's format; its rows may contain the whole message.
    """

    dead_letters: Literal["state"] | DeadLetterSettings
    row_format: str
    source: KafkaSettings | RocketMqSettings
    topics_key: ClassVar[str]

    @property
    def start(self) -> str | int:
        """Where a new query begins: ``earliest``, ``latest``, or milliseconds since the epoch."""
        return self.source.start

    @property
    def start_timeout_s(self) -> float:
        """Limit of a start's wait for the cluster."""
        return self.source.start_timeout_ms / 1000

    @abstractmethod
    def logs(self) -> Logs:
        """Requests about the logs; the caller closes them."""

    @abstractmethod
    def await_cluster(self) -> str:
        """The cluster's id, once it answers and knows all topics.

        Raises:
            UnavailableError: It does not answer for the whole start-up time.
            CredentialsError: It refuses.
            ConfigError: A setting cannot be used here.
        """

    def refuse_members(self) -> None:
        """Refuse to run beside members of the consumer group: both engines would each deliver everything.

        Raises:
            UnavailableError: The group has members, or the cluster does not report whether it has.
        """
        if count := self._members():
            raise UnavailableError(
                f"the consumer group {self.source.consumer_group} has {count} members: a daemon reads with it",
                hint="stop the daemon first; the checkpoint starts at its committed offsets",
            )

    @abstractmethod
    def _members(self) -> int:
        """Number of the group's members; raises `UnavailableError`."""

    @abstractmethod
    def group_offsets(self) -> Places | None:
        """The offsets of the daemon's consumer group; None if it never had any."""

    def claim(self, cluster_id: str, folder: Path, topic: str, *, refresh: bool = False) -> str:  # noqa: ARG002
        """The identity under which a checkpoint reads the topic: its name, where `read` compares messages.

        Args:
            refresh: Whether to ask the cluster now; otherwise an answer of the last 5 s suffices.
        """
        return topic

    def topic_id(self, topic: str) -> str:  # noqa: ARG002
        """The topic's id at this moment; empty if the cluster has none."""
        return ""

    @abstractmethod
    def read(self, folder: Path, tp: TopicPartition, start: int, end: int) -> RangeMessages:
        """The messages of a range for a job, all from the topic that the job has read before.

        Taking them raises:
            PositionError: The topic was created again since.
            UnavailableError: The broker does not return them.
        """

    @abstractmethod
    def columns(self) -> Columns:
        """A reader of the lists in `messages`, each of which it may read more than once."""

    @abstractmethod
    def messages(self, tp: TopicPartition, start: int, end: int) -> Iterator[Sequence[Message]]:
        """The messages of a range, some at a time.

        Taking them raises:
            UnavailableError: The broker does not return them.
        """

    def lane(self) -> ReadLane | str | None:
        """The reader in C, or the reason why there is none; None if the settings do not want it.

        Raises:
            ConfigError: The settings require it, and it cannot be used here.
        """
        return None

    @abstractmethod
    def single(self, stack: ExitStack) -> SingleMessages:
        """Single messages; the stack closes their client."""

    @abstractmethod
    def open_letters(self, keeper: Keeper, stack: ExitStack) -> DeadLetterStore:
        """The store of dead letters that the settings name, else the keeper's; the stack closes its client."""


def patiently(plan: Callable[[], T], patience_s: float | None = None) -> T:
    """The result of a plan that asks a cluster, repeated while the cluster does not answer.

    Args:
        plan: Makes all requests, so that one time limit holds for all of them.
        patience_s: The limit; None for 30 s.

    Raises:
        UnavailableError: The cluster does not answer within the limit, or lacks a topic.
        SidecarError: It refuses.
    """
    deadline_s = time.monotonic() + (PATIENCE_S if patience_s is None else patience_s)
    while True:
        try:
            return plan()
        except UnavailableError:
            if time.monotonic() >= deadline_s:
                raise
            time.sleep(RETRY_S)


# Offsets of several partitions


def by_topic(offsets: Mapping[TopicPartition, int]) -> Places:
    """These offsets as JSON."""
    places: Places = {}
    for tp, offset in sorted(offsets.items()):
        places.setdefault(tp.topic, {})[tp.queue] = offset
    return places


def by_partition(places: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """The offsets in JSON of `by_topic`."""
    return dict(_each(places))


def _each(places: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[TopicPartition, int]]:
    for topic, by_queue in places.items():
        for queue, offset in by_queue.items():
            broker, _, number = queue.rpartition(":")
            yield TopicPartition(topic, int(number), unquote(broker)), int(offset)


def lows_of(bounds: Mapping[P, LogExtent]) -> dict[P, int]:
    """The first offset of each log."""
    return {place: found.low for place, found in bounds.items()}


def highs_of(bounds: Mapping[P, LogExtent]) -> dict[P, int]:
    """The end of each log."""
    return {place: found.high for place, found in bounds.items()}


def firsts_of(logs: Logs, bounds: Mapping[TopicPartition, LogExtent], start: str | int) -> dict[TopicPartition, int]:
    """The start of a new query in each log, by `BrokerRanges.start`."""
    if isinstance(start, int):
        return dict(logs.at_time(bounds, start))
    return lows_of(bounds) if start == "earliest" else highs_of(bounds)


def ends_of(begun: Mapping[P, int], ends: Mapping[P, int], most: int | None) -> dict[P, int]:
    """The ends of ranges of about `most` offsets together (None: all); partitions with more lag get more of it."""
    lag = {p: end - begun[p] for p, end in ends.items()}
    total = sum(lag.values())
    if most is None or total <= most:
        return dict(ends)
    return {p: begun[p] + min(behind, -(-most * behind // total)) for p, behind in lag.items()}


# Checks of partitions that were read before


def expired(reached: Mapping[P, int], lows: Mapping[P, int]) -> dict[P, int]:
    """The partitions whose log begins behind the offset up to which they were read, each with that beginning."""
    return {p: low for p, low in lows.items() if reached.get(p, low) < low}


def gap(place: object, offset: int, low: int, key: str) -> str:
    """The text about messages that expired before they were read."""
    return (
        f"{place} was read to {offset}, and its log begins at {low}: {low - offset} offsets expired before they were "
        f"read. With {key}: log_start it goes on at {low}, without them"
    )


class ExpiredError(UnavailableError):
    """Messages of a range expired after it was planned; at the next start, `on_gap` decides."""

    def __init__(self, place: object, offset: int, low: int) -> None:
        super().__init__(
            f"{place} was read to {offset}, and its log begins at {low} by now: {low - offset} offsets expired before "
            "they were read. The next start goes on at the log's start if on_gap is log_start, and else says what to do"
        )
        self.low = low


def lost(place: object, offset: int, end: int | None) -> str:
    """The reason why a partition with this end (None if it is gone) cannot be resumed; empty if it can."""
    if end is None:
        return f"{place} was read to {offset} and no longer exists: it was deleted, or may not be read"
    if end < offset:
        return f"{place} ends at {end} and was read to {offset}: it was created again, or lost messages"
    return ""


def within(tp: TopicPartition, committed: int, bounds: LogExtent, *, beyond_at: Literal["start", "end"]) -> int:
    """The group's offset if it is in the log; otherwise start or end of the log, with the daemon's log events.

    Args:
        beyond_at: Where reading goes on if the offset is beyond the log's end.
    """
    import structlog  # processes that only pass ranges on do not need it

    low, high = bounds
    if low <= committed <= high:
        return committed
    at = "start" if committed < low else beyond_at
    fields = {"committed": committed, "log_start": low, "log_end": high, "action": f"going on at the log's {at}"}
    if committed < low:
        structlog.get_logger().error("offset.expired", **tp.fields(), **fields, expired=low - committed)
    else:
        structlog.get_logger().error("partition.truncated", **tp.fields(), **fields)
    return low if at == "start" else high


def report_expired(tp: TopicPartition, offset: int, low: int, form: tuple[str, str]) -> None:
    """Log that a partition resumes at its log's start, as the daemon does.

    Args:
        form: Format and level of the log: planning has a process of its own, which must configure it.
    """
    import structlog

    configure_log(form)
    action = "going on at the log's start"
    structlog.get_logger().error(
        "offset.expired", **tp.fields(), committed=offset, log_start=low, expired=low - offset, action=action
    )
