"""The messages of one offset range, read in C by the fast lane: the same runs as `fetch` makes. Knows no Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING

import confluent_kafka as ck

from sidecar.config.source.kafka import KafkaSource
from sidecar.core.records import Run, TopicPartition
from sidecar.sources.kafka.lane import FastLane
from sidecar.spark.ranges.by_lane import reached, reading, refuse_strayed
from sidecar.spark.ranges.fetch import WAIT_S, refuse_silence
from sidecar.spark.ranges.gathering import RUN_BYTES, RUN_ROWS, Gathering

if TYPE_CHECKING:
    import sidecar_fastlane as fastlane


def fetch_by_lane(kafka: KafkaSource, lane: FastLane, tp: TopicPartition, start: int, end: int) -> Iterator[Run]:
    """All messages of a range, without `end`, as runs; take the next run only when one is sorted.

    Raises:
        UnavailableError: The broker does not return them.
    """
    with reading(kafka, lane, tp, start) as client:
        yield from _runs(client, lane, tp, start, end)


def _runs(client: ck.Consumer, lane: FastLane, tp: TopicPartition, offset: int, end: int) -> Iterator[Run]:
    """Runs as they are in C where one poll, or several together, took exactly a run; the others from its messages."""
    gathering, heard_s = Gathering(tp, _sizes, attrgetter("offset")), time.monotonic()
    kept = 0
    """Messages in C that are less than a run."""
    while offset < end:
        refuse_strayed(client, tp, offset)
        found, _ = lane.read(WAIT_S, min(gathering.room - kept, end - offset), more=bool(kept))
        behind = reached(client, found, tp, offset) if found else offset
        if behind == offset:
            refuse_silence(heard_s, tp, offset)
            continue
        offset, heard_s = behind, time.monotonic()
        runs = [each for each in found if isinstance(each, Run)]
        kept = 0
        if len(runs) == 1 and gathering.room == RUN_ROWS and lane.read_bytes < RUN_BYTES and runs[0].last < end:
            count = len(runs[0].messages)
            if count == RUN_ROWS or offset >= end:
                yield runs[0]
                heard_s = time.monotonic()  # the receiver may have kept this task waiting
                continue
            if len(found) == 1:
                kept = count
                continue
        for run in runs:
            yield from gathering.add([message for message in run.messages if message.offset < end])
        heard_s = time.monotonic()
    yield from gathering.rest()


def _sizes(messages: list[fastlane.Message]) -> Iterator[int]:
    return (len(message.value or b"") for message in messages)
