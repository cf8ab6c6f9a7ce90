"""An offset range as the daemon's own client reads it on an executor, from a real broker. No Spark."""

from __future__ import annotations

import pytest

from sidecar.config.source.kafka import KafkaSettings
from sidecar.core.records import TopicPartition
from sidecar.errors import UnavailableError
from sidecar.sources.kafka.columns import KafkaColumns
from sidecar.spark.ranges.gathering import RUN_ROWS
from sidecar.spark.ranges.kafka import fetch
from tests.support.kafka import Broker, produce, produce_transaction
from tests.support.produce import Outgoing


def source(broker: Broker, topic: str, group: str) -> KafkaSettings:
    """What is read."""
    return KafkaSettings.model_validate({"bootstrap_servers": broker.bootstrap, "topics": [topic], "group_id": group})


def read(settings: KafkaSettings, topic: str, start: int, end: int) -> list[tuple[int, bytes | None]]:
    """Offset and value of all messages of a range."""
    columns, runs = KafkaColumns(), list(fetch(settings, TopicPartition(topic, 0), start, end))
    for run in runs:
        offsets = list(columns.offsets(run.messages))
        assert (run.first, run.last, len(offsets) <= RUN_ROWS) == (offsets[0], offsets[-1], True)
    return [pair for r in runs for pair in zip(columns.offsets(r.messages), columns.values(r.messages), strict=True)]


def test_a_range_is_read_to_its_end_and_no_further(kafka: Broker, topic: str, group: str) -> None:
    """Any cut through the log gives what it holds: tombstones too, nothing aborted, and gaps end it as well."""
    settings = source(kafka, topic, group)
    kept = [Outgoing(0, None if i % 7 == 0 else b"%d" % i) for i in range(1_300)]
    produce_transaction(kafka.bootstrap, topic, kept, transactional_id=topic)
    produce_transaction(kafka.bootstrap, topic, kept[:200], transactional_id=topic, commit=False)
    expected = [(i, message.value) for i, message in enumerate(kept)]
    end = 1_300 + 1 + 200 + 1
    for start, stop in ((0, end), (0, 1), (499, 1_001), (1_299, 1_301), (1_301, end), (1_500, end)):
        assert read(settings, topic, start, stop) == expected[start:stop], (start, stop)


def test_large_messages_come_whole(kafka: Broker, topic: str, group: str) -> None:
    """Messages near a megabyte, which are fetched a few at a time, come in order, small ones between them."""
    values = [bytes([i]) * (900_000 if i % 3 else 10) for i in range(30)]
    produce(kafka.bootstrap, topic, [Outgoing(0, value) for value in values])
    assert read(source(kafka, topic, group), topic, 0, 30) == list(enumerate(values))


def test_what_expired_unread_is_told(kafka: Broker, topic: str, group: str) -> None:
    """A range whose first messages are gone is an error, and not a shorter range."""
    produce(kafka.bootstrap, topic, [Outgoing(0, b"v") for _ in range(20)])
    kafka.delete_records(topic, {0: 10})
    with pytest.raises(UnavailableError, match=r"was read to 5, and its log begins at 10 by now: 5 offsets expired"):
        read(source(kafka, topic, group), topic, 5, 20)
