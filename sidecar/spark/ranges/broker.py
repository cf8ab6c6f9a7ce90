"""Requests to the broker by the daemon's own client: the cluster's id, bounds of logs, the group's offsets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import confluent_kafka as ck
import structlog
from confluent_kafka.admin import AdminClient

from sidecar.config.source.kafka import KafkaSource
from sidecar.core.records import TopicPartition
from sidecar.errors import UnavailableError
from sidecar.sources.kafka.config import client_config
from sidecar.sources.kafka.group import members_of
from sidecar.sources.kafka.offsets import LogBounds, Offsets
from sidecar.sources.kafka.reach import await_topics, is_credentials, is_forbidden, text_of
from sidecar.spark.ranges.logs import Places, by_topic

if TYPE_CHECKING:
    from sidecar.sources.kafka.lane import FastLane

T = TypeVar("T")

REQUEST_S = 10.0
EARLIEST = -2

log = structlog.get_logger()


@contextlib.contextmanager
def outsider(kafka: KafkaSource, lane: FastLane | None = None, **more: Any) -> Iterator[ck.Consumer]:
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
        raise unreachable(kafka, error) from error
    finally:
        if lane is not None:
            lane.close()
        consumer.close()


def unreachable(kafka: KafkaSource, error: ck.KafkaException) -> UnavailableError:
    """The error of a request that failed."""
    return UnavailableError(
        f"Kafka at {kafka.bootstrap_servers} does not answer: {text_of(error.args[0])}",
        hint="check that the broker is running and reachable from here",
    )


def await_cluster(kafka: KafkaSource) -> str:
    """The cluster's id, once the broker answers and knows all named topics.

    Raises:
        UnavailableError: The broker does not answer, or a topic is unknown, for the whole start-up time.
        CredentialsError: The broker refuses the credentials, or access to a topic.
    """
    refusals: list[str] = []

    def failed(error: ck.KafkaError) -> None:
        if is_credentials(error):
            refusals.append(text_of(error))

    with outsider(kafka, error_cb=failed) as client:
        return await_topics(client, kafka, lambda: next(iter(refusals), ""), {}, lambda what: None)


@contextlib.contextmanager
def asking(kafka: KafkaSource) -> Iterator[Offsets]:
    """Requests of log bounds and group offsets, for at most 10 s.

    Raises:
        UnavailableError: The broker does not answer.
    """
    with outsider(kafka) as consumer:
        offsets = Offsets(consumer)
        offsets.within(REQUEST_S)
        yield offsets


def known_bounds(offsets: Offsets, kafka: KafkaSource) -> dict[TopicPartition, LogBounds]:
    """The bounds of all partitions that are read.

    Raises:
        KafkaException: The broker does not answer, or does not report all of them.
    """
    return _known(offsets.bounds(offsets.partitions(kafka.topics)))


def group_offsets(kafka: KafkaSource) -> Places | None:
    """The offsets of the daemon's consumer group (`EARLIEST`: none yet); None if the group never existed.

    Raises:
        UnavailableError: The broker does not answer, or does not report all of them.
    """
    with asking(kafka) as offsets:
        answers = offsets.committed(offsets.partitions(kafka.topics))
        committed = _known({tp: answer.error or answer.offset for tp, answer in answers.items()})
        there = _known(offsets.bounds([tp for tp, offset in committed.items() if offset >= 0]))
    if not there:
        return None
    within = {tp: _within(tp, committed[tp], between) for tp, between in there.items()}
    return by_topic(dict.fromkeys(committed, EARLIEST) | within)


def _within(tp: TopicPartition, offset: int, bounds: LogBounds) -> int:
    """The offset within the log: messages that expired meanwhile are lost on either engine, with the same log event."""
    low, high = bounds
    fields = {**tp.fields(), "committed": offset, "log_start": low, "log_end": high}
    if offset < low:
        log.error("offset.expired", **fields, expired=low - offset, action="going on at the log's start")
    elif offset > high:
        log.error("partition.truncated", **fields, action="going on at the log's end")
    return min(max(offset, low), high)


def _known(answers: Mapping[TopicPartition, T | ck.KafkaError]) -> dict[TopicPartition, T]:
    known: dict[TopicPartition, T] = {}
    for tp, answer in answers.items():
        if isinstance(answer, ck.KafkaError):
            raise ck.KafkaException(answer)
        known[tp] = answer
    return known


def refuse_members(kafka: KafkaSource) -> None:
    """Refuse to run beside members of the group: both engines would each deliver everything.

    Raises:
        UnavailableError: The consumer group has members, or the broker does not say within 10 s whether it has.
    """
    try:
        members = members_of(AdminClient(client_config(kafka)), kafka.group_id, REQUEST_S)
    except TimeoutError as error:
        raise unreachable(kafka, ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT))) from error
    except ck.KafkaException as error:
        if not is_forbidden(error.args[0]):  # describing a group needs a separate permission
            raise unreachable(kafka, error) from error
        log.warning("members.not_checked", group_id=kafka.group_id, reason=text_of(error.args[0]))
        return
    if members:
        raise UnavailableError(
            f"the consumer group {kafka.group_id} has {len(members)} members: a daemon reads with it",
            hint="stop the daemon first; the checkpoint starts at its committed offsets",
        )
