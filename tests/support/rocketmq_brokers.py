"""Two masters, and a slave of one of them: what becomes of messages when one dies, counted at the receiver."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.audit import Finding, Tally
from tests.support.kafka import unique
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver, value_hash
from tests.support.rocketmq import BROKER, Message, RocketMqNode
from tests.support.rocketmq_flow import (
    PATIENCE_S,
    QUEUES,
    WANTED,
    Bodies,
    await_all,
    await_arrival,
    configuration,
    source_of,
)
from tests.support.rocketmq_servers import proxy

OTHER = "broker-b"
READ_FROM_SLAVES = {"slaveReadEnable": "true"}
LOCK_S = 70.0
"""Longer than a broker keeps a lock."""
JOINS_S = 60.0


class Both(Bodies):
    """What is sent to a topic of two masters, in turn.

    Args:
        node: The one with the name server.
        other: The other one.

    Attributes:
        of_other: What was sent to the other one.
    """

    def __init__(self, node: RocketMqNode, other: RocketMqNode) -> None:
        super().__init__(node)
        self.of_other: Counter[str | None] = Counter()
        node.create_topic(self.topic, QUEUES, broker=OTHER)
        node.create_group(self.group, broker=OTHER)

    def send_both(self, count: int) -> None:
        """Send so many more, half of them to each."""
        texts = [b"%d" % (self.sent + i) for i in range(count)]
        messages = [Message(text, tag=WANTED[i % len(WANTED)]) for i, text in enumerate(texts)]
        self.node.forget_links()  # one of them was another process perhaps
        for broker, these in ((BROKER, messages[::2]), (OTHER, messages[1::2])):

            def send(these: list[Message], broker: str = broker) -> None:
                self.node.send(self.topic, these, queues=QUEUES, broker=broker)

            self.send_these(these, send)
        self.of_other.update(value_hash(one.body) for one in messages[1::2])


def rebalances(node: RocketMqNode, client: str, folder: Path, times: int) -> Finding:
    """A member joins, and later leaves, and each time one of two brokers is killed and started meanwhile.

    Of the broker that was killed, messages may come twice to a member with another folder: it forgot their commits.
    What is in flight when a member joins or leaves may come twice over `native`, whichever broker has it.

    Raises:
        AssertionError: It is not so.
    """
    begun_s = time.monotonic()
    with RocketMqNode(folder / "other", joins=node, name=OTHER) as other, _source(client, node, folder) as source:
        bodies = Both(node, other)
        with Receiver(out=folder / unique("rows")) as receiver:
            receiver.fail("slow", delay_ms=15)
            config = configuration(source, bodies, receiver.url)
            stays, comes = (Daemon(folder, config, name=unique(name)) for name in ("stays", "comes"))
            with stays, comes:
                stays.wait_ready(PATIENCE_S)
                comes.wait_ready(PATIENCE_S)
                comes.stop(JOINS_S)
                for _ in range(times):
                    bodies.send_both(800)
                    comes.start()
                    _restart(other, lambda: comes.wait_ready(PATIENCE_S))
                    bodies.send_both(800)
                    _await(bodies, receiver, stays, comes)
                    bodies.send_both(800)
                    comes.terminate()
                    _restart(other, lambda: comes.wait(0, JOINS_S))
                    bodies.send_both(800)
                    _await(bodies, receiver, stays)
                await_all(stays, bodies, receiver)
                stays.stop()
            found = bodies.tally(receiver)
    repeated = len(found.twice)
    found.twice = [one for one in found.twice if client == "remoting" and not bodies.of_other[one]]
    point = f"a member joins or leaves while one of two brokers is killed, over `client: {client}`"
    notes = "only messages of the killed broker came twice" if client == "remoting" else ""
    return Finding(point, 2 * times, bodies.sent, found, time.monotonic() - begun_s, notes, repeated - len(found.twice))


@contextmanager
def _source(client: str, node: RocketMqNode, folder: Path) -> Iterator[Mapping[str, Any]]:
    """The source section; over gRPC a proxy for both brokers runs meanwhile."""
    if client != "grpc":
        yield source_of(client, node)
        return
    with proxy(folder / unique("proxy"), node.name_server) as server:
        yield {"client": "grpc", "endpoints": server.address}


def _restart(other: RocketMqNode, meanwhile: Callable[[], None]) -> None:
    other.kill()
    meanwhile()
    other.start()


def _await(bodies: Bodies, receiver: Receiver, *daemons: Daemon) -> None:
    await_arrival(bodies, receiver, *daemons, timeout_s=2 * PATIENCE_S)


@contextmanager
def _pair(folder: Path) -> Iterator[tuple[RocketMqNode, RocketMqNode]]:
    with (
        RocketMqNode(folder / unique("master"), config=READ_FROM_SLAVES) as master,
        RocketMqNode(folder / unique("slave"), config=READ_FROM_SLAVES, joins=master, number=1) as slave,
    ):
        yield master, slave


class _Copied:
    """A topic of the master that its slave has too, and a daemon that reads it."""

    def __init__(self, master: RocketMqNode, slave: RocketMqNode) -> None:
        self.bodies = Bodies(master)
        self._master, self._slave = master, slave
        slave.learn_topic(self.bodies.topic, QUEUES)

    def fresh_slave(self) -> None:
        """One whose master was away may take a minute or more to copy from it again."""
        self._slave.kill()
        self._slave.start()
        self._slave.learn_topic(self.bodies.topic, QUEUES)

    def send(self, count: int) -> None:
        """Send, and wait until the slave has it all."""
        topic = self.bodies.topic
        self.bodies.send(count)
        wait_until(
            lambda: sum(self._master.end_offsets(topic, QUEUES).values()) == self.bodies.sent, PATIENCE_S, "it is there"
        )
        ends = self._master.end_offsets(topic, QUEUES)
        wait_until(lambda: self._slave.ends_here(topic, QUEUES) == ends, 2 * PATIENCE_S, "the slave has its copies")


def read_from_slave(folder: Path, times: int) -> Finding:
    """A slave is read while its master is dead, once for long, and then the master comes back.

    Raises:
        AssertionError: It is not so, or anything was taken for a reset.
    """
    begun_s = time.monotonic()
    with _pair(folder) as (master, slave), Receiver(out=folder / unique("rows")) as receiver:
        scene = _Copied(master, slave)
        bodies = scene.bodies
        config = configuration(source_of("remoting", master), bodies, receiver.url)
        with Daemon(folder, config, name=unique("takeover")) as daemon:
            daemon.wait_ready(PATIENCE_S)
            for number in range(times):
                scene.fresh_slave()
                daemon.process.send_signal(signal.SIGSTOP)  # else it has read them before the master dies
                scene.send(2_000)
                master.kill()
                dead_s, rows = time.monotonic(), receiver.stats["rows"]
                receiver.fail("slow", delay_ms=20)
                daemon.process.send_signal(signal.SIGCONT)
                if number % 2:  # a member that starts meanwhile waits for the master, as long as a start may take
                    wait_until(lambda rows=rows: receiver.stats["rows"] > rows, PATIENCE_S, "it delivers")  # type: ignore[misc]
                    daemon.kill9()
                    daemon.start()
                    wait_until(
                        lambda: "a master of broker-a" in daemon.log_tail(), PATIENCE_S, "it says so",
                        detail=daemon.log_tail,
                    )  # fmt: skip
                else:
                    _await(bodies, receiver, daemon)
                if number == 0:
                    time.sleep(max(0.0, LOCK_S - (time.monotonic() - dead_s)))  # how long it is dead is what is tried
                master.start()
                bodies.send(200)
                _await(bodies, receiver, daemon)
                receiver.faults.clear()
            await_all(daemon, bodies, receiver)
            assert not daemon.events("partition.reset") and not daemon.events("topic.recreated")
            daemon.stop()
        found = bodies.tally(receiver)
    notes = f"{times // 2} times `kill -9` of the daemon meanwhile; the master comes back, once after {LOCK_S:.0f} s"
    point = "RocketMQ: a slave is read while its master is dead"
    return Finding(point, times, bodies.sent, found, time.monotonic() - begun_s, notes)


def promoted(folder: Path, times: int) -> Finding:
    """The master is dead for good, and its slave is started again as a master.

    Raises:
        AssertionError: Messages that the slave has are lost or come twice.
    """
    begun_s, sent, found = time.monotonic(), 0, Tally()
    for number in range(times):
        with _pair(folder) as (master, slave), Receiver(out=folder / unique("rows")) as receiver:
            scene = _Copied(master, slave)
            bodies = scene.bodies
            receiver.fail("slow", delay_ms=15)
            config = configuration(source_of("remoting", master), bodies, receiver.url)
            with Daemon(folder, config, name=unique("promoted")) as daemon:
                daemon.wait_ready(PATIENCE_S)
                scene.send(4_000)
                master.kill()
                if number % 2:
                    daemon.kill9()
                slave.stop()
                slave.become_master()
                slave.start()
                if number % 2:
                    daemon.start()
                master.forget_links()
                bodies.send(1_000)
                _await(bodies, receiver, daemon)
                await_all(daemon, bodies, receiver)
                assert not daemon.events("partition.reset") and not daemon.events("topic.recreated")
                daemon.stop()
            found.add(bodies.tally(receiver))
            sent += bodies.sent
    point = "RocketMQ: a slave in its dead master's place"
    notes = f"{times // 2} times `kill -9` of the daemon meanwhile"
    return Finding(point, times, sent, found, time.monotonic() - begun_s, notes)
