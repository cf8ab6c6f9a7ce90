"""The base of both acts: requirements, a broker, a folder, and a daemon that is killed and restarted."""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import confluent_kafka as ck

import sidecar
from sidecar.demo.books import PARTITIONS, TOPIC, WANTED_TAGS, Made, ask_status, delay_ms, number_of, poisonous, stream
from sidecar.demo.children import Child
from sidecar.errors import UnavailableError

TIMEOUT_S = 10.0
Answer = Callable[[Any], dict[str, Any]]
Headers = list[tuple[str, str | bytes | None]]


class Broker:
    """The mock cluster, its producer, and a group's offsets; with `delays`, most wanted messages have due times."""

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
    """Answer commands until the parent is gone; `offsets` answers the name of a group."""
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


SPARK_MIN = (4, 2)
JAVA_MIN = 17
INSTALL = "pip install 'consumer-sidecar[spark]'"


def lacking() -> str | None:
    """The missing requirement of the act on this machine; None if there is none."""
    try:
        installed = importlib.metadata.version("pyspark")
        importlib.metadata.version("pyarrow")
    except importlib.metadata.PackageNotFoundError as error:
        return f"{error.name} is missing; install it with: {INSTALL}"
    if tuple(map(int, installed.split(".")[:2])) < SPARK_MIN:
        return f"pyspark {installed} is too old; install a newer one with: {INSTALL}"
    java = _java_version()
    if java is None:
        return f"Java is missing; install version {JAVA_MIN} or later, or set JAVA_HOME"
    return f"Java {java} is too old: version {JAVA_MIN} or later is needed" if java < JAVA_MIN else None


def _java_version() -> int | None:
    home = os.environ.get("JAVA_HOME")
    program = f"{home}/bin/java" if home else shutil.which("java")
    with suppress(OSError):
        said = subprocess.run([program or "", "-version"], capture_output=True, text=True, check=False).stderr
        if match := re.search(r'version "(?:1\.)?(\d+)', said):
            return int(match[1])
    return None


KILL_AT = 0.35
READY_S = 30.0
BROKER_START_S = 150.0
FETCH_S = 1_200.0
"""Maven may have to fetch 100 MB before RocketMQ starts."""
CLONE = Path(sidecar.__file__).parents[1]
NODE = "tests.support.rocketmq_demo"
"""Starts RocketMQ; only a clone has it, not the distribution."""
PRODUCE_MAX = 50_000
"""Limit of messages produced at once: half of the producer's queue."""
MOCK_WAIT = (
    "must wait about 12 s until the mock broker gives up the dead member; "
    "on Kafka it removes that member itself and delivers again within 3 s"
)
SOURCES = {
    "kafka": """source:
  kafka:
    bootstrap_servers: {address}
    group_id: {group}
    topics: [{topic}]
tags:
  from: {{header: tag}}
""",
    "rocketmq": """source:
  rocketmq:
    name_servers: {address}
    group: {group}
    topics: [{topic}]
tags:
""",
}
REST = """  subscribe: {tags}
dedup:
  by: {{header: message-id}}
{sections}
state:
  dir: {state}
admin:
  listen: 127.0.0.1:0
log:
  format: console
"""


class Audience(Protocol):
    """Interface for the output of an act."""

    def say(self, who: str, text: str) -> None:
        """Report an event."""
        ...

    def progress(self, counts: Mapping[str, tuple[int, int]], seconds: float) -> None:
        """Report progress: for each kind, the present number and the final one."""
        ...


