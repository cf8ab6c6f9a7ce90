"""RocketMQ: the whole daemon beside a bare pull loop of the same client, and beside other packages' own consumers.

640,000 messages of 200 bytes in 8 queues, 8 tags of which 5 are wanted (brokers filter: 400,000 are read), batches of
5,000, `ndjson`, over HTTP to a receiver that throws them away. Then 80,000 of the same kind over the slower clients, in
smaller batches, since less may be in flight there. Prints messages a second and CPU time a message, with that of child
processes, all of one run, in turn.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.rocketmq_bare import BUDGET_BYTES
from benchmarks.throughput import Ran, daemon
from tests.support.jars import native_folder
from tests.support.rocketmq import Message, RocketMqNode

TAGS = [f"tag{i}" for i in range(8)]
WANTED = " || ".join(TAGS[:5])
QUEUES = 8
STEP = QUEUES * len(TAGS) * 5_000
"""So that every tag of every queue ends with a full batch."""
KEPT = 5 / len(TAGS)
BATCHES = {"remoting": 5_000, "grpc": 2_000, "native": 200}
"""Five tags are open at once: over gRPC 20,000 messages may be in flight, over librocketmq some 2,000 with 8 queues."""
OTHERS_STEP = len(TAGS) * 2_000


def produce(node: RocketMqNode, topic: str, count: int) -> None:
    """Messages of 200 bytes, tags in turn, queues in turn of a thousand."""
    for at in range(0, count, 1000):
        messages = [
            Message((b'{"id":%010d,"pad":"' % i).ljust(198, b"x") + b'"}', tag=TAGS[i % len(TAGS)])
            for i in range(at, at + 1000)
        ]
        node.send_batch(topic, messages, queue=at // 1000 % QUEUES)


def settings(node: RocketMqNode, topic: str, port: int, client: str = "remoting") -> dict[str, Any]:
    """The configuration that is measured."""
    group = node.create_group(f"bench-{time.monotonic_ns()}")  # a proxy makes none
    where = {"endpoints": node.endpoints} if client == "grpc" else {"name_servers": node.name_server}
    where |= {"native_path": str(native_folder())} if client == "native" else {}
    return {
        "source": {"rocketmq": {**where, "client": client, "group": group, "topics": [topic]}},
        "tags": {"subscribe": WANTED},
        "batch": {"max_messages": BATCHES[client], "linger": "5s"},  # so that batches are cut by their messages
        "memory": {"budget": f"{BUDGET_BYTES >> 20}MiB"},  # 40 of them are open at once: 40 MB
        "sink": {"http": {"url": f"http://127.0.0.1:{port}/", "format": "ndjson"}},
    }


def child(module: str, *arguments: str) -> Ran:
    """What a program takes that tells it at its end."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    told = json.loads(done.stdout.splitlines()[-1])
    return Ran(told["messages"], told["cpu_s"], told["wall_s"])


def bare(node: RocketMqNode, topic: str, messages: int) -> Ran:
    """What the bare loop takes."""
    return child("rocketmq_bare", node.name_server, topic, WANTED, str(messages))


def package(node: RocketMqNode, topic: str, kind: str, messages: int) -> Ran:
    """What another package's push consumer takes."""
    group, address = node.create_group(f"bench-{kind}-{time.monotonic_ns()}"), node.name_server
    where = node.endpoints if kind == "grpc" else address
    return child("rocketmq_package", kind, where, topic, group, WANTED, str(messages))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2 * STEP, help=f"a multiple of {STEP:,}")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument(
        "--others", type=int, default=5 * OTHERS_STEP, help=f"for slower ways: 0, or times {OTHERS_STEP}"
    )
    wanted = parser.parse_args()
    if wanted.messages % STEP or wanted.others % OTHERS_STEP:
        parser.error(f"--messages must be a multiple of {STEP}, --others one of {OTHERS_STEP}")
    with tempfile.TemporaryDirectory() as name, RocketMqNode(Path(name) / "node", proxy={}) as node:
        receiver = subprocess.Popen([sys.executable, "-m", "benchmarks.discard"], stdout=subprocess.PIPE, text=True)
        try:
            assert receiver.stdout is not None
            port = int(receiver.stdout.readline())
            pairs(node, port, Path(name), wanted)
            if wanted.others:
                others(node, port, Path(name), wanted.others)
        finally:
            receiver.kill()


def pairs(node: RocketMqNode, port: int, folder: Path, wanted: argparse.Namespace) -> None:
    """Pairs of bare loop and daemon."""
    topic, count = node.create_topic("bench", QUEUES), int(wanted.messages * KEPT)
    produce(node, topic, wanted.messages)
    bare(node, topic, count)  # the broker's first time, which does not count
    ratios = []
    for pair in range(wanted.pairs):
        print(f"pair {pair + 1}, {count:,} of {wanted.messages:,} messages")
        yardstick = bare(node, topic, count)
        print(f"  bare loop  {yardstick.line()}")
        ran = daemon(settings(node, topic, port), count, folder, kept=1)
        ratios.append(ran.cpu_s / ran.messages / (yardstick.cpu_s / yardstick.messages))
        print(f"  ratio      {ratios[-1]:6.2f}")
    print(f"CPU time a message, daemon to bare loop: {', '.join(f'{one:.2f}' for one in ratios)} (2.0 wanted)")


def others(node: RocketMqNode, port: int, folder: Path, messages: int) -> None:
    """The other ways, each once; their own consumers only count."""
    topic, count = node.create_topic("others", QUEUES), int(messages * KEPT)
    produce(node, topic, messages)
    print(f"other ways, {count:,} of {messages:,} messages; last, the CPU time a message beside the bare loop's")
    yardstick = bare(node, topic, count)
    print(f"  {'bare pull loop':<36}{yardstick.line()}")
    ways: dict[str, Callable[[], Ran]] = {
        "client: grpc": lambda: daemon(settings(node, topic, port, "grpc"), count, folder, kept=1),
        "client: native": lambda: daemon(settings(node, topic, port, "native"), count, folder, kept=1),
        "rocketmq-python-client 5.1.2, push": lambda: package(node, topic, "grpc", count),
        "rocketmq-client-python 2.0.0, push": lambda: package(node, topic, "native", count),
    }
    for name, take in ways.items():
        try:
            ran = take()
            ratio = ran.cpu_s / ran.messages / (yardstick.cpu_s / yardstick.messages)
            print(f"  {name:<36}{ran.line()}   {ratio:6.1f}")
        except (AssertionError, subprocess.CalledProcessError, ValueError, KeyError, IndexError) as error:
            print(f"  {name:<36}failed: {str(error)[:300]}")


if __name__ == "__main__":
    main()
