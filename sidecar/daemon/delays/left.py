"""Undelivered delayed messages, of topics that are no longer read or do not exist. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from math import inf
from pathlib import Path
from typing import NamedTuple

import structlog

from sidecar.config.source.section import SourceSection
from sidecar.core.records import TopicPartition
from sidecar.delay.interface import HeldStore
from sidecar.delay.partitions import PartitionStore
from sidecar.errors import ConfigError, SidecarError

LOOK_AFTER_S = 5.0
"""Time after partitions came or went: others of a topic may follow."""
LOOK_AGAIN_S = 300.0
RETRY = "%RETRY%"
"""The beginning of topics of RocketMQ that are read with any others."""
ELSEWHERE = "its partitions are not read here: another process reads them, or the topic does not exist"

log = structlog.get_logger()


class LeftMessages(NamedTuple):
    """The held messages of a topic that is not read."""

    topic: str
    held: int
    """Messages and parked batches."""
    why: str

    def __str__(self) -> str:
        return f"{self.held:,} delayed messages of {self.topic} are held and not delivered: {self.why}"


class LeftBehind:
    """Looks for left messages after partitions came or went, and every 5 minutes; for the main thread.

    Args:
        begin: Runs a job, at once or on another thread.
        clock: Monotonic, in seconds.
    """

    def __init__(
        self,
        look: Callable[[], Iterable[LeftMessages]],
        begin: Callable[[Callable[[], None]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._begin = begin
        self._clock = clock
        self._at_s = inf
        self._is_looking = False
        self.found: tuple[LeftMessages, ...] = ()
        """Results of the last look; a failed look is repeated."""

    def look_soon(self) -> None:
        """Look again once no more partitions come or go."""
        self._at_s = self._clock() + LOOK_AFTER_S

    def tend(self) -> None:
        if not self._is_looking and self._clock() >= self._at_s:
            self._is_looking, self._at_s = True, self._clock() + LOOK_AGAIN_S
            self._begin(self._run)

    def _run(self) -> None:
        try:
            found = tuple(sorted(self._look()))
        except SidecarError as error:
            log.warning("delay.left_unknown", reason=str(error))
        else:
            for left in found:
                if left not in self.found:
                    log.warning("delay.left_behind", topic=left.topic, count=left.held, reason=left.why)
            self.found = found
        self._is_looking = False


class Reads:
    """Which topics are read."""

    def __init__(self, source: SourceSection) -> None:
        self._source = source
        self.known: Collection[str] | None = None
        """The topics that exist; None if that is not known."""

    def why_not(self, topic: str) -> str:
        """Why a topic is not read; empty if it is."""
        kafka, rocketmq = self._source.kafka_, self._source.rocketmq
        if kafka and kafka.entry_of(topic) is None:
            return "source.kafka.topics does not name it"
        if rocketmq and topic not in rocketmq.topics and not topic.startswith(RETRY):
            return "source.rocketmq.topics does not name it"
        return "the topic does not exist" if self.known is not None and topic not in self.known else ""


def in_store(store: HeldStore, number: int) -> int:
    """Number of a partition's messages and parked batches in a store."""
    return store.rows.held(number) + len(store.rows.parked(number))


def left_here(
    store: PartitionStore,
    tp_of: Callable[[bytes], TopicPartition | None],
    owned: Collection[TopicPartition],
    reads: Reads,
) -> list[LeftMessages]:
    """Messages in a store on this disk, of partitions that this process does not read."""
    places = ((tp_of(name), number) for name, number in store.names().items())
    counts = [(tp.topic, in_store(store, number)) for tp, number in places if tp is not None and tp not in owned]
    return summed(counts, lambda topic: reads.why_not(topic) or ELSEWHERE)


def summed(counts: Iterable[tuple[str, int]], why: Callable[[str], str]) -> list[LeftMessages]:
    """Held messages by topic, without topics that have none.

    Args:
        counts: Topics with the numbers of messages, for each of their partitions.
        why: Returns why a topic is not read.
    """
    sums: dict[str, int] = {}
    for topic, count in counts:
        sums[topic] = sums.get(topic, 0) + count
    return [LeftMessages(topic, count, why(topic)) for topic, count in sums.items() if count]


def refuse_held(path: Path, why: str) -> None:
    """Refuse to start while a store that is not used holds messages: they would never be delivered.

    Raises:
        ConfigError: It does.
    """
    with closing(PartitionStore(path)) as store:
        numbers = store.names().values()
        held, parked = sum(map(store.rows.held, numbers)), sum(len(store.rows.parked(number)) for number in numbers)
    if held or parked:
        raise ConfigError(
            f"{held} delayed messages and {parked} parked batches are held in {path}, and {why}",
            hint="keep the section delay, with store: local, until they are delivered; or remove the folder, which "
            "drops them",
        )
