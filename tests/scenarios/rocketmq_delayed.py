"""Delayed messages of RocketMQ while the daemon is killed and queues move: each arrives once, and none early."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.scenarios.rocketmq_messages import PATIENCE_S, QUEUES, configuration, owned
from tests.support.audit import Finding, Tally, tally_counts
from tests.support.kafka import unique
from tests.support.process import Daemon, ended_after, wait_until
from tests.support.receiver import Receiver, value_hash
from tests.support.rocketmq import Message, Node
from tests.support.scene import await_rest

DUE = "sidecar-deliver-at"
AGAIN_S = 60.0
"""A broker keeps the lock of a killed member for so long."""


class DelayedFlow:
    """Messages of a topic, most of them with a due time.

    Args:
        node: The node.
        topic: New and empty.
        seed: Of tags and due times.
    """

    def __init__(self, node: Node, topic: str, seed: int = 1) -> None:
        self.due_ms: dict[str | None, int] = {}
        """By hash of the body."""
        self.wanted: Counter[str | None] = Counter()
        self._node = node
        self._topic = topic
        self._chance = random.Random(seed)

    def send(self, count: int, first_ms: int, last_ms: int, *, undelayed: int = 4) -> None:
        """Send so many more, due within this time from now; one of `undelayed` has no due time."""
        now_ms, before = time.time_ns() // 1_000_000, self.wanted.total()
        for at in range(0, count, 1_000):
            sent = []
            for number in range(before + at, before + min(count, at + 1_000)):
                body, properties = b"%d" % number, {}
                if number % undelayed:
                    due_ms = now_ms + self._chance.randint(first_ms, last_ms)
                    properties[DUE] = str(due_ms)
                    self.due_ms[value_hash(body)] = due_ms
                sent.append(Message(body, tag=self._chance.choice(("created", "paid")), properties=properties))
                self.wanted[value_hash(body)] += 1
            self._node.send(self._topic, sent, queues=QUEUES)

    def missing(self, receiver: Receiver) -> int:
        """How many have not arrived."""
        return (self.wanted - Counter(row[-1] for row in receiver.rows())).total()

    def tally(self, receiver: Receiver) -> Tally:
        """What arrived against what is wanted.

        Raises:
            AssertionError: A message came before it was due.
        """
        rows = [(row[-1], part["at_ms"]) for part in receiver.parts() for row in part["rows"]]
        early = [self.due_ms[value] - at_ms for value, at_ms in rows if at_ms < self.due_ms.get(value, 0)]
        assert not early, f"{len(early)} messages came up to {max(early)} ms early"
        return tally_counts(Counter(value for value, _ in rows), self.wanted)

    def late_ms(self, receiver: Receiver) -> list[int]:
        """How late each delayed message was, in rising order."""
        rows = [(row[-1], part["at_ms"]) for part in receiver.parts() for row in part["rows"]]
        return sorted(at_ms - self.due_ms[value] for value, at_ms in rows if value in self.due_ms)


def delayed_configuration(node: Node, topic: str, group: str, url: str, **change: Any) -> dict[str, Any]:
    """Small batches, and the default store."""
    return configuration(node, topic, group, url, **({"delay": {}} | change))


def kills(
    node: Node,
    folder: Path,
    messages: int,
    times: int,
    *,
    spread_s: float,
    seed: int = 1,
    delay: Mapping[str, Any] | None = None,
) -> Finding:
    """Killed by SIGKILL at random instants while messages fall due, its state kept: each once, and none early.

    Args:
        node: The node.
        folder: For the daemon's files.
        messages: Three quarters of them have a due time.
        times: The number of kills.
        spread_s: They fall due within this time.
        seed: Of due times and instants.
        delay: The section `delay`.

    Raises:
        AssertionError: A message came before it was due.
    """
    begun, chance = time.monotonic(), random.Random(seed)
    topic, group = node.create_topic(unique("topic"), QUEUES), unique("group")
    flow = DelayedFlow(node, topic, seed)
    with Receiver(out=folder / unique("rows")) as receiver:
        config = delayed_configuration(node, topic, group, receiver.url, delay=dict(delay or {}))
        with Daemon(folder, config, name=group) as daemon:
            flow.send(messages, 0, int(spread_s * 1000))
            for _ in range(times):
                time.sleep(chance.uniform(0, spread_s / times))  # the instant is random: there is nothing to wait for
                daemon.kill9()
                daemon.start()
            patience_s = spread_s + PATIENCE_S
            wait_until(lambda: flow.missing(receiver) == 0, patience_s, "all has arrived", detail=daemon.log_tail)
            await_rest(daemon, PATIENCE_S)
            daemon.stop()
        found, late = flow.tally(receiver), flow.late_ms(receiver)
    notes = f"half of them at most {late[len(late) // 2]} ms late"
    return Finding("RocketMQ: delayed, `kill -9`", times, messages, found, time.monotonic() - begun, notes)


def heirs(
    node: Node, folder: Path, messages: int, times: int, delay: Mapping[str, Any], *, stands_still: bool = False
) -> Finding:
    """Two members with folders of their own; one is killed while messages fall due, and comes back without its folder.

    Args:
        node: The node.
        folder: For the daemons' files.
        messages: All have a due time.
        times: How often.
        delay: The section `delay`.
        stands_still: Whether it stands still instead, until the other one has its queues, and goes on then.

    Raises:
        AssertionError: A message came before it was due.
    """
    begun = time.monotonic()
    topic, group = node.create_topic(unique("topic"), QUEUES), unique("group")
    flow = DelayedFlow(node, topic)
    with Receiver(out=folder / unique("rows")) as receiver:
        config = delayed_configuration(node, topic, group, receiver.url, delay=dict(delay))
        members = [Daemon(folder, config, name=f"{group}-{name}") for name in ("first", "second")]
        with ended_after(members):
            for member in members:
                member.start()
            for number in range(times):
                victim, heir = members[number % 2], members[1 - number % 2]
                for member in members:
                    _await(member, QUEUES // 2, None)
                flow.send(messages, 2_000, 12_000, undelayed=messages + 1)
                wait_until(
                    lambda: _delayed(members[0]) + _delayed(members[1]) > messages // 2, PATIENCE_S, "they are held"
                )
                wait_until(lambda: flow.missing(receiver) < messages * 3 // 4, PATIENCE_S, "some fall due")
                names = set(node.members(group))
                if stands_still:
                    victim.process.send_signal(signal.SIGSTOP)
                else:
                    victim.kill9()
                    shutil.rmtree(victim.state_dir)
                    wait_until(lambda: len(node.members(group)) == 1, PATIENCE_S, "the broker misses it")
                    (name,) = names - set(node.members(group))
                    _unlock(node, group, name, topic)
                _await(heir, QUEUES, None)
                if stands_still:
                    victim.process.send_signal(signal.SIGCONT)
                else:
                    victim.start()
            wait_until(
                lambda: flow.missing(receiver) == 0, PATIENCE_S, "all has arrived",
                detail=lambda: (flow.missing(receiver), members[0].log_tail(), members[1].log_tail()),
            )  # fmt: skip
            for member in members:
                member.stop()
        found = flow.tally(receiver)
    kind = f"RocketMQ: delayed, 2 members, one {'stands still' if stands_still else '`kill -9` and its folder deleted'}"
    return Finding(kind, times, messages * times, found, time.monotonic() - begun)


def moves(
    node: Node, folder: Path, messages: int, *, is_killed: bool, delay: Mapping[str, Any] | None = None
) -> Finding:
    """Queues move to another member and back: what each held comes once, from its own disk.

    Args:
        node: The node.
        folder: For the daemons' files.
        messages: So many are sent three times.
        is_killed: Whether the first member is killed, before it could commit anything that it held: the other one
            holds that too, and the first drops it when it has the queues again.
        delay: The section `delay`.

    Raises:
        AssertionError: A message came before it was due.
    """
    begun = time.monotonic()
    topic, group = node.create_topic(unique("topic"), QUEUES), unique("group")
    flow = DelayedFlow(node, topic)
    with Receiver(out=folder / unique("rows")) as receiver:
        config = delayed_configuration(node, topic, group, receiver.url, delay=dict(delay or {}))
        first, second = (Daemon(folder, config, name=f"{group}-{name}") for name in ("first", "second"))
        with ended_after([first, second]):
            if is_killed:
                receiver.fail("status", status=503)
            first.start()
            flow.send(messages, 20_000, 25_000)
            _await(first, QUEUES, messages * 3 // 4)
            if is_killed:
                (client_id,) = node.members(group)
                first.kill9()
                second.start()
                _unlock(node, group, client_id, topic)
                receiver.control({"faults": []})
            else:
                second.start()
                _await(second, QUEUES // 2, 0)
                first.stop()
            _await(second, QUEUES, 0)
            flow.send(messages, 20_000, 25_000)
            _await(second, QUEUES, messages * 3 // 4)
            first.start()
            _await(first, QUEUES // 2, 0)
            flow.send(messages, 0, 10_000)
            wait_until(lambda: _delayed(first) + _delayed(second) > 0, PATIENCE_S, "both hold some")
            # Each delivers what it held of the queues that it has; the rest waits until it has the others.
            second.stop()
            _await(first, QUEUES, None)
            wait_until(lambda: _delayed(first) == 0, PATIENCE_S, "the first delivers", detail=first.log_tail)
            first.stop()
            second.start()
            _await(second, QUEUES, None)
            wait_until(
                lambda: flow.missing(receiver) == 0, PATIENCE_S, "all has arrived",
                detail=lambda: (flow.missing(receiver), second.log_tail()),
            )  # fmt: skip
            await_rest(second, PATIENCE_S)
            second.stop()
        found = flow.tally(receiver)
    kind = f"RocketMQ: delayed, queues move {'after a kill' if is_killed else 'in order'}"
    return Finding(kind, 4, 3 * messages, found, time.monotonic() - begun)


def _await(member: Daemon, queues: int, held: int | None) -> None:
    """Wait until it has so many queues, and holds at least so many messages."""
    member.wait_ready()
    wait_until(lambda: len(owned(member)) == queues, AGAIN_S + PATIENCE_S, "it has its queues", detail=member.log_tail)
    if held is not None:
        wait_until(lambda: _delayed(member) >= held, PATIENCE_S, "it holds them", detail=member.log_tail)


def _unlock(node: Node, group: str, client_id: str, topic: str) -> None:
    """Give the locks of a killed member back, which the broker would keep for a minute."""
    for queue in range(QUEUES):
        node.unlock(group, client_id, topic, queue)
    for queue in range(4):
        node.unlock(group, client_id, f"%RETRY%{group}", queue)


def _delayed(member: Daemon) -> int:
    """Number of messages that it holds of the queues that it has."""
    return int(member.status()["delayed"])
