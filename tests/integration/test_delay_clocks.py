"""Delayed messages of a real Kafka while a daemon's clock is set: each comes once, and none early by that clock."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.scenarios.delayed import HEADER
from tests.scenarios.delayed_members import takeovers
from tests.scenarios.exactly_once import configuration, finish, new_topics
from tests.support.clock import Clock
from tests.support.kafka import Broker, Outgoing, produce
from tests.support.process import Daemon, http_get, wait_until
from tests.support.receiver import Receiver, value_hash

BOTH = pytest.mark.parametrize("store", ["changelog", pytest.param("local", marks=pytest.mark.proof)])
HOUR_S, DAY_S = 3_600, 86_400
LASTS_S = 61
"""After so long, a step forward is believed."""
COUNT = 300
"""Messages that are put at once."""


class Stage:
    """A daemon whose clock is set, with a receiver, and what was produced."""

    def __init__(self, broker: Broker, topic: str, daemon: Daemon, receiver: Receiver, clock: Clock) -> None:
        self.daemon, self.receiver, self.clock = daemon, receiver, clock
        self._broker, self._topic = broker, topic
        self._sent = 0

    def put(self, due_ms: int) -> list[object]:
        """Produce messages, wait until they are held, and return the hashes of their values.

        They are committed too: time that passes meanwhile would be the commit's.
        """
        numbers = range(self._sent, self._sent + COUNT)
        self._sent += COUNT
        headers = [("tag", b"a"), (HEADER, b"%d" % due_ms)]
        produce(self._broker.bootstrap, self._topic, [Outgoing(n % 2, b"%d" % n, None, headers) for n in numbers])
        held = self.held + COUNT
        wait_until(lambda: self.held == held, 30, "they are held", detail=self.daemon.log_tail)
        wait_until(self._is_committed, 30, "they are committed", detail=self.daemon.log_tail)
        return [value_hash(b"%d" % number) for number in numbers]

    def _is_committed(self) -> bool:
        committed = self._broker.committed(self.daemon.status()["group_id"])
        ends = self._broker.end_offsets(self._topic)
        return all(committed.get((self._topic, partition), (0,))[0] == end for partition, end in ends.items())

    @property
    def held(self) -> int:
        """Messages that the daemon holds."""
        return int(self.daemon.status()["delayed"])

    @property
    def came(self) -> list[object]:
        """The hashes of what was delivered, in order."""
        return [row[-1] for row in self.receiver.rows()]

    def pass_by(self) -> None:
        """Produce a message without a due time, and wait until it has come."""
        count = len(self.came)
        produce(self._broker.bootstrap, self._topic, [Outgoing(0, b"passes by", None, [("tag", b"a")])])
        self.await_rows(count + 1)
        assert self.came.pop() == value_hash(b"passes by"), "something else came"

    def await_rows(self, count: int) -> None:
        """Wait until so many rows have come."""
        wait_until(lambda: len(self.came) >= count, 30, "all that is due comes", detail=self.daemon.log_tail)

    def come_when_due(self, sent: list[object], due_ms: int) -> None:
        """Let time pass until these are due; each comes once, and none before."""
        count = len(self.came)
        self.clock.go_on((due_ms - self.clock.now_ms) / 1_000 - 1)
        self.await_rows(count + COUNT)
        assert Counter(self.came[count:]) == Counter(sent)
        came_ms = [part["at_ms"] for part in self.receiver.parts() if part["rows"][0][-1] in sent]
        assert min(came_ms) + self.clock.wall_s * 1_000 >= due_ms

    def is_told(self) -> bool:
        """Whether the daemon says that its clock is ahead."""
        return "the system clock jumped ahead" in str(self.daemon.status()["problems"])

    @property
    def cpu_s(self) -> float:
        """CPU time of the daemon so far."""
        fields = Path(f"/proc/{self.daemon.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def staged(broker: Broker, folder: Path, store: str) -> Iterator[Stage]:
    """A daemon that is ready."""
    (topic,) = new_topics(broker, 1, 2)
    clock = Clock(folder / "clock")
    with Receiver() as receiver:
        config = configuration(broker, [topic], receiver.url, "*", delay={"store": store, "max": "90d"})
        with Daemon(folder, config, program=clock.program) as daemon:
            daemon.wait_ready()
            yield Stage(broker, topic, daemon, receiver, clock)
            finish(broker, daemon, 60)


@BOTH
def test_a_clock_that_steps_forward_by_an_hour(kafka: Broker, tmp_path: Path, store: str) -> None:
    """Nothing comes until the step has lasted; then what is due comes at once, once, and in few requests."""
    with staged(kafka, tmp_path, store) as on:
        soon = on.put(on.clock.now_ms + 1_800_000)
        on.put(on.clock.now_ms + 2 * HOUR_S * 1_000)
        on.clock.step(HOUR_S)
        wait_until(on.is_told, 10, "the step is told", detail=on.daemon.log_tail)
        on.pass_by()
        assert (len(on.came), on.held) == (1, 2 * COUNT)
        on.clock.go_on(LASTS_S)
        on.await_rows(1 + COUNT)
        wait_until(lambda: not on.daemon.status()["problems"], 10, "no problem is left", detail=on.daemon.log_tail)
        assert Counter(on.came[1:]) == Counter(soon)
        assert on.held == COUNT
        assert len(on.receiver.parts()) <= 10


def test_a_clock_that_is_not_believed_costs_nothing(kafka: Broker, tmp_path: Path) -> None:
    """Messages that would be due by that clock do not keep the daemon busy."""
    with staged(kafka, tmp_path, "changelog") as on:
        on.put(on.clock.now_ms + 1_800_000)
        on.clock.step(HOUR_S)
        wait_until(on.is_told, 10, "the step is told", detail=on.daemon.log_tail)
        used, begun = on.cpu_s, time.monotonic()
        time.sleep(3)  # the measured time
        assert (on.cpu_s - used) / (time.monotonic() - begun) < 0.05


def test_a_step_forward_that_is_undone(kafka: Broker, tmp_path: Path) -> None:
    """The problem goes, and messages come when they are due."""
    with staged(kafka, tmp_path, "changelog") as on:
        due_ms = on.clock.now_ms + 600_000
        sent = on.put(due_ms)
        on.clock.step(HOUR_S)
        wait_until(on.is_told, 10, "the step is told", detail=on.daemon.log_tail)
        on.clock.step(-HOUR_S)
        wait_until(lambda: not on.is_told(), 10, "the problem goes", detail=on.daemon.log_tail)
        assert on.came == []
        on.come_when_due(sent, due_ms)


@BOTH
def test_a_clock_that_steps_back_by_an_hour(kafka: Broker, tmp_path: Path, store: str) -> None:
    """What is held waits for an hour longer, nothing is lost, and the daemon is well meanwhile."""
    with staged(kafka, tmp_path, store) as on:
        due_ms = on.clock.now_ms + 60_000
        sent = on.put(due_ms)
        on.clock.step(-HOUR_S)
        on.clock.go_on(61)
        on.pass_by()
        assert (len(on.came), on.held, on.daemon.status()["problems"]) == (1, COUNT, [])
        assert http_get(f"{on.daemon.admin_url}/readyz")[0] == 200
        on.come_when_due(sent, due_ms)


@BOTH
def test_a_message_that_is_due_in_40_days(kafka: Broker, tmp_path: Path, store: str) -> None:
    """It is held over a restart a day before, and delivered when it is due."""
    with staged(kafka, tmp_path, store) as on:
        due_ms = on.clock.now_ms + 40 * DAY_S * 1_000
        sent = on.put(due_ms)
        on.daemon.kill9()
        on.clock.step(39 * DAY_S)
        on.daemon.start()
        on.daemon.wait_ready()
        wait_until(lambda: on.held == COUNT, 30, "they are held again", detail=on.daemon.log_tail)
        on.pass_by()
        assert len(on.came) == 1
        on.come_when_due(sent, due_ms)


@pytest.mark.slow
def test_members_whose_clocks_differ(kafka: Broker, tmp_path: Path) -> None:
    """One is 400 ms ahead and killed, the other 400 ms behind: none is early by more, and each arrives once."""
    assert takeovers(kafka, tmp_path, 8_000, 1, skew_ms=400).exact
