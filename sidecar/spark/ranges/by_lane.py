"""A range's client that the fast lane reads. Knows no Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import confluent_kafka as ck

from sidecar.config.source.kafka import KafkaSource
from sidecar.core.records import Run, TopicPartition
from sidecar.errors import UnavailableError
from sidecar.sources.kafka.columns import Failed
from sidecar.sources.kafka.lane import FastLane
from sidecar.spark.ranges.broker import outsider
from sidecar.spark.ranges.fetch import CLIENT, refuse_error


@contextlib.contextmanager
def reading(kafka: KafkaSource, lane: FastLane, tp: TopicPartition, start: int) -> Iterator[ck.Consumer]:
    """A client whose messages from `start` on the lane gets; both end with the block."""
    with outsider(kafka, lane, **CLIENT) as client:
        lane.forward([tp])
        client.assign([ck.TopicPartition(tp.topic, tp.partition, start)])
        lane.forward([tp])
        yield client


def reached(client: ck.Consumer, found: list[Run | Failed], tp: TopicPartition, offset: int) -> int:
    """The offset behind all of these, which follow `offset`; an end of the partition is at it.

    Raises:
        UnavailableError: An error came.
    """
    for each in found:
        if isinstance(each, Failed):
            refuse_error(client, each.error, tp, offset)
    last = found[-1]
    return last.offset if isinstance(last, Failed) else last.last + 1


def refuse_strayed(client: ck.Consumer, tp: TopicPartition, offset: int) -> None:
    """Serve the client.

    Raises:
        UnavailableError: An error came beside the messages, or a message that went past the lane.
    """
    message = client.poll(0)
    if message is None:
        return
    error = message.error()
    if error is None:
        raise UnavailableError(f"{tp}@{message.offset()} went past the fast lane")
    refuse_error(client, error, tp, offset)
