"""Kafka by ranges of offsets: requests for the driver, the messages of a range for a task. Decides nothing.

A task's client never joins a group. The fast lane reads where it can, and gives the same runs as Python.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import confluent_kafka as ck
import structlog
from confluent_kafka import KafkaError, Message
from confluent_kafka.admin import AdminClient
from typing_extensions import override

from sidecar.config.source.kafka import KafkaSettings
from sidecar.core.records import Columns, Header, Run, TopicPartition
from sidecar.errors import PositionError, UnavailableError
from sidecar.runtime.dead_letters import DeadLetterStore, Keeper
from sidecar.sources.kafka.columns import Failed, KafkaColumns, LaneColumns
from sidecar.sources.kafka.config import client_config, lane_for
from sidecar.sources.kafka.fetch import KafkaFetcher
from sidecar.sources.kafka.group import members_of
from sidecar.sources.kafka.lane import CHUNK_OF_FEW_GROUPS, FastLane
from sidecar.sources.kafka.offsets import Offsets, is_meant
from sidecar.sources.kafka.reach import await_topics, is_credentials, is_forbidden, text_of
from sidecar.sources.kafka.topics import TIMEOUT_S, MadeAgain, TopicIds
from sidecar.spark.ranges.broker import (
    BrokerRanges,
    ExpiredError,
    LogExtent,
    Logs,
    Places,
    RangeMessages,
    ReadLane,
    SingleMessages,
    by_topic,
    within,
)
from sidecar.spark.ranges.gathering import RUN_BYTES, RUN_ROWS, Gathering, gather
from sidecar.spark.ranges.shared import read_or_make

if TYPE_CHECKING:
    import sidecar_fastlane as fastlane

T = TypeVar("T")

REQUEST_S = 10.0
EARLIEST = -2
"""The start of a log, in the offsets of Spark's connector."""
KNOWN_FOR_S = 5.0
"""Time for which an answer about a topic's id is valid, unless a new one is required."""
SILENCE_S = 60.0
"""Time without messages after which the task of an unfinished range fails, and is retried."""
WAIT_S = 0.05
CHUNK_MESSAGES = 500
CHUNK_MESSAGES_MAX = 1_000
"""Limit of messages that become rows of a query at a time: each step has a cost of its own."""
QUEUE_KBYTES = 8 << 10
CLIENT: dict[str, Any] = {
    "auto.offset.reset": "error",
    "enable.partition.eof": True,  # reports that a range has only gaps left
    "fetch.queue.backoff.ms": 10,
    "queued.max.messages.kbytes": QUEUE_KBYTES,
}
_clients: dict[str, TopicIds] = {}
_found: dict[tuple[str, str], tuple[float, str]] = {}
"""Topic ids, shared by the tasks of this worker process."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class KafkaRanges(BrokerRanges):
    """The partitions of some topics.

    Args:
        lane_refusal: The reason why the lane cannot read its messages; empty if it can.
    """

    source: KafkaSettings
    lane_refusal: str
    topics_key: ClassVar = "source.kafka.topics"

    # Requests

    @override
    def logs(self) -> KafkaLogs:
        return KafkaLogs(self.source)

    @override
    def await_cluster(self) -> str:
        if self.source.lane == "on":
            lane_for("on", self.lane_refusal, 0)
        return _await_cluster(self.source)

    @override
    def _members(self) -> int:
        """The broker has 10 s to answer."""
        kafka = self.source
        try:
            return len(members_of(AdminClient(client_config(kafka)), kafka.group_id, REQUEST_S))
        except TimeoutError as error:
            raise _unreachable(kafka, ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT))) from error
        except ck.KafkaException as error:
            if not is_forbidden(error.args[0]):  # describing a group needs a separate permission
                raise _unreachable(kafka, error) from error
            log.warning("members.not_checked", group_id=kafka.group_id, reason=text_of(error.args[0]))
            return 0

    @override
    def group_offsets(self) -> Places | None:
        """`EARLIEST` stands for partitions without a committed offset."""
        with outsider(self.source) as consumer:
            offsets = Offsets(consumer)
            offsets.within(REQUEST_S)
            answers = offsets.committed(offsets.partitions(self.source.topics))
            committed = _known({tp: answer.error or answer.offset for tp, answer in answers.items()})
            there = _known(offsets.bounds([tp for tp, offset in committed.items() if offset >= 0]))
        if not there:
            return None
        known = {tp: within(tp, committed[tp], LogExtent(*found), beyond_at="end") for tp, found in there.items()}
        return by_topic(dict.fromkeys(committed, EARLIEST) | known)

    # Topics that were created again

    @override
    def claim(self, cluster_id: str, folder: Path, topic: str, *, refresh: bool = False) -> str:
        now = _topic_id(self.source, cluster_id, topic, refresh=refresh)
        known = read_or_make(folder / "topics" / topic, now.encode).decode()
        if known != now:
            raise PositionError(
                f"the topic {topic} was deleted and created again: the checkpoint's offsets belong to the old one. "
                "Start over with another spark.checkpoint; nothing was skipped silently"
            )
        return known

    @override
    def topic_id(self, topic: str) -> str:
        return _topic_id(self.source, "", topic, refresh=True)

    # Messages

    @override
    def columns(self) -> Columns:
        return ColumnsOnce()

    @override
    def lane(self) -> ReadLane | str | None:
        lane = self._lane()
        return partial(lane_runs, self.source, lane) if isinstance(lane, FastLane) else lane

    def _lane(self) -> FastLane | str | None:
        lane = lane_for(self.source.lane, self.lane_refusal, QUEUE_KBYTES << 10)
        return lane if isinstance(lane, FastLane) or self.source.lane != "off" else None

    @override
    def read(self, folder: Path, tp: TopicPartition, start: int, end: int) -> RangeMessages:
        lane = self._lane()
        if isinstance(lane, FastLane):
            runs = fetch_by_lane(self.source, lane, tp, start, end)
            return RangeMessages(LaneColumns(), runs, "", partial(lane_runs, self.source, lane))
        return RangeMessages(KafkaColumns(), fetch(self.source, tp, start, end), lane)

    @override
    def messages(self, tp: TopicPartition, start: int, end: int) -> Iterator[list[Message]]:
        return chunks(self.source, tp, start, end, CHUNK_MESSAGES_MAX)

    @override
    def single(self, stack: ExitStack) -> SingleMessages:
        return KafkaColumns(), self._fetcher(stack).message

    @override
    def open_letters(self, keeper: Keeper, stack: ExitStack) -> DeadLetterStore:
        from sidecar.runtime.build import dead_letter_store  # a query delivers nothing

        return dead_letter_store(self.dead_letters, self.row_format, self.source, keeper, self._fetcher(stack).fetch)

    def _fetcher(self, stack: ExitStack) -> KafkaFetcher:
        return stack.enter_context(closing(KafkaFetcher(client_config(self.source))))


class KafkaLogs(Logs):
    """Requests about the logs."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._stack = ExitStack()

    @override
    def bounds(self) -> Mapping[TopicPartition, LogExtent]:
        return self._ask(lambda offsets: known_bounds(offsets, self._kafka))

    @override
    def at_time(self, bounds: Mapping[TopicPartition, LogExtent], at_ms: int) -> Mapping[TopicPartition, int]:
        def times(offsets: Offsets) -> dict[TopicPartition, int]:
            found = {tp: offsets.at_time(tp, at_ms) for tp in bounds}
            return {tp: bounds[tp].high if offset is None else offset for tp, offset in found.items()}

        return self._ask(times)

    @override
    def topic_ids(self, topics: list[str]) -> Mapping[str, str]:
        return {topic: _id_in(topic, answer) for topic, answer in self._ids.find(topics, TIMEOUT_S).items()}

    @override
    def is_read(self, topic: str) -> bool:
        return any(is_meant(pattern, topic) for pattern in self._kafka.topics)

    @cached_property
    def _cluster_id(self) -> str:
        return _await_cluster(self._kafka)

    @cached_property
    def _ids(self) -> TopicIds:
        return TopicIds(AdminClient(client_config(self._kafka)), self._cluster_id, MadeAgain())

    @cached_property
    def _consumer(self) -> ck.Consumer:
        return self._stack.enter_context(outsider(self._kafka))

    def _ask(self, question: Callable[[Offsets], T]) -> T:
        assert self._cluster_id is not None  # it is awaited once: until then, brokers may start and topics be missing
        offsets = Offsets(self._consumer)
        offsets.within(REQUEST_S)
        try:
            return question(offsets)
        except ck.KafkaException as error:
            raise _unreachable(self._kafka, error) from error

    @override
    def close(self) -> None:
        self._stack.close()


