"""Reads a topic of Kafka as a reader of committed messages does, once and to its end."""

from __future__ import annotations

from contextlib import closing

import confluent_kafka as ck

from tests.support.kafka import Broker, unique


def committed(kafka: Broker, topic: str) -> list[ck.Message]:
    """All messages of partition 0 that a reader of committed messages gets."""
    config = {
        "bootstrap.servers": kafka.bootstrap, "group.id": unique("reader"), "isolation.level": "read_committed",
        "enable.partition.eof": True, "auto.offset.reset": "earliest",
    }  # fmt: skip
    found = []
    with closing(ck.Consumer(config)) as consumer:
        consumer.assign([ck.TopicPartition(topic, 0, 0)])
        while (message := consumer.poll(10.0)) is not None and message.error() is None:
            found.append(message)
        error = message and message.error()
        assert error and error.code() == ck.KafkaError._PARTITION_EOF, error
    return found
