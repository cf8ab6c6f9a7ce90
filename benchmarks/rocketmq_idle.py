"""What a daemon takes that has nothing to do: of 500 queues and of 8, by each client, in one run.

User and system time of the daemon and its children over 60 s, in percent of one core, 20 s after its start; that of
name server and broker is told beside it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.rocketmq import settings
from benchmarks.throughput import whole_cpu_seconds
from tests.support.process import Daemon
from tests.support.rocketmq import RocketMqNode

MANY, FEW = 500, 8
SETTLES_S = 20.0
CLIENTS = ("remoting", "grpc", "native")


def idle(node: RocketMqNode, topic: str, client: str, folder: Path, seconds: float) -> float:
    """Percent of a core that a daemon takes; printed with what the servers take."""
    servers = [one for one in psutil.Process().children(recursive=True) if one.name() == "java"]
    config = settings(node, topic, 9, client)  # nothing is sent
    config = {name: part for name, part in config.items() if name not in ("memory", "batch")}
    with Daemon(folder, config, name=f"idle-{time.monotonic_ns()}") as sidecar:
        sidecar.wait_ready()
        time.sleep(SETTLES_S)
        begun_s, ours_s, theirs_s = time.perf_counter(), whole_cpu_seconds(sidecar.pid), _sum(servers)
        time.sleep(seconds)
        wall_s = time.perf_counter() - begun_s
        ours, theirs = whole_cpu_seconds(sidecar.pid) - ours_s, _sum(servers) - theirs_s
        sidecar.terminate()
        sidecar.wait(0)
    print(f"  {topic:<12}{100 * ours / wall_s:6.2f} % of a core   servers {100 * theirs / wall_s:6.2f} %", flush=True)
    return 100 * ours / wall_s


def _sum(processes: list[psutil.Process]) -> float:
    return sum(sum(one.cpu_times()[:2]) for one in processes)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", nargs="+", default=CLIENTS, choices=CLIENTS)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, RocketMqNode(Path(name) / "node", proxy={}) as node:
        topics = [node.create_topic(f"idle-{queues}", queues) for queues in (MANY, FEW)]
        for client in wanted.clients:
            print(f"client: {client}")
            many, few = (idle(node, topic, client, Path(name), wanted.seconds) for topic in topics)
            print(f"  ratio     {many / few:6.2f}")


if __name__ == "__main__":
    main()