# Requests


@contextlib.contextmanager
def outsider(kafka: KafkaSettings, lane: FastLane | None = None, **more: Any) -> Iterator[ck.Consumer]:
    """A consumer that never joins its group, and ends with the block.

    Args:
        lane: Reads in its place, and ends with it; None if nothing does.

    Raises:
        UnavailableError: The broker does not answer a request in the block.
    """
    config = {**client_config(kafka), "group.id": kafka.group_id, "enable.auto.commit": False, **more}
    consumer = ck.Consumer(config) if lane is None else lane.make(lambda plugin: ck.Consumer(config | plugin))
    try:
        yield consumer
    except ck.KafkaException as error:
        raise _unreachable(kafka, error) from error
    finally:
        if lane is not None:
            lane.close()
        consumer.close()


def _unreachable(kafka: KafkaSettings, error: ck.KafkaException) -> UnavailableError:
    return UnavailableError(
        f"Kafka at {kafka.bootstrap_servers} does not answer: {text_of(error.args[0])}",
        hint="check that the broker is running and reachable from here",
    )


def _await_cluster(kafka: KafkaSettings) -> str:
    refusals: list[str] = []

    def failed(error: ck.KafkaError) -> None:
        if is_credentials(error):
            refusals.append(text_of(error))

    with outsider(kafka, error_cb=failed) as client:
        return await_topics(client, kafka, lambda: next(iter(refusals), ""), {}, lambda what: None)


