"""Ends of the logs, requested every few seconds without waiting, also while reading is paused. Decides nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any

import confluent_kafka as ck
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ListOffsetsResultInfo,
    OffsetSpec,
)

from sidecar.core.records import TopicPartition

ASK_EVERY_S = 5.0
TIMEOUT_S = 3.0
"""Longest time for which a leader that is down delays the answers about all others."""
SILENT_S = 10.0
"""Time without any answer after which it is a problem."""


class Ends:
    """The ends of the assigned partitions.

    Args:
        admin: The client; its answers arrive on its own thread.
        isolation_level: `isolation.level` of the consumer: messages that it cannot read yet are not lag.
        clock: Monotonic seconds.
    """

    def __init__(self, admin: AdminClient, isolation_level: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._admin = admin
        committed, all_ = ck.IsolationLevel.READ_COMMITTED, ck.IsolationLevel.READ_UNCOMMITTED
        self._level = committed if isolation_level == "read_committed" else all_
        self._clock = clock
        self._asked: dict[TopicPartition, Future[ListOffsetsResultInfo]] = {}
        self._ask_at_s = 0.0
        self._ends: dict[TopicPartition, int] = {}
        self._silent_since_s: float | None = None

    def watch(self, tps: Collection[TopicPartition]) -> None:
        """Request the ends of these partitions when due; process answers."""
        now_s = self._clock()
        if self._asked and all(future.done() for future in self._asked.values()):
            self._take(now_s)
        if not tps:
            self._silent_since_s = None
        elif now_s >= self._ask_at_s and not self._asked:
            self._ask_at_s = now_s + ASK_EVERY_S
            self._ask(tps)

    def ask_soon(self) -> None:
        """Request the ends at once, because partitions were added."""
        self._ask_at_s = 0.0

    def _ask(self, tps: Collection[TopicPartition]) -> None:
        asked = {ck.TopicPartition(*tp[:2]): OffsetSpec.latest() for tp in tps}  # type: ignore[no-untyped-call]
        options: dict[str, Any] = {"isolation_level": self._level, "request_timeout": TIMEOUT_S}
        futures = self._admin.list_offsets(asked, **options)
        self._asked = {TopicPartition(tp.topic, tp.partition): future for tp, future in futures.items()}

    def _take(self, now_s: float) -> None:
        asked, self._asked = self._asked, {}
        ends = {tp: future.result().offset for tp, future in asked.items() if future.exception() is None}
        ends = {tp: end for tp, end in ends.items() if end >= 0}
        self._ends |= ends
        if ends:
            self._silent_since_s = None
        elif self._silent_since_s is None:
            self._silent_since_s = now_s - TIMEOUT_S

    def end(self, tp: TopicPartition) -> int | None:
        """The offset of the partition's next message, a few seconds ago; None while unknown."""
        return self._ends.get(tp)

    def forget(self, tps: Collection[TopicPartition]) -> None:
        """Drop partitions that were revoked, or whose log was replaced."""
        for tp in tps:
            self._ends.pop(tp, None)
            self._asked.pop(tp, None)

    @property
    def silent(self) -> bool:
        """Whether no broker has answered for `SILENT_S`."""
        return self._silent_since_s is not None and self._clock() - self._silent_since_s >= SILENT_S
