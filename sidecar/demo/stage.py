"""The common base of both acts: broker, stream and folder, and a daemon that is killed and restarted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import sidecar
from sidecar.demo.children import Child
from sidecar.demo.evidence import ask_status
from sidecar.demo.stream import TOPIC, WANTED_TAGS, poisonous
from sidecar.errors import UnavailableError

KILL_AT = 0.35
READY_S = 30.0
BROKER_START_S = 150.0
FETCH_S = 1_200.0
"""Maven may have to fetch 100 MB before RocketMQ starts."""
CLONE = Path(sidecar.__file__).parents[1]
NODE = "tests.support.rocketmq_demo"
"""Starts RocketMQ; only a clone has it, not the distribution."""
PRODUCE_MAX = 50_000
"""Limit of messages produced at once: half of what the broker's producer queues."""
MOCK_WAIT = (
    "must wait some 12 s until the mock broker gives up the dead member; "
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
        self,
        total: int,
        folder: Path,
        audience: Audience,
        *,
        keep: bool,
        rocketmq: bool = False,
        delays: bool = False,
    ) -> None:
        if rocketmq and not (CLONE / f"{NODE.replace('.', '/')}.py").is_file():
            raise UnavailableError(
                "--source rocketmq works in a clone of the repository only: what starts RocketMQ is not installed",
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
            return ["-m", "sidecar.demo.broker", str(self.total), self._janitor, "delays" if self.delays else ""]
        return ["-m", NODE, str(self.folder / "node"), str(self.total), self._janitor]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._broker.kill()

    def produce(self, until: int) -> None:
        """Send the stream up to this number of messages.

        Raises:
            UnavailableError: The broker did not accept all, or ended.
        """
        while self.produced < until:
            answer = self._broker.ask(min(until - self.produced, PRODUCE_MAX))
            self.produced = answer["produced"]
            if answer["failed"]:
                raise self._broker.failed(f"did not take {answer['failed']} messages")

    def consumed(self, group: str) -> int:
        """Messages below the offsets that a consumer group has committed.

        Raises:
            UnavailableError: The broker has not kept all of the stream, or ended.
        """
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
        """Start the daemon."""
        self._child = Child(
            f"{self.group}-daemon", ["-m", "sidecar", "run", "-c", str(self.config)], self._stage.folder
        )
        self._stage.audience.say("daemon", f"sidecar run, pid {self._child.pid}")

    def wait_ready(self) -> None:
        """Wait until the daemon consumes messages."""
        self._child.wait_until(lambda: (self.status() or {"ready": False})["ready"], READY_S)

    def status(self) -> dict[str, Any] | None:
        """The daemon's status; None while it does not answer.

        Raises:
            UnavailableError: It has ended.
        """
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
        """Kill the daemon with SIGKILL."""
        self._child.kill()

    def stop(self) -> None:
        """Stop the daemon with SIGTERM; its exit code must be 0."""
        self._child.stop()

    def tail(self) -> str:
        """The end of its log."""
        return self._child.tail()
