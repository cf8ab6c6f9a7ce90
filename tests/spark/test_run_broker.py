"""What `sidecar spark run` asks a real broker before its query starts. No Spark."""

from __future__ import annotations

from structlog.testing import capture_logs

from sidecar.config.source.kafka import KafkaSettings
from sidecar.spark.ranges.kafka import EARLIEST, KafkaRanges
from tests.support.kafka import Broker, MakeTopic, produce
from tests.support.produce import Outgoing


def test_a_checkpoint_begins_where_the_daemon_stands(kafka: Broker, make_topic: MakeTopic, group: str) -> None:
    """Of all topics that are meant: what is committed, else the start, None if new; what the log lacks is told."""
    topic = make_topic(4)
    settings = KafkaSettings.model_validate(
        {"bootstrap_servers": kafka.bootstrap, "topics": [f"^{topic[:-2]}"], "group_id": group}
    )
    broker = KafkaRanges("state", "envelope", settings, "")
    assert broker.await_cluster()
    assert broker.group_offsets() is None
    produce(kafka.bootstrap, topic, [Outgoing(i % 4, b"v", None, None) for i in range(40)])
    kafka.alter_group_offsets(group, topic, {0: 7, 1: 2, 2: 99})
    kafka.delete_records(topic, {1: 5})
    with capture_logs() as events:
        assert broker.group_offsets() == {topic: {"0": 7, "1": 5, "2": 10, "3": EARLIEST}}
    keys = ("event", "log_level", "partition", "committed", "log_start", "log_end", "expired")
    assert [tuple(map(event.get, keys)) for event in events] == [
        ("offset.expired", "error", 1, 2, 5, 10, 3),
        ("partition.truncated", "error", 2, 99, 0, 10, None),
    ]
