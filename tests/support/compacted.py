"""Topics that the broker compacts at once, and what is left of them."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.support.kafka import Broker
from tests.support.receiver import Row, value_hash

COMPACT = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": "86400000",
}


def surviving(broker: Broker, topic: str) -> list[Row]:
    """What a topic of one partition holds, as rows."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "enable.partition.eof": True}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    rows: list[Row] = []
    try:
        while True:
            message = consumer.poll(10)
            assert message is not None
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF
                return rows
            rows.append((topic, 0, message.offset(), value_hash(message.value())))
    finally:
        consumer.close()
