"""A separate process with librdkafka's mock cluster, which must outlive the daemon that is killed.

It speaks lines of JSON: the parent writes the number of messages to produce, or the name of a group whose offsets it
wants; the process answers with an object. When the parent has ended in any way, it removes the demo's folder and ends.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka as ck

from sidecar.demo.stream import PARTITIONS, TOPIC, Made, delay_ms, number_of, stream

TIMEOUT_S = 10.0
Answer = Callable[[Any], dict[str, Any]]
Headers = list[tuple[str, str | bytes | None]]


class Broker:
    """The mock cluster, its producer, and the offsets of a consumer group.

    Args:
        delays: Whether most of the wanted ones have due times.
    """

    def __init__(self, total: int, *, delays: bool = False) -> None:
        # The mock keeps 5 MB per partition and drops the oldest beyond that: compressed, 200,000 messages are far
        # below.
        config = {"test.mock.num.brokers": 1, "compression.type": "lz4", "linger.ms": 20, "log_level": 3}
        self._producer = ck.Producer({"bootstrap.servers": "mock", **config})
        cluster = self._producer.list_topics(TOPIC, timeout=TIMEOUT_S)
        (only,) = cluster.brokers.values()
        self.address = f"{only.host}:{only.port}"
        self._left = stream(total)
        self._delays = delays
        self._produced = 0
        self._failed = 0

    def produce(self, count: int) -> dict[str, Any]:
        """Send the next messages of the stream, and wait until the broker has them."""
        for made in itertools.islice(self._left, count):
            self._producer.produce(
                TOPIC,
                partition=made.partition,
                value=made.value,
                headers=self._headers(made),
                on_delivery=self._delivered,
            )
        self._failed += self._producer.flush(TIMEOUT_S)
        return {"produced": self._produced, "failed": self._failed}

    def _headers(self, made: Made) -> Headers:
        headers: Headers = [("tag", made.tag), ("message-id", made.id)]
        delay = delay_ms(number_of(made.value)) if self._delays and made.kind == "wanted" else 0
        return [*headers, ("sidecar-deliver-at", f"{delay}ms")] if delay else headers

    def _delivered(self, error: ck.KafkaError | None, _: ck.Message) -> None:
        self._produced += error is None
        self._failed += error is not None

    def offsets(self, group_id: str) -> dict[str, Any]:
        """Numbers of messages that are gone from the log, and of messages below a group's committed offsets."""
        config = {"bootstrap.servers": self.address, "group.id": group_id, "log_level": 3}
        partitions = [ck.TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        with contextlib.closing(ck.Consumer(config)) as client:
            bounds = [client.get_watermark_offsets(partition, timeout=TIMEOUT_S) for partition in partitions]
            committed = client.committed(partitions, timeout=TIMEOUT_S)
        return {
            "dropped": sum(low for low, _ in bounds if low),
            "committed": sum(max(0, position.offset) for position in committed),
        }


def main(total: int, folder: str, *, delays: bool) -> None:
    """Serve commands until the parent is gone.

    Args:
        folder: Removed when the parent is gone; empty for none.
        delays: Whether most of the wanted messages have due times.
    """
    broker = Broker(total, delays=delays)
    serve(broker.address, broker.produce, broker.offsets)
    if folder:
        remove(Path(folder))


def serve(address: str, produce: Answer, offsets: Answer) -> None:
    """Answer commands until the parent is gone.

    Args:
        offsets: Answers the name of a group.
    """
    try:
        print(json.dumps({"address": address}), flush=True)
        for line in sys.stdin:
            command = json.loads(line)
            print(json.dumps((offsets if isinstance(command, str) else produce)(command)), flush=True)
    except BrokenPipeError:  # the parent ended while it waited for an answer
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def remove(folder: Path) -> None:
    """Delete the demo's folder.

    The other children die at the same moment: their last writes may come after the first attempt.
    """
    for _ in range(20):
        _end_jvms(folder)
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)


def _end_jvms(folder: Path) -> None:
    """End JVMs of the demo, known by their environment: a new JVM does not notice that its Python has ended."""
    mark = b"SPARK_CONF_DIR=" + os.fsencode(folder)
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it ended, or is another user's
            if mark in environ.read_bytes():
                os.kill(int(environ.parent.name), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], delays=bool(sys.argv[3]))
