"""A process of its own that holds librdkafka's mock cluster: it must outlive the daemon that is killed.

Speaks lines of JSON: the parent writes a command, it answers with an object. When the parent is gone, however it went,
it removes the demo's folder and ends.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import confluent_kafka as ck

from sidecar.demo.stream import PARTITIONS, TOPIC, stream

TIMEOUT_S = 10.0


class Broker:
    """The mock cluster, what is produced to it, and what it knows of the daemon's group.

    Args:
        total: Messages of the stream.
        group_id: The daemon's consumer group.
    """

    def __init__(self, total: int, group_id: str) -> None:
        # The mock keeps 5 MB a partition and drops the oldest beyond that: compressed, 200,000 messages stay far below.
        config = {"test.mock.num.brokers": 1, "compression.type": "lz4", "linger.ms": 20, "log_level": 3}
        self._producer = ck.Producer({"bootstrap.servers": "mock", **config})
        found = self._producer.list_topics(TOPIC, timeout=TIMEOUT_S)
        (only,) = found.brokers.values()
        self.address = f"{only.host}:{only.port}"
        self._client = ck.Consumer({"bootstrap.servers": self.address, "group.id": group_id, "log_level": 3})
        self._left = stream(total)
        self._produced = 0
        self._failed = 0

    def produce(self, count: int) -> dict[str, Any]:
        """Send the next messages of the stream, and wait until the broker has them."""
        for made in itertools.islice(self._left, count):
            self._producer.produce(
                TOPIC,
                partition=made.partition,
                value=made.value,
                headers=[("tag", made.tag), ("message-id", made.id)],
                on_delivery=self._told,
            )
        self._failed += self._producer.flush(TIMEOUT_S)
        return {"produced": self._produced, "failed": self._failed}

    def _told(self, error: ck.KafkaError | None, _: ck.Message) -> None:
        self._produced += error is None
        self._failed += error is not None

    def offsets(self) -> dict[str, Any]:
        """Messages that are gone from the log, and messages below the group's committed offsets."""
        partitions = [ck.TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        bounds = [self._client.get_watermark_offsets(partition, timeout=TIMEOUT_S) for partition in partitions]
        committed = self._client.committed(partitions, timeout=TIMEOUT_S)
        return {
            "dropped": sum(low for low, _ in bounds if low),
            "committed": sum(max(0, at.offset) for at in committed),
        }


def main(total: int, group_id: str, folder: str) -> None:
    """Serve commands until the parent is gone.

    Args:
        total: Messages of the stream.
        group_id: The daemon's consumer group.
        folder: Removed when the parent is gone; empty for none.
    """
    try:
        broker = Broker(total, group_id)
        print(json.dumps({"address": broker.address}), flush=True)
        for line in sys.stdin:
            command = json.loads(line)
            print(json.dumps(broker.offsets() if command == "offsets" else broker.produce(command)), flush=True)
    except BrokenPipeError:  # gone while it waited for an answer
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if folder:
        _remove(Path(folder))


def _remove(folder: Path) -> None:
    """The other children die at the same moment: what one of them wrote last may come after the first look."""
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
