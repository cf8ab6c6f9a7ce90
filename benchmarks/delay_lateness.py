"""How late delayed messages arrive: through the whole daemon over HTTP, beside RocketMQ's own timer messages, in turns.

For two minutes, 5,000 messages of 200 bytes are due each second, all produced before. The daemon reads a real Kafka,
holds them in each kind of store, and sends them without `batch.linger` to a receiver that notes the time. Meanwhile
another group commits every 20 ms, one after another: a due message waits for such a commit, and for no more than 20 ms
beyond it. Timer messages of a real RocketMQ are pulled by a bare loop of the same client as the daemon's. Brokers run
one at a time. Prints milliseconds after the due time, and the ratio of RocketMQ's to the daemon's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka as ck

from tests.support.kafka import KafkaBroker, Outgoing, produce
from tests.support.process import Daemon, wait_until
from tests.support.rocketmq import Message, RocketMqNode

STORES = ("changelog", "local")
PARTITIONS = 4
COMMIT_EVERY_S = 0.02
METADATA = "x" * 500
PREPARED_S = {"kafka": 20.0, "rocketmq": 20.0}
"""Time before the first message is due, beyond that for each message."""
PREPARED_EACH_S = {"kafka": 1 / 20_000, "rocketmq": 1 / 4_000}
Figures = dict[str, float]


def dues(messages: int, a_second: int, begin_ms: int) -> list[int]:
    """When messages are due, evenly spread."""
    return [begin_ms + i * 1_000 // a_second for i in range(messages)]


def value(due_ms: int) -> bytes:
    """A message of 200 bytes."""
    return (b'{"due":%d,"pad":"' % due_ms).ljust(198, b"x") + b'"}'


def begin_of(kind: str, messages: int) -> int:
    """When the first is due: all are held before."""
    return int((time.time() + PREPARED_S[kind] + messages * PREPARED_EACH_S[kind]) * 1_000)


def last_line(process: subprocess.Popen[str], timeout_s: float) -> Figures:
    """What a program prints at its end."""
    told, _ = process.communicate(timeout=timeout_s)
    figures: Figures = json.loads(told.splitlines()[-1])
    return figures


@contextmanager
def child(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program that is killed at the end."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def first_line(process: subprocess.Popen[str]) -> str:
    """What a program prints when it is ready."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


class Commits(threading.Thread):
    """Commits of another group, one after another: what one takes meanwhile."""

    def __init__(self, broker: KafkaBroker, topic: str) -> None:
        super().__init__(daemon=True)
        self._topic = topic
        self._consumer = ck.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "yardstick"})
        self._over = threading.Event()
        self._took_ms: list[float] = []

    def run(self) -> None:
        """Commit until `end`."""
        number = 0
        while not self._over.wait(COMMIT_EVERY_S):
            number += 1
            offsets = [ck.TopicPartition(self._topic, 0, number, METADATA)]
            begun_s = time.perf_counter()
            self._consumer.commit(offsets=offsets, asynchronous=False)
            self._took_ms.append((time.perf_counter() - begun_s) * 1e3)

    def end(self) -> Figures:
        """What the commits took."""
        self._over.set()
        self.join()
        self._consumer.close()
        took = sorted(self._took_ms)
        return {"p50": took[len(took) // 2], "p99": took[int(0.99 * (len(took) - 1))], "max": took[-1]}


def of_daemon(broker: KafkaBroker, folder: Path, store: str, messages: int, a_second: int) -> Figures:
    """How late messages come through the daemon; with `commit`, the p99 of a commit meanwhile."""
    topic = broker.create_topic(f"lateness-{time.monotonic_ns()}", PARTITIONS)
    with child("delay_receiver", str(messages)) as receiver:
        config = {
            "source": {
                "kafka": {"bootstrap_servers": broker.bootstrap, "group_id": f"{topic}-{store}", "topics": [topic]}
            },
            "tags": {"from": {"header": "tag"}, "subscribe": "a"},
            "batch": {"linger": "0ms"},
            "delay": {"store": store},
            "sink": {"http": {"url": f"http://127.0.0.1:{first_line(receiver)}/", "format": "ndjson"}},
        }
        with Daemon(folder, config, name=topic) as daemon:
            daemon.wait_ready()
            begin_ms = begin_of("kafka", messages)
            sent = (
                Outgoing(i % PARTITIONS, value(due), None, [("tag", b"a"), ("sidecar-deliver-at", b"%d" % due)])
                for i, due in enumerate(dues(messages, a_second, begin_ms))
            )
            produce(broker.bootstrap, topic, sent)
            wait_until(lambda: daemon.status()["delayed"] == messages, 600, "all are held", detail=daemon.log_tail)
            assert time.time() * 1e3 < begin_ms, "messages were due before all were held"
            commits = Commits(broker, topic)
            time.sleep(max(0.0, begin_ms / 1e3 - time.time()))
            commits.start()
            found = last_line(receiver, messages / a_second + 120)
            commit = commits.end()
            daemon.stop()
    return {**found, "commit": commit["p99"], "commit_p50": commit["p50"]}


def of_rocketmq(folder: Path, messages: int, a_second: int) -> Figures:
    """How late timer messages come."""
    with RocketMqNode(folder / "rocketmq", config={"timerWheelEnable": "true"}) as node:
        topic = node.create_topic("lateness", PARTITIONS)
        with child("delay_timer", node.name_server, topic, str(messages)) as puller:
            assert first_line(puller) == "pulling"
            begin_ms, at = begin_of("rocketmq", messages), 0
            due = dues(messages, a_second, begin_ms)
            while at < messages:
                some = due[at : at + 1_000]
                node.send(topic, [Message(value(each), properties={"TIMER_DELIVER_MS": str(each)}) for each in some])
                at += len(some)
            assert time.time() * 1e3 < begin_ms, "messages were due before all were sent"
            return last_line(puller, (begin_ms / 1e3 - time.time()) + messages / a_second + 120)


def line(name: str, found: Figures, more: str = "") -> None:
    """Print a row."""
    columns = "  ".join(f"{column} {found[column]:8.1f}" for column in ("p50", "p99", "p999", "max"))
    print(f"  {name:<20}{columns} ms   early {found['early']:.0f}   {more}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rate", type=int, default=5_000, help="messages due each second")
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--stores", nargs="*", choices=STORES, default=STORES)
    parser.add_argument("--without-rocketmq", action="store_true")
    wanted = parser.parse_args()
    messages = wanted.rate * wanted.seconds
    for number in range(wanted.rounds):
        print(f"round {number + 1}, {messages:,} messages, {wanted.rate:,} due a second")
        ours: dict[str, Figures] = {}
        with tempfile.TemporaryDirectory() as name:
            with KafkaBroker(Path(name) / "kafka") as broker:
                for store in wanted.stores:
                    ours[store] = of_daemon(broker, Path(name), store, messages, wanted.rate)
                    commit, beyond_ms = ours[store]["commit"], ours[store]["p99"] - ours[store]["commit"]
                    half = f"{ours[store]['commit_p50']:.1f}"
                    line(store, ours[store], f"a commit p50 {half}, p99 {commit:.1f}: {beyond_ms:.1f} beyond (<= 20)")
            if not wanted.without_rocketmq:
                theirs = of_rocketmq(Path(name), messages, wanted.rate)
                line("RocketMQ, timer", theirs)
                for store, found in ours.items():
                    ratios = ", ".join(f"{column} {theirs[column] / found[column]:.1f}" for column in ("p50", "p99"))
                    print(f"  ratio to {store:<11}{ratios}", flush=True)


if __name__ == "__main__":
    main()
