"""Other packages' own push consumers of RocketMQ: each counts what it is handed. A process of its own for each.

Both packages are imported as `rocketmq`, so the one for librocketmq has a folder of its own, filled by pip when it is
first needed.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.jars import ROOT

NATIVE = ROOT / ".cache" / "rocketmq-native-bench"
THREADS = 16
_LACKING = {
    "CreateOrderlyProducer",
    "CreateTransactionProducer",
    "SendMessageOrderlyByShardingKey",
    "SendMessageTransaction",
}


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
    from rocketmq import (  # type: ignore[attr-defined]
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
    client = _import_native(native_folder())

    def take(_: Any) -> Any:
        counted()
        return client.ConsumeStatus.CONSUME_SUCCESS

    consumer = client.PushConsumer(group)
    consumer.set_name_server_address(address)
    consumer.set_thread_count(THREADS)
    consumer.subscribe(topic, take, expression)
    consumer.start()
    globals()["_kept"] = consumer  # the library calls back for as long as it lives


def native_folder() -> Path:
    """The folder with the Python package and the library of an older one beside it."""
    package = NATIVE / "client" / "rocketmq"
    if not (package / "librocketmq.so").exists():
        for name, what in (("client", "rocketmq-client-python==2.0.0"), ("library", "rocketmq==0.4.4")):
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(NATIVE / name)]
            subprocess.run([*command, what], check=True)
        shutil.copytree(NATIVE / "library" / "rocketmq" / ".libs", package / ".libs", dirs_exist_ok=True)
        shutil.copy(NATIVE / "library" / "rocketmq" / "librocketmq.so", package)
    return NATIVE / "client"


class _Lenient(ctypes.CDLL):
    """The Python package binds functions of producers that the library lacks and nobody calls."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name not in _LACKING:
                raise
            setattr(self, name, ctypes.CFUNCTYPE(ctypes.c_int)(lambda *_: -1))
            return getattr(self, name)


def _import_native(folder: Path) -> Any:
    before, ctypes.cdll = ctypes.cdll, ctypes.LibraryLoader(_Lenient)
    sys.path.insert(0, str(folder))
    try:
        import rocketmq.client  # type: ignore[import-not-found]
    finally:
        ctypes.cdll = before
    return rocketmq.client


def main(kind: str, address: str, topic: str, group: str, expression: str, wanted: int) -> None:
    """Count so many messages; print CPU and wall seconds from the first to the last, and end without a word."""
    counter = Counter(wanted)
    {"grpc": grpc, "native": native}[kind](address, topic, group, expression, counter.one)
    counter.done.wait(600)
    print(json.dumps(counter.told), flush=True)
    os._exit(0)  # the library hangs at its shutdown


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5], int(sys.argv[6]))
