"""The demo's course: set up, flow, kill -9 in mid-flow, flow on, stop, count. Shows nothing by itself."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sidecar.demo.books import Books, count
from sidecar.demo.children import Child, free_port, listens
from sidecar.demo.desk import ReceiverDesk, ask_status, dead_letters
from sidecar.demo.stream import POISON, TOPIC, WANTED_TAGS, poisonous, stream, wanted
from sidecar.errors import UnavailableError

GROUP = "demo"
PRODUCE_S = 6.0
"""Over which the stream is sent, so that there is something to watch and to interrupt."""
KILL_AT = 0.35
TICK_S = 0.2
READY_S = 30.0
STALLED_S = 30.0
MOCK_WAIT = (
    "must wait some 12 s until the mock broker gives up the dead member; "
    "on Kafka it removes that member itself and delivers again within 3 s"
)
CONFIG = """source:
  kafka:
    bootstrap_servers: {address}
    group_id: {group}
    topics: [{topic}]
tags:
  from: {{header: tag}}
  subscribe: {tags}
dedup:
  by: {{header: message-id}}
sink:
  http:
    url: http://127.0.0.1:{port}/ingest
state:
  dir: {state}
admin:
  listen: 127.0.0.1:0
log:
  format: console
"""


class Audience(Protocol):
    """Who watches."""

    def say(self, who: str, text: str) -> None:
        """Something happened."""
        ...

    def progress(self, produced: int, delivered: int, seconds: float) -> None:
        """So far."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a demo."""

    books: Books
    batches: int
    """At the receiver."""
    seconds: float
    """From the first message to the last."""
    waited_seconds: float
    """From the kill to the next delivery."""
    fastest: int
    """Most rows that came within a second."""
    log_tail: str
    """The end of the daemon's log."""


