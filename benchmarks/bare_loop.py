"""The yardstick: a bare consume(500, 0.02) loop that only counts, on the daemon's own client configuration."""

from __future__ import annotations

import json
import sys
import time
import uuid

from confluent_kafka import Consumer, KafkaError

from sidecar.config.source.kafka import KafkaSettings
from sidecar.sources.kafka.config import consumer_config


def main(kafka: str, messages: int) -> None:
    """Count messages of a topic; print CPU and wall seconds from the first to the last, and how many that were.

    Args:
        kafka: `source.kafka` as JSON, without the group.
        messages: How many are counted.
    """
    settings = KafkaSettings.model_validate({"group_id": f"bare-{uuid.uuid4().hex}", **json.loads(kafka)})
    config = consumer_config(settings, 4 << 20) | {"auto.offset.reset": "earliest"}
    consumer = Consumer(config)
    consumer.subscribe(settings.topics)
    counted = 0
    while not counted:
        counted = len(consumer.consume(500, 0.02))
    first, begun_s, cpu_s = counted, time.perf_counter(), time.process_time()
    while counted < messages:
        got = consumer.consume(500, 0.02)
        counted += len(got)
        for message in got[-1:]:
            error = message.error()
            counted -= error is not None and error.code() == KafkaError._PARTITION_EOF
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - begun_s
    print(json.dumps({"messages": counted - first, "cpu_s": cpu_s, "wall_s": wall_s}))
    consumer.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