class DemoStage:
    """The broker, which runs as long as the block, and the shared parts of the demo.

    Args:
        folder: Folder for configurations, states, logs and received messages.
        keep: Whether the folder outlives a demo that is killed.
        rocketmq: Whether RocketMQ is the source, in place of the mock cluster.
        delays: Whether messages have due times.

    Raises:
        UnavailableError: RocketMQ is requested outside of a clone.
    """

    def __init__(
        self, total: int, folder: Path, audience: Audience, *, keep: bool, rocketmq: bool = False, delays: bool = False
    ) -> None:
        if rocketmq and not (CLONE / f"{NODE.replace('.', '/')}.py").is_file():
            raise UnavailableError(
                "--source rocketmq works only in a clone of the repository, which has the module that starts RocketMQ",
                hint="make demo SOURCE=rocketmq, in a clone",
            )
        self.total = total
        self.folder = folder
        self.audience = audience
        self.produced = 0
        self.address = ""
        self.source = "rocketmq" if rocketmq else "kafka"
        self.delays = delays
        self._janitor = "" if keep else str(folder)

    def __enter__(self) -> DemoStage:
        poison = poisonous(self.total)
        text = f"{self.total:,} messages: 5 % sent twice, some with unwanted tags, {poison} poison"
        self.audience.say("stream", text)
        if self.delays:
            self.audience.say("", "three quarters of the wanted ones are due 1 to 9 s after they are sent")
        rocketmq = self.source == "rocketmq"
        if rocketmq:
            self.audience.say("broker", "starting RocketMQ; the first time Maven fetches its jars")
        self._broker = Child("broker", self._arguments(), self.folder, pipes=True)
        try:
            self.address = self._broker.hear(BROKER_START_S + FETCH_S * rocketmq)["address"]
        except BaseException:
            self._broker.kill()
            raise
        what = "a real RocketMQ" if rocketmq else "librdkafka's mock cluster"
        self.audience.say("broker", f"{what} at {self.address}")
        return self

    def _arguments(self) -> list[str]:
        if self.source == "kafka":
            return ["-m", "sidecar.demo.stage", str(self.total), self._janitor, "delays" if self.delays else ""]
        return ["-m", NODE, str(self.folder / "node"), str(self.total), self._janitor]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._broker.kill()

    def produce(self, until: int) -> None:
        """Send the stream up to this number of messages."""
        while self.produced < until:
            answer = self._broker.ask(min(until - self.produced, PRODUCE_MAX))
            self.produced = answer["produced"]
            if answer["failed"]:
                raise self._broker.failed(f"did not take {answer['failed']} messages")

    def consumed(self, group: str) -> int:
        """Messages below the offsets that a consumer group has committed."""
        offsets = self._broker.ask(group)
        if offsets["dropped"]:
            raise UnavailableError(
                f"the mock broker dropped {offsets['dropped']} messages: it keeps 5 MB a partition",
                hint="a smaller --messages",
            )
        return int(offsets["committed"])


class DemoDaemon:
    """`sidecar run` with one configuration: a process, and after its kill another.

    Args:
        group: Its consumer group, and the name of its files.
        sections: Sections of its configuration that other daemons of the demo have in another form.
    """

    def __init__(self, stage: DemoStage, group: str, sections: str) -> None:
        self._stage = stage
        self.group = group
        self.state_dir = stage.folder / f"{group}-state"
        self.config = stage.folder / f"{group}.yaml"
        values = {"address": stage.address, "group": group, "topic": TOPIC, "tags": " || ".join(WANTED_TAGS)}
        values |= {"sections": sections.rstrip(), "state": json.dumps(str(self.state_dir))}
        self.config.write_text((SOURCES[stage.source] + REST).format(**values))

    def start(self) -> None:
        self._child = Child(
            f"{self.group}-daemon", ["-m", "sidecar", "run", "-c", str(self.config)], self._stage.folder
        )
        self._stage.audience.say("daemon", f"sidecar run, pid {self._child.pid}")

    def wait_ready(self) -> None:
        self._child.wait_until(lambda: (self.status() or {"ready": False})["ready"], READY_S)

    def status(self) -> dict[str, Any] | None:
        """The daemon's status; None while it does not answer."""
        self._child.check()
        return ask_status(self.state_dir, self._child.pid)

    def kill_and_start(self, when: str) -> None:
        """Kill the daemon, and start another process at once."""
        self.kill()
        self._stage.audience.say("kill -9", f"of pid {self._child.pid}, {when}")
        self.start()
        if self._stage.source == "kafka":
            self._stage.audience.say("", MOCK_WAIT)

    def kill(self) -> None:
        self._child.kill()

    def stop(self) -> None:
        """Stop the daemon with SIGTERM; its exit code must be 0."""
        self._child.stop()

    def tail(self) -> str:
        return self._child.tail()
