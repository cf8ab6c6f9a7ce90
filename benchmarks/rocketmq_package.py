"""Other packages' own push consumers of RocketMQ: each counts what it is handed. A process of its own for each.

Both packages are imported as `rocketmq`, so the one for librocketmq has a folder of its own.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from sidecar.sources.rocketmq.native.child.library import load
from tests.support.jars import native_folder

THREADS = 16


class Counter:
    """Counts from the first message to the last that is wanted."""

    def __init__(self, wanted: int) -> None:
        self.done = threading.Event()
        self._left = wanted
        self._counted = wanted
        self._lock = threading.Lock()
        self._begun: tuple[float, float] | None = None
        self.told: dict[str, float] = {}

    def one(self) -> None:
        """One more."""
        with self._lock:
            self._begun = self._begun or (time.process_time(), time.perf_counter())
            self._left -= 1
            if self._left == 0:
                cpu_s, wall_s = time.process_time() - self._begun[0], time.perf_counter() - self._begun[1]
                self.told = {"messages": self._counted, "cpu_s": cpu_s, "wall_s": wall_s}
                self.done.set()


def grpc(address: str, topic: str, group: str, expression: str, counted: Callable[[], None]) -> None:
    """The push consumer of `rocketmq-python-client`."""
    from rocketmq import (
        ClientConfiguration,
        ConsumeResult,
        Credentials,
        FilterExpression,
        MessageListener,
        PushConsumer,
    )

    class Listener(MessageListener):  # type: ignore[misc]
        def consume(self, message: Any) -> Any:  # noqa: ARG002
            counted()
            return ConsumeResult.SUCCESS

    settings = ClientConfiguration(address, Credentials())
    consumer = PushConsumer(settings, group, Listener(), {topic: FilterExpression(expression)})
    consumer.startup()


def native(address: str, topic: str, group: str, expression: str, counted: Callable[[], None]) -> None:
    """The push consumer of `rocketmq-client-python`, over librocketmq."""
    client = load(native_folder())

    def take(_: Any) -> Any:
        counted()
        return client.ConsumeStatus.CONSUME_SUCCESS

    consumer = client.PushConsumer(group)
    consumer.set_name_server_address(address)
    consumer.set_thread_count(THREADS)
    consumer.subscribe(topic, take, expression)
    consumer.start()
    globals()["_kept"] = consumer  # the library calls back for as long as it lives


def main(kind: str, address: str, topic: str, group: str, expression: str, wanted: int) -> None:
    """Count so many messages; print CPU and wall seconds from the first to the last, and end without a word."""
    counter = Counter(wanted)
    {"grpc": grpc, "native": native}[kind](address, topic, group, expression, counter.one)
    counter.done.wait(600)
    print(json.dumps(counter.told), flush=True)
    os._exit(0)  # the library hangs at its shutdown


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5], int(sys.argv[6]))