def known_bounds(offsets: Offsets, kafka: KafkaSettings) -> dict[TopicPartition, LogExtent]:
    """The bounds of all partitions that are read."""
    found = _known(offsets.bounds(offsets.partitions(kafka.topics)))
    return {tp: LogExtent(*bounds) for tp, bounds in found.items()}


def _known(answers: Mapping[TopicPartition, T | ck.KafkaError]) -> dict[TopicPartition, T]:
    known: dict[TopicPartition, T] = {}
    for tp, answer in answers.items():
        if isinstance(answer, ck.KafkaError):
            raise ck.KafkaException(answer)
        known[tp] = answer
    return known


def _topic_id(kafka: KafkaSettings, cluster_id: str, topic: str, *, refresh: bool) -> str:
    """The topic's id for a task; empty if the broker has none.

    Args:
        cluster_id: Id of the cluster; empty if it is known to have topic ids.
        refresh: Whether to request it now; otherwise an answer may be 5 s old.
    """
    key = kafka.bootstrap_servers, topic
    at_s, known = _found.get(key, (-KNOWN_FOR_S, ""))
    if not refresh and time.monotonic() - at_s < KNOWN_FOR_S:
        return known
    client = _clients.get(kafka.bootstrap_servers)
    if client is None:
        client = _clients[kafka.bootstrap_servers] = TopicIds(
            AdminClient(client_config(kafka)), cluster_id, MadeAgain()
        )
    known = _id_in(topic, client.find([topic], TIMEOUT_S).get(topic, ""))
    _found[key] = time.monotonic(), known
    return known


