"""A process of its own that holds a RocketMQ node, name server and broker: it must outlive the daemon that is killed.

Speaks as `sidecar.demo.broker` does.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import struct
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sidecar.core.records import TopicPartition
from sidecar.demo.broker import remove, serve
from sidecar.demo.children import die_with_parent, free_port
from sidecar.demo.stream import PARTITIONS, TOPIC, Made, stream
from sidecar.errors import UnavailableError
from sidecar.rocketmq.codes import Code
from sidecar.rocketmq.network import Ask, Link, Network, NoAnswerError, RefusedError
from sidecar.rocketmq.requests import Asks, read_offset, read_route

START_S = 120.0
NAME = "demo-broker"
CREATE_TOPIC, SEND_BATCH = 17, 320
BATCH_MAX = 1_000
_MODULES = ["--add-exports=java.base/sun.nio.ch=ALL-UNNAMED", "--add-opens=java.base/java.nio=ALL-UNNAMED"]
_SIZES = {
    "mappedFileSizeCommitLog": 64 << 20, "mappedFileSizeConsumeQueue": 600_000, "maxIndexNum": 20_000,
    "maxHashSlotNum": 5_000, "diskMaxUsedSpaceRatio": 98, "waitTimeMillsInSendQueue": 30_000,
    "transactionMetricFlushInterval": 500,  # 3000 by default: so long a thread of it spins at each start
}  # fmt: skip


class Node:
    """Name server and broker, what is produced to them, and what they know of a consumer group.

    Args:
        jars: Where their jars are.
        folder: For their files.
        total: Messages of the stream.
    """

    def __init__(self, jars: str, folder: Path, total: int) -> None:
        self._jars, self._folder = jars, folder
        self._java: list[subprocess.Popen[bytes]] = []
        self._network = Network(None, None, lambda frame: None)
        self._left = stream(total)
        self._produced = 0
        self._name_port, self._port = free_port(), free_port()
        self.address = f"127.0.0.1:{self._name_port}"
        self._broker = self._network.link(f"127.0.0.1:{self._port}")

    def start(self) -> None:
        """Start both, and create the topic.

        Raises:
            UnavailableError: One of them ended, or this takes more than 120 s.
        """
        self._folder.mkdir()
        self._start("namesrv", "NamesrvStartup", {"listenPort": self._name_port})
        root = self._folder / "store"
        store = {"storePathRootDir": root, "storePathCommitLog": root / "commitlog"}
        broker = {
            "brokerName": NAME, "brokerIP1": "127.0.0.1", "listenPort": self._port,
            "namesrvAddr": self.address, **store, **_SIZES,
        }  # fmt: skip
        self._start("broker", "BrokerStartup", broker)
        self._create_topic()

    def _start(self, name: str, main: str, properties: dict[str, object]) -> None:
        file = self._folder / f"{name}.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        heap = "96m" if name == "namesrv" else "384m"
        command = [
            "java", f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:MaxDirectMemorySize=256m",
            "-Dtls.server.mode=disabled", *_MODULES, f"-Duser.home={self._folder}",
            f"-Drmq.logback.configurationFile=rmq.{name}.logback.xml",
            "-cp", f"{self._jars}/*", f"org.apache.rocketmq.{name}.{main}", "-c", str(file),
        ]  # fmt: skip
        env = {**os.environ, "ROCKETMQ_HOME": str(self._folder)}
        self._java.append(
            subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr, preexec_fn=die_with_parent)
        )

    def _create_topic(self) -> None:
        topic = {
            "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": str(PARTITIONS),
            "writeQueueNums": str(PARTITIONS), "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
            "order": "false", "attributes": "+message.type=NORMAL",
        }  # fmt: skip
        self._await(self._broker, Ask(CREATE_TOPIC, topic))
        name_server = self._network.link(self.address)
        found = self._await(name_server, Asks("demo", "demo").route(TOPIC))
        assert len(read_route(TOPIC, found).queues) == PARTITIONS

    def _await(self, link: Link, ask: Ask) -> Any:
        until_s = time.monotonic() + START_S
        while True:
            try:
                return self._network.call(link, ask)
            except (NoAnswerError, RefusedError) as error:
                if time.monotonic() > until_s or any(one.poll() is not None for one in self._java):
                    raise UnavailableError(f"RocketMQ does not start: {error}") from error
                self._network.turn(0.1)

    def produce(self, count: int) -> dict[str, Any]:
        """Send the next messages of the stream, and wait until the broker has them."""
        queues: dict[int, list[tuple[int, Made]]] = defaultdict(list)
        for number, made in enumerate(itertools.islice(self._left, count), self._produced):
            queues[made.partition].append((number, made))
        failed = 0
        while any(queues.values()):  # one batch of each queue at a time: their order is that of the stream
            batches = [(queue, made[:BATCH_MAX]) for queue, made in queues.items() if made]
            answers = self._network.ask_all([(self._broker, _batch(queue, made)) for queue, made in batches])
            for (queue, sent), answer in zip(batches, answers, strict=True):
                good = answer is not None and answer.code == Code.SUCCESS
                self._produced += len(sent) * good
                failed += len(sent) * (not good)
                del queues[queue][:BATCH_MAX]
        return {"produced": self._produced, "failed": failed}

    def offsets(self, group: str) -> dict[str, Any]:
        """Messages below a group's committed offsets; none is ever gone here."""
        asks = Asks("demo", group)
        queues = [TopicPartition(TOPIC, number, NAME) for number in range(PARTITIONS)]
        answers = self._network.ask_all([(self._broker, asks.committed(tp)) for tp in queues])
        good = [one for one in answers if one is not None and one.code == Code.SUCCESS]
        return {"dropped": 0, "committed": sum(map(read_offset, good))}

    def close(self) -> None:
        """End both."""
        for one in self._java:
            one.send_signal(signal.SIGKILL)
            one.wait()


def _batch(queue: int, messages: Sequence[tuple[int, Made]]) -> Ask:
    fields = {
        "a": "demo", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": str(int(time.time() * 1000)),
        "h": "0", "i": "", "j": "0", "k": "false", "m": "true",
    }  # fmt: skip
    return Ask(SEND_BATCH, fields, b"".join(_packed(messages)))


def _packed(messages: Iterable[tuple[int, Made]]) -> Iterable[bytes]:
    for number, made in messages:
        body = made.value.encode()
        properties = f"UNIQ_KEY\x01{number:032X}\x02TAGS\x01{made.tag}\x02message-id\x01{made.id}\x02".encode()
        rest = struct.pack(">iiii", 0, 0, 0, len(body)) + body + struct.pack(">h", len(properties)) + properties
        yield struct.pack(">i", 4 + len(rest)) + rest


def main(jars: str, folder: str, total: int, removed: str) -> None:
    """Serve commands until the parent is gone.

    Args:
        jars: Where the jars are.
        folder: For the node's files; must not be there.
        total: Messages of the stream.
        removed: Removed when the parent is gone; empty for none.
    """
    with contextlib.closing(Node(jars, Path(folder), total)) as node:
        node.start()
        serve(node.address, node.produce, node.offsets)
    if removed:
        remove(Path(removed))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
