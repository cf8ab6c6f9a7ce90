"""RocketMQ: the whole daemon beside a bare pull loop of the same client, and beside other packages' own consumers.

640,000 messages of 200 bytes in 8 queues, 8 tags of which 5 are wanted (brokers filter: 400,000 are read), batches of
5,000, `ndjson`, over HTTP to a receiver that throws them away. Prints messages a second and CPU time a message, all of
one run, in turn.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.rocketmq_bare import BUDGET_BYTES
from benchmarks.throughput import Ran, daemon
from tests.support.rocketmq import Message, RocketMqNode

TAGS = [f"tag{i}" for i in range(8)]
WANTED = " || ".join(TAGS[:5])
QUEUES = 8
STEP = QUEUES * len(TAGS) * 5_000
"""So that every tag of every queue ends with a full batch."""
KEPT = 5 / len(TAGS)
TOPIC = "bench"


def produce(node: RocketMqNode, topic: str, count: int) -> None:
    """Messages of 200 bytes, tags in turn, queues in turn of a thousand."""
    for at in range(0, count, 1000):
        messages = [
            Message((b'{"id":%010d,"pad":"' % i).ljust(198, b"x") + b'"}', tag=TAGS[i % len(TAGS)])
            for i in range(at, at + 1000)
        ]
        node.send_batch(topic, messages, queue=at // 1000 % QUEUES)


def settings(node: RocketMqNode, topic: str, port: int) -> dict[str, Any]:
    """The configuration that is measured."""
    group = f"bench-{time.monotonic_ns()}"
    return {
        "source": {"rocketmq": {"name_servers": node.name_server, "group": group, "topics": [topic]}},
        "tags": {"subscribe": WANTED},
        "batch": {"linger": "5s"},  # so that batches are cut by their 5,000 messages
        "memory": {"budget": f"{BUDGET_BYTES >> 20}MiB"},  # 40 of them are open at once: 40 MB
        "sink": {"http": {"url": f"http://127.0.0.1:{port}/", "format": "ndjson"}},
    }


def bare(node: RocketMqNode, topic: str, messages: int) -> Ran:
    """What the bare loop takes."""
    command = [sys.executable, "-m", "benchmarks.rocketmq_bare", node.name_server, topic, WANTED, str(messages)]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    ran = Ran(told["messages"], told["cpu_s"], told["wall_s"])
    print(f"  bare loop  {ran.line()}")
    return ran


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2 * STEP, help=f"a multiple of {STEP:,}")
    parser.add_argument("--pairs", type=int, default=3)
    wanted = parser.parse_args()
    if wanted.messages % STEP:
        parser.error(f"--messages must be a multiple of {STEP}")
    with tempfile.TemporaryDirectory() as name, RocketMqNode(Path(name) / "node") as node:
        receiver = subprocess.Popen([sys.executable, "-m", "benchmarks.discard"], stdout=subprocess.PIPE, text=True)
        try:
            assert receiver.stdout is not None
            measure(node, int(receiver.stdout.readline()), Path(name), wanted)
        finally:
            receiver.kill()


def measure(node: RocketMqNode, port: int, folder: Path, wanted: argparse.Namespace) -> None:
    """Pairs of bare loop and daemon."""
    topic, count = node.create_topic(TOPIC, QUEUES), int(wanted.messages * KEPT)
    produce(node, topic, wanted.messages)
    bare(node, topic, count)  # the broker's first time, which does not count
    ratios = []
    for pair in range(wanted.pairs):
        print(f"pair {pair + 1}, {count:,} of {wanted.messages:,} messages")
        yardstick, ran = bare(node, topic, count), daemon(settings(node, topic, port), count, folder, kept=1)
        ratios.append(ran.cpu_s / ran.messages / (yardstick.cpu_s / yardstick.messages))
        print(f"  ratio      {ratios[-1]:6.2f}")
    print(f"CPU time a message, daemon to bare loop: {', '.join(f'{one:.2f}' for one in ratios)} (2.0 wanted)")


if __name__ == "__main__":
    main()