def _id_in(topic: str, answer: str | KafkaError) -> str:
    if isinstance(answer, KafkaError):
        raise UnavailableError(f"the broker does not report the id of {topic}: {answer.str()}")
    return answer


# The messages of a range, read by Python


class ColumnsOnce(KafkaColumns):
    """Reads the headers of a list once: tags, ids and rows of a query each need them."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: Sequence[Message] = ()
        self._read: Sequence[Sequence[Header] | None] = ()

    def headers(self, messages: Sequence[Message]) -> Sequence[Sequence[Header] | None]:
        if messages is not self._messages:
            self._messages, self._read = messages, list(super().headers(messages))
        return self._read


def fetch(kafka: KafkaSettings, tp: TopicPartition, start: int, end: int) -> Iterator[Run]:
    """All messages of a range, without `end`, as runs."""
    yield from gather(tp, chunks(kafka, tp, start, end), lambda found: map(len, found), _offset)


def chunks(
    kafka: KafkaSettings, tp: TopicPartition, start: int, end: int, most: int = CHUNK_MESSAGES
) -> Iterator[list[Message]]:
    """All messages of a range, without `end`, at most `most` at a time."""
    with outsider(kafka, **CLIENT) as client:
        client.assign([ck.TopicPartition(tp.topic, tp.partition, start)])
        yield from _messages(client, tp, start, end, most)


def _messages(client: ck.Consumer, tp: TopicPartition, offset: int, end: int, most: int) -> Iterator[list[Message]]:
    chunk, heard_s = CHUNK_MESSAGES, time.monotonic()
    while offset < end:
        messages = client.consume(chunk, WAIT_S)
        if not messages:
            _refuse_silence(heard_s, tp, offset)
            continue
        good = _without_errors(client, messages, tp, offset) if any(map(Message.error, messages)) else messages
        offset = _offset(messages[-1]) + (messages[-1].error() is None)  # an error reports the partition's end
        if offset > end:
            good = [message for message in good if _offset(message) < end]
        if good:
            yield good
            sample = max(len(good[i]) for i in (0, len(good) // 2, -1))  # many messages of 1 MB are too much at once
            chunk = max(1, min(most, (QUEUE_KBYTES << 8) // max(1, sample)))
        heard_s = time.monotonic()  # the receiver may have kept this task waiting


def _refuse_silence(heard_s: float, tp: TopicPartition, offset: int) -> None:
    if time.monotonic() - heard_s > SILENCE_S:
        raise UnavailableError(f"the broker has returned nothing of {tp}@{offset} for {SILENCE_S:g} s")


def _refuse_error(client: ck.Consumer, error: ck.KafkaError | None, tp: TopicPartition, offset: int) -> None:
    """Raise an error in place of a message, unless it is the partition's end; `client` asks where the log starts."""
    if error is None or error.code() == ck.KafkaError._PARTITION_EOF:
        return
    if error.code() == ck.KafkaError._AUTO_OFFSET_RESET:
        low, high = client.get_watermark_offsets(ck.TopicPartition(tp.topic, tp.partition), timeout=REQUEST_S)
        if low > offset:
            raise ExpiredError(tp, offset, low)
        raise UnavailableError(f"{tp}@{offset} cannot be read: its log has the offsets from {low} to {high}")
    raise UnavailableError(f"{tp} cannot be read: {error.str()}")


def _without_errors(client: ck.Consumer, messages: list[Message], tp: TopicPartition, offset: int) -> list[Message]:
    for message in messages:
        _refuse_error(client, message.error(), tp, offset)
    return [message for message in messages if message.error() is None]


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


# The messages of a range, read by the fast lane


