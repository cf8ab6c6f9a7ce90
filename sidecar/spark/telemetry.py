"""OpenTelemetry's metrics of queries, by the names of its conventions for messaging where they have one.

Where they go is the application's choice: its meter provider. Without one, they go nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sidecar.core.records import TopicPartition
from sidecar.ops.snapshot import PartitionStatus
from sidecar.spark.queries import MicroBatch

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.util.types import Attributes


class Telemetry:
    """Records micro-batches."""

    def __init__(self, meter: Meter) -> None:
        names = {
            "delivered": "messaging.client.consumed.messages",
            "duplicate": "sidecar.messages.duplicate",
            "filtered": "sidecar.messages.filtered",
        }
        self._counters = {outcome: meter.create_counter(name, "{message}") for outcome, name in names.items()}
        self._seconds = meter.create_histogram("messaging.process.duration", "s")
        self._lag = meter.create_gauge("sidecar.partition.lag", "{message}")

    def tell(self, done: MicroBatch, partitions: Iterable[PartitionStatus]) -> None:
        """Record a micro-batch, and the lag of its query."""
        own = [status for status in partitions if status.query == done.query]
        systems = {_system(status.broker) for status in own}
        more = {"messaging.system": systems.pop()} if len(systems) == 1 else {}
        self._seconds.record(done.seconds, {"messaging.operation.name": "process", "sidecar.query": done.query, **more})
        for tp, books in done.books.items():
            for outcome, counter in self._counters.items():
                counter.add(getattr(books, outcome), _attributes(done.query, tp))
        for status in own:
            if status.lag is not None:
                tp = TopicPartition(status.topic, status.partition, status.broker)
                self._lag.set(status.lag, _attributes(done.query, tp))


def _attributes(query: str, tp: TopicPartition) -> Attributes:
    return {
        "messaging.operation.name": "poll",
        "messaging.system": _system(tp.broker),
        "messaging.destination.name": tp.topic,
        "messaging.destination.partition.id": tp.queue,
        "sidecar.query": query,
    }


def _system(broker: str) -> str:
    return "rocketmq" if broker else "kafka"
