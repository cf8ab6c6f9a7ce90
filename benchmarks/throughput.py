"""CPU time of the whole daemon beside a bare consume loop: same client, same broker, same run, in turn.

2 million messages of 200 bytes, 8 tags in a header of which 5 are wanted, batches of 5,000, `ndjson`, over HTTP to a
receiver that throws them away. Prints messages per CPU second of both, their ratio pair by pair, and what the daemon's
memory grows by from 2 to 10 million messages.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.support.kafka import KafkaBroker, Outgoing, produce
from tests.support.process import Daemon, wait_until

TAGS = [f"tag{i}".encode() for i in range(8)]
WANTED = " || ".join(tag.decode() for tag in TAGS[:5])
KEPT = 5 / len(TAGS)
PARTITIONS = 4
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def stream(count: int) -> Iterator[Outgoing]:
    """Messages of 200 bytes, tags in turn, partitions in turn of a thousand."""
    for i in range(count):
        value = b'{"id":%010d,"pad":"' % i
        yield Outgoing(
            partition=i // 1000 % PARTITIONS, value=value.ljust(198, b"x") + b'"}', headers=[("tag", TAGS[i % 8])]
        )


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


def whole_cpu_seconds(pid: int) -> float:
    """The same with the process's children."""
    return sum(cpu_seconds(one) for one in (pid, *(child.pid for child in psutil.Process(pid).children())))


def memory_mib(pid: int, what: str = "VmRSS") -> float:
    """Resident memory, now (`VmRSS`) or at its peak (`VmHWM`)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


def bare(broker: KafkaBroker, topic: str, messages: int, change: Mapping[str, Any] | None = None) -> float:
    """Messages per CPU second of the bare loop; `change` goes into its `source.kafka`."""
    kafka = {"bootstrap_servers": broker.bootstrap, "topics": [topic], **(change or {})}
    command = [sys.executable, "-m", "benchmarks.bare_loop", json.dumps(kafka), str(messages)]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    rate, speed = told["messages"] / told["cpu_s"], told["messages"] / told["wall_s"]
    print(f"  bare loop  {rate / 1e6:6.3f} M/CPU-s   {speed / 1e6:6.3f} M/s")
    return float(rate)


class Ran(NamedTuple):
    """What a run took, from its first message to its last."""

    messages: int
    cpu_s: float
    wall_s: float
    grown_mib: float = 0.0
    rss_mib: float = 0.0

    def line(self) -> str:
        """For people."""
        return (
            f"{self.messages / self.cpu_s / 1e6:6.3f} M/CPU-s   {self.messages / self.wall_s / 1e6:6.3f} M/s   "
            f"{self.cpu_s / self.messages * 1e6:6.3f} us CPU a message"
        )


def daemon(config: dict[str, Any], messages: int, folder: Path, early: int = 1, kept: float = KEPT) -> Ran:
    """What the daemon takes; the MiB are those it grew by since message `early`."""
    with Daemon(folder, config, name=f"bench-{time.monotonic_ns()}") as sidecar:
        sidecar.wait_ready()
        wait_until(lambda: _consumed(sidecar) > 0, 30, "the first message")
        cpu_s, first, begun_s = whole_cpu_seconds(sidecar.pid), _consumed(sidecar), time.perf_counter()
        wait_until(lambda: _delivered(sidecar) >= int(early * kept), 600, "the early ones delivered")
        early_mib = memory_mib(sidecar.pid)
        wait_until(lambda: _delivered(sidecar) >= int(messages * kept), 600, "all delivered")
        cpu_s, wall_s = whole_cpu_seconds(sidecar.pid) - cpu_s, time.perf_counter() - begun_s
        count = _consumed(sidecar) - first
        rss, peak = memory_mib(sidecar.pid), memory_mib(sidecar.pid, "VmHWM")
        ran = Ran(count, cpu_s, wall_s, rss - early_mib, rss)
        print(f"  sidecar    {ran.line()}   RSS {rss:.0f} MiB, peak {peak:.0f}")
        sidecar.terminate()
        sidecar.wait(0)
    return ran


def settings(broker: KafkaBroker, topic: str, port: int) -> dict[str, Any]:
    """The configuration that is measured."""
    kafka = {"bootstrap_servers": broker.bootstrap, "group_id": f"bench-{time.monotonic_ns()}", "topics": [topic]}
    return {
        "source": {"kafka": kafka},
        "tags": {"from": {"header": "tag"}, "subscribe": WANTED},
        "batch": {"linger": "5s"},  # so that batches are cut by their 5,000 messages
        "sink": {"http": {"url": f"http://127.0.0.1:{port}/", "format": "ndjson"}},
    }


def _consumed(sidecar: Daemon) -> int:
    return int(sidecar.status()["consumed"])


def _delivered(sidecar: Daemon) -> int:
    time.sleep(0.2)  # asking costs the daemon time too
    return int(sidecar.status()["delivered"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument(
        "--long", type=int, default=10_000_000, help="messages of one last run, for its memory; 0 for none"
    )
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, KafkaBroker(Path(name) / "kafka") as broker:
        receiver = subprocess.Popen([sys.executable, "-m", "benchmarks.discard"], stdout=subprocess.PIPE, text=True)
        try:
            assert receiver.stdout is not None
            measure(broker, int(receiver.stdout.readline()), Path(name), wanted)
        finally:
            receiver.kill()


def measure(broker: KafkaBroker, port: int, folder: Path, wanted: argparse.Namespace) -> None:
    """Pairs of bare loop and daemon, then one long run."""
    topic = broker.create_topic("bench", PARTITIONS)
    produce(broker.bootstrap, topic, stream(wanted.messages))
    ratios = []
    for pair in range(wanted.pairs):
        print(f"pair {pair + 1}, {wanted.messages:,} messages")
        yardstick = bare(broker, topic, wanted.messages)
        ran = daemon(settings(broker, topic, port), wanted.messages, folder)
        ratios.append(ran.messages / ran.cpu_s / yardstick)
        print(f"  ratio      {ratios[-1]:6.3f}")
    print(f"ratio: min {min(ratios):.3f}, median {statistics.median(ratios):.3f}, max {max(ratios):.3f} (0.50 wanted)")
    if wanted.long > wanted.messages:
        produce(broker.bootstrap, topic, stream(wanted.long - wanted.messages))
        print(f"one run of {wanted.long:,} messages")
        ran = daemon(settings(broker, topic, port), wanted.long, folder, early=wanted.messages)
        grown = f"{ran.grown_mib:+.1f} MiB from {wanted.messages:,} to {wanted.long:,} messages"
        print(f"{grown} (10 allowed, and an RSS of 300)")


if __name__ == "__main__":
    main()