class LaneReader:
    """Reads a range by the lane, between `open` and the end of its block."""

    def __init__(self, client: ck.Consumer, lane: FastLane, tp: TopicPartition, offset: int) -> None:
        self.offset = offset
        """The offset behind all messages read."""
        self._client, self._lane, self._tp = client, lane, tp
        self._heard_s = time.monotonic()

    @classmethod
    @contextlib.contextmanager
    def open(cls, kafka: KafkaSettings, lane: FastLane, tp: TopicPartition, start: int) -> Iterator[LaneReader]:
        """A reader whose client and lane end with the block."""
        with outsider(kafka, lane, **CLIENT) as client:
            lane.forward([tp])
            client.assign([ck.TopicPartition(tp.topic, tp.partition, start)])
            lane.forward([tp])
            yield cls(client, lane, tp, start)

    def read(self, most: int, *, more: bool = False) -> list[Run | Failed]:
        """At most `most` messages from `offset` on, in C; nothing if none came yet.

        Args:
            more: Whether they are added to the messages already in C.

        Raises:
            UnavailableError: An error came, or nothing for too long.
        """
        self._refuse_strayed()
        found, _ = self._lane.read(WAIT_S, most, more=more)
        behind = self._behind(found) if found else self.offset
        if behind == self.offset:
            _refuse_silence(self._heard_s, self._tp, self.offset)
            return []
        self.offset = behind
        self.heard()
        return found

    def heard(self) -> None:
        """Restart the time limit: the receiver may have kept this task waiting."""
        self._heard_s = time.monotonic()

    def _behind(self, found: list[Run | Failed]) -> int:
        """The offset behind all of these; the end of a partition is reported at it."""
        for each in found:
            if isinstance(each, Failed):
                _refuse_error(self._client, each.error, self._tp, self.offset)
        last = found[-1]
        return last.offset if isinstance(last, Failed) else last.last + 1

    def _refuse_strayed(self) -> None:
        """Serve the client; an error beside the messages ends the task, as does a message that bypassed the lane."""
        message = self._client.poll(0)
        if message is None:
            return
        if message.error() is None:
            raise UnavailableError(f"{self._tp}@{message.offset()} went past the fast lane")
        _refuse_error(self._client, message.error(), self._tp, self.offset)


def fetch_by_lane(kafka: KafkaSettings, lane: FastLane, tp: TopicPartition, start: int, end: int) -> Iterator[Run]:
    """All messages of a range, without `end`, as the runs of `fetch`; take the next run only when one is sorted."""
    with LaneReader.open(kafka, lane, tp, start) as reader:
        yield from _exact_runs(reader, lane, tp, end)


def lane_runs(kafka: KafkaSettings, lane: FastLane, tp: TopicPartition, start: int, end: int) -> Iterator[Run]:
    """The messages of a range in the form of `ReadLane`."""
    with LaneReader.open(kafka, lane, tp, start) as reader:
        while reader.offset < end:
            for run in reader.read(min(CHUNK_OF_FEW_GROUPS, end - reader.offset)):
                if isinstance(run, Run) and run.first < end:
                    yield run
                    reader.heard()


def _exact_runs(reader: LaneReader, lane: FastLane, tp: TopicPartition, end: int) -> Iterator[Run]:
    """Runs as they are in C where one poll, or several together, took exactly a run; the others from their messages."""
    gathering = Gathering(tp, _sizes, attrgetter("offset"))
    kept = 0
    """Messages in C that are less than a run."""
    while reader.offset < end:
        found = reader.read(min(gathering.room - kept, end - reader.offset), more=bool(kept))
        if not found:
            continue
        runs = [each for each in found if isinstance(each, Run)]
        kept = 0
        if len(runs) == 1 and gathering.room == RUN_ROWS and lane.read_bytes < RUN_BYTES and runs[0].last < end:
            count = len(runs[0].messages)
            if count == RUN_ROWS or reader.offset >= end:
                yield runs[0]
                reader.heard()
                continue
            if len(found) == 1:
                kept = count
                continue
        for run in runs:
            yield from gathering.add_messages([message for message in run.messages if message.offset < end])
        reader.heard()
    yield from gathering.rest()


def _sizes(messages: list[fastlane.Message]) -> Iterator[int]:
    return (len(message.value or b"") for message in messages)