class Play:
    """One demo.

    Args:
        total: Messages.
        folder: For configuration, state, logs and the receiver's database.
        audience: Who watches.
        keep: Whether the folder outlives a demo that is killed.
    """

    def __init__(self, total: int, folder: Path, audience: Audience, *, keep: bool) -> None:
        self._total = total
        self._folder = folder
        self._audience = audience
        self._janitor = "" if keep else str(folder)
        self._wanted = wanted(total)
        self._produced = 0
        self._killed_at = self._resumed_at = 0.0
        self._history: list[tuple[float, int]] = []

    def run(self) -> Outcome:
        """Play it to the end.

        Raises:
            UnavailableError: A process of it ended or hangs.
        """
        total, poison = self._total, poisonous(self._total)
        self._audience.say("stream", f"{total:,} messages: 5 % sent twice, some with unwanted tags, {poison} poison")
        with ExitStack() as stack:
            self._broker = self._start_broker(stack)
            port = self._start_receiver(stack)
            self._desk = stack.enter_context(closing(ReceiverDesk(self._folder / "receiver.db")))
            self._write_config(port)
            self._start_daemon()
            stack.callback(lambda: self._daemon.kill())  # whichever it is by then
            self._daemon.wait_until(lambda: (self._status() or {"ready": False})["ready"], READY_S)
            begun = time.monotonic()
            self._flow(begun)
            seconds = time.monotonic() - begun
            self._stop_daemon()
            waited, tail = max(0.0, self._resumed_at - self._killed_at), self._daemon.tail()
            return Outcome(self._count(), self._desk.batches(), seconds, waited, _fastest(self._history), tail)

    # Setting up

    def _start_broker(self, stack: ExitStack) -> Child:
        arguments = ["-m", "sidecar.demo.broker", str(self._total), GROUP, self._janitor]
        broker = Child("broker", arguments, self._folder, pipes=True)
        stack.callback(broker.kill)
        self._address = broker.hear()["address"]
        self._audience.say("broker", f"librdkafka's mock cluster at {self._address}")
        return broker

    def _start_receiver(self, stack: ExitStack) -> int:
        port = free_port()
        database = str(self._folder / "receiver.db")
        arguments = [str(receiver_file()), "--port", str(port), "--db", database, "--refuse", POISON]
        self._receiver = Child("receiver", arguments, self._folder)
        stack.callback(self._receiver.kill)
        self._receiver.wait_until(lambda: listens(port), READY_S)
        self._audience.say("receiver", f"{receiver_file().name} at 127.0.0.1:{port}; answers 400 to poison")
        return port

    def _write_config(self, port: int) -> None:
        tags = " || ".join(WANTED_TAGS)
        state = json.dumps(str(self._folder / "state"))
        values = {"address": self._address, "group": GROUP, "topic": TOPIC, "tags": tags, "port": port, "state": state}
        self._config = self._folder / "sidecar.yaml"
        self._config.write_text(CONFIG.format(**values))

    def _start_daemon(self) -> None:
        self._daemon = Child("daemon", ["-m", "sidecar", "run", "-c", str(self._config)], self._folder)
        self._audience.say("daemon", f"sidecar run, pid {self._daemon.pid}")

    def _status(self) -> dict[str, Any] | None:
        return ask_status(self._folder / "state", self._daemon.pid)

    # Flowing

    def _flow(self, begun: float) -> None:
        """Send and watch until all is settled, or nothing moves any more."""
        moved, moved_at = (0, 0, 0), begun
        while True:
            tick = time.monotonic()
            self._produce(tick - begun)
            status, delivered = self._status(), self._desk.delivered()
            self._history.append((tick, delivered))
            self._audience.progress(self._produced, delivered, tick - begun)
            self._watch(status, delivered)
            settled = sum(one["watermark"] for one in status["partitions"]) if status else 0
            if self._resumed_at and settled == self._total:
                return
            if moved != (self._produced, delivered, settled):
                moved, moved_at = (self._produced, delivered, settled), tick
            if tick - moved_at > STALLED_S:
                self._audience.say("daemon", f"nothing has moved for {STALLED_S:g} s: the demo ends here")
                return
            time.sleep(max(0.0, tick + TICK_S - time.monotonic()))

    def _watch(self, status: dict[str, Any] | None, delivered: int) -> None:
        """Kill the daemon once, and see it come back."""
        for child in (self._daemon, self._receiver):
            if not child.running:
                raise child.failed(f"ended with exit code {child.process.returncode}")
        if status is None:
            return
        if not self._killed_at and delivered >= KILL_AT * self._wanted:
            self._kill(status["in_flight"])
        elif self._killed_at and not self._resumed_at and status["delivered"]:
            self._resumed_at = time.monotonic()
            waited = self._resumed_at - self._killed_at
            self._audience.say("daemon", f"delivers again, {waited:.1f} s after the kill")

    def _produce(self, seconds: float) -> None:
        due = min(self._total, int(self._total * seconds / PRODUCE_S)) - self._produced
        if due > 0:
            told = self._broker.ask(due)
            self._produced = told["produced"]
            if told["failed"]:
                raise self._broker.failed(f"did not take {told['failed']} messages")

    def _kill(self, in_flight: int) -> None:
        self._daemon.kill()
        self._audience.say("kill -9", f"of pid {self._daemon.pid}, with some {in_flight:,} messages in flight")
        self._killed_at = time.monotonic()
        self._start_daemon()
        self._audience.say("", MOCK_WAIT)

    def _stop_daemon(self) -> None:
        code = self._daemon.stop()
        if code:
            raise self._daemon.failed(f"ended with exit code {code} at SIGTERM")
        self._audience.say("SIGTERM", "stopped, exit code 0")

    # Counting

    def _count(self) -> Books:
        offsets = self._broker.ask("offsets")
        if offsets["dropped"]:
            raise UnavailableError(
                f"the mock broker dropped {offsets['dropped']} messages: it keeps 5 MB a partition",
                hint="a smaller --messages",
            )
        letters = dead_letters(self._folder / "state")
        return count(stream(self._total), offsets["committed"], self._desk.rows(), letters)


def receiver_file() -> Path:
    """The reference receiver: in the installed package, or in the examples of a checkout."""
    installed = Path(__file__).with_name("receiver.py")
    return installed if installed.exists() else Path(__file__).parents[2] / "examples" / "receiver.py"


def _fastest(history: list[tuple[float, int]]) -> int:
    """The most rows of a second, from (seconds, rows so far)."""
    best, start = 0.0, 0
    for at, rows in history:
        while at - history[start][0] > 1.0 and start < len(history) - 1:
            start += 1
        since, before = history[max(0, start - 1)]
        if at - since >= 1.0:
            best = max(best, (rows - before) / (at - since))
    return round(best)
