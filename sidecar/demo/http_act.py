"""The demo's first act: delivery over HTTP, with kill -9, restart, stop and count. Shows nothing by itself."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidecar.demo.books import (
    POISON,
    Arrival,
    DemoBooks,
    Lateness,
    ReceiverDatabase,
    count,
    dead_letters,
    delay_ms,
    lateness,
    number_of,
    stream,
    wanted,
)
from sidecar.demo.children import Child, free_port, listens
from sidecar.demo.stage import KILL_AT, READY_S, DemoDaemon, DemoStage

GROUP = "demo"
PRODUCE_S = 6.0
"""Time over which the stream is sent, so that there is something to watch and to interrupt."""
TICK_S = 0.2
STALLED_S = 30.0
DELAYS_TICK_S = 0.05
"""Precision, in seconds, with which the demo of delayed messages sees arrivals."""
DELAY = """delay:
  store: local
"""
SINK = """sink:
  http:
    url: http://127.0.0.1:{port}/ingest
"""


@dataclass(frozen=True, slots=True)
class HttpOutcome:
    """The end of the act."""

    books: DemoBooks
    batches: int
    """Number of batches at the receiver."""
    seconds: float
    """Time from the first message to the last."""
    waited_seconds: float
    """Time from the kill to the next delivery."""
    fastest: int
    """Highest number of rows that arrived within a second."""
    log_tail: str
    """The end of the daemon's log."""
    lateness: Lateness | None
    """Lateness of delayed messages, if there are any."""


class HttpAct:
    """The daemon between broker and reference receiver."""

    def __init__(self, stage: DemoStage) -> None:
        self._stage = stage
        self._wanted = wanted(stage.total)
        self._killed_at = self._resumed_at = 0.0
        self._history: list[tuple[float, int]] = []
        self._arrivals: list[Arrival] = []

    def run(self) -> HttpOutcome:
        with ExitStack() as stack:
            port = self._start_receiver(stack)
            self._database = stack.enter_context(closing(ReceiverDatabase(self._stage.folder / "receiver.db")))
            sections = SINK.format(port=port) + (DELAY if self._stage.delays else "")
            self._daemon = DemoDaemon(self._stage, GROUP, sections)
            self._daemon.start()
            stack.callback(self._daemon.kill)
            self._daemon.wait_ready()
            begun = time.monotonic()
            self._flow(begun)
            seconds = time.monotonic() - begun
            self._daemon.stop()
            self._stage.audience.say("SIGTERM", "stopped, exit code 0")
            waited, tail = max(0.0, self._resumed_at - self._killed_at), self._daemon.tail()
            fastest, late = _fastest(self._history), self._lateness() if self._stage.delays else None
            return HttpOutcome(self._count(), self._database.batches(), seconds, waited, fastest, tail, late)

    def _lateness(self) -> Lateness:
        past_s = time.time() - time.monotonic()
        return lateness(self._arrivals, (self._killed_at + past_s) * 1000, (self._resumed_at + past_s) * 1000)

    def _start_receiver(self, stack: ExitStack) -> int:
        port = free_port()
        database = str(self._stage.folder / "receiver.db")
        arguments = [str(receiver_file()), "--port", str(port), "--db", database, "--refuse", POISON]
        self._receiver = Child("receiver", arguments, self._stage.folder)
        stack.callback(self._receiver.kill)
        self._receiver.wait_until(lambda: listens(port), READY_S)
        self._stage.audience.say("receiver", f"{receiver_file().name} at 127.0.0.1:{port}; answers 400 to poison")
        return port

    # Flowing

    def _flow(self, begun: float) -> None:
        """Send and watch until all is settled, or nothing progresses any more."""
        total = self._stage.total
        moved, moved_at = (0, 0, 0), begun
        while True:
            tick = time.monotonic()
            self._stage.produce(min(total, int(total * (tick - begun) / PRODUCE_S)))
            self._receiver.check()
            status, delivered = self._daemon.status(), self._database.delivered()
            self._history.append((tick, delivered))
            if self._stage.delays:
                self._look(time.time() * 1000)
            counts = {"produced": (self._stage.produced, total), "delivered": (delivered, self._wanted)}
            self._stage.audience.progress(counts, tick - begun)
            if status:
                self._watch(status, delivered)
            settled = sum(partition["watermark"] for partition in status["partitions"]) if status else 0
            held = status["delayed"] + status["in_flight"] if status else 0
            if self._resumed_at and status and settled == total and not held:
                return
            if moved != (self._stage.produced, delivered, settled + held):
                moved, moved_at = (self._stage.produced, delivered, settled + held), tick
            if tick - moved_at > STALLED_S:
                self._stage.audience.say("daemon", f"no progress for {STALLED_S:g} s: the demo ends here")
                return
            time.sleep(max(0.0, tick + (DELAYS_TICK_S if self._stage.delays else TICK_S) - time.monotonic()))

    def _look(self, now_ms: float) -> None:
        """Note the delayed messages that have arrived since the last call."""
        for value, sent_ms in self._database.new_rows():
            if delay := delay_ms(number_of(value)):
                self._arrivals.append(Arrival(sent_ms + delay, now_ms))

    def _watch(self, status: dict[str, Any], delivered: int) -> None:
        """Kill the daemon once, and see it come back."""
        if not self._killed_at and delivered >= KILL_AT * self._wanted:
            self._killed_at = time.monotonic()
            self._daemon.kill_and_start(f"with some {status['in_flight']:,} messages in flight")
        elif self._killed_at and not self._resumed_at and status["delivered"]:
            self._resumed_at = time.monotonic()
            waited = self._resumed_at - self._killed_at
            self._stage.audience.say("daemon", f"delivers again, {waited:.1f} s after the kill")

    def _count(self) -> DemoBooks:
        letters = dead_letters(self._daemon.state_dir)
        return count(stream(self._stage.total), self._stage.consumed(GROUP), self._database.rows(), letters)


def receiver_file() -> Path:
    """The reference receiver: in the installed package, or in the examples of a checkout."""
    installed = Path(__file__).with_name("receiver.py")
    return installed if installed.exists() else Path(__file__).parents[2] / "examples" / "receiver.py"


def _fastest(history: list[tuple[float, int]]) -> int:
    """The most rows in a second, from (seconds, rows so far)."""
    best, start = 0.0, 0
    for now, rows in history:
        while now - history[start][0] > 1.0 and start < len(history) - 1:
            start += 1
        since, before = history[max(0, start - 1)]
        if now - since >= 1.0:
            best = max(best, (rows - before) / (now - since))
    return round(best)
