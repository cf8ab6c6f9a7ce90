"""Proxies apart from their broker, or around it: killed, stopped, or with messages held for long; what arrives."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from sidecar.sources.rocketmq.wire.requests import DLQ
from tests.support.audit import Finding
from tests.support.kafka import unique
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver, value_hash
from tests.support.rocketmq import Message, RocketMqNode
from tests.support.rocketmq_flow import PATIENCE_S, QUEUES, WANTED, Bodies, await_all, await_arrival, configuration
from tests.support.rocketmq_servers import proxy

HELD_S = 90.0
"""Messages are held for so long: the first lease of 15 s, and one of 60 s, are extended meanwhile."""
RETURNS_S = 75.0
"""Time after which a message whose acknowledgement matched nothing has come again."""
MEMBERS = 2

Sent = tuple[int, int, str]
"""Queue, offset as the broker gave it (requests under way overtake each other), and hash."""


def restarts(
    node: RocketMqNode, folder: Path, messages: int, times: int, *, proxies: int = 1, fifo: bool = False
) -> Finding:
    """A proxy is killed, and next time stopped in order, in mid-flow; then it is started again.

    Args:
        node: Has the broker.
        folder: Of this check.
        messages: How many are sent.
        times: How often each is done.
        proxies: How many there are; each is ended in turn.
        fifo: Whether messages come in the order of their queues.

    Raises:
        AssertionError: With `fifo`, a message arrived before one that stands before it in its queue.
    """
    begun_s, bodies, waits = time.monotonic(), Bodies(node), list[float]()
    sent: list[Sent] = []
    if fifo:
        node.create_topic(bodies.topic, QUEUES, "FIFO")
        node.create_group(bodies.group, orderly=True)
    with ExitStack() as stack:
        servers = [stack.enter_context(proxy(folder / unique("proxy"), node.name_server)) for _ in range(proxies)]
        receiver = stack.enter_context(Receiver(out=folder / unique("rows")))
        source = {"client": "grpc", "endpoints": ",".join(server.address for server in servers)}
        config = configuration(source, bodies, receiver.url)
        config["sink"]["http"] |= {"ordering": "partition"} if fifo else {}
        daemon = stack.enter_context(Daemon(folder, config, name=unique("proxies")))
        daemon.wait_ready(PATIENCE_S)
        receiver.fail("slow", delay_ms=15)
        for number in range(2 * times):
            server = servers[number % proxies]
            sent += _send(bodies, messages // times // 4, number)
            rows = min(receiver.stats["rows"] + 50, bodies.wanted.total())
            wait_until(lambda rows=rows: receiver.stats["rows"] >= rows, PATIENCE_S, "it delivers")  # type: ignore[misc]
            (server.kill, server.stop)[number // proxies % 2]()
            sent += _send(bodies, messages // times // 4, -1 - number)
            server.start()
            back_s = time.monotonic()
            await_arrival(bodies, receiver, daemon)
            waits.append(time.monotonic() - back_s)
        await_all(daemon, bodies, receiver)
        daemon.stop()
        found = bodies.tally(receiver)
        if fifo:
            _check_order(receiver, sent)
    how = f"{'FIFO, in order, ' if fifo else ''}{'one proxy' if proxies == 1 else f'{proxies} proxies'}"
    point = f"proxies apart from their broker: {how}; `kill -9` and SIGTERM in turn"
    notes = f"all had arrived {max(waits):.1f} s after its return at most"
    return Finding(point, 2 * times, bodies.sent, found, time.monotonic() - begun_s, notes)


def _send(bodies: Bodies, count: int, number: int) -> list[Sent]:
    messages = [
        Message(b"%d %d" % (number, i), WANTED[0], queue=i % QUEUES, properties={"__SHARDINGKEY": f"{i % QUEUES}"})
        for i in range(count)
    ]
    places: list[tuple[int, int]] = []
    bodies.send_these(messages, by=lambda some: places.extend(bodies.node.send(bodies.topic, some, queues=QUEUES)))
    return [(queue, at, str(value_hash(one.body))) for (queue, at), one in zip(places, messages, strict=True)]


def _check_order(receiver: Receiver, sent: list[Sent]) -> None:
    arrived_at = {row[3]: at for at, row in reversed(list(enumerate(receiver.rows())))}
    for queue in range(QUEUES):
        order = [arrived_at[hashed] for of_queue, _, hashed in sorted(sent) if of_queue == queue]
        assert order == sorted(order), f"queue {queue} came in the order {order}"


def held_for_long(node: RocketMqNode, folder: Path, messages: int) -> list[Finding]:
    """A receiver refuses everything for longer than leases last, and then accepts it: nothing comes again.

    Args:
        node: Has a broker with a proxy around it (local mode); another proxy is apart from it (cluster mode).
        folder: Of this check.
        messages: How many are sent to each proxy's topic, many to a batch.
    """
    begun_s = time.monotonic()
    with ExitStack() as stack:
        apart = stack.enter_context(proxy(folder / unique("proxy"), node.name_server))
        scenes = {
            mode: _Held(node, folder, endpoints, stack)
            for mode, endpoints in (("local", node.endpoints), ("cluster", apart.address))
        }
        for scene in scenes.values():
            scene.take(messages)
        time.sleep(HELD_S)  # how long they are held is what is tried
        for scene in scenes.values():
            scene.receiver.faults.clear()
        for scene in scenes.values():
            await_arrival(scene.bodies, scene.receiver, *scene.daemons)
        time.sleep(RETURNS_S)  # what did not come again by now never will
        return [
            Finding(
                f"messages held for {HELD_S:.0f} s by {MEMBERS} members over `client: grpc`, a proxy in {mode} mode", 1,
                messages, scene.bodies.tally(scene.receiver), time.monotonic() - begun_s, scene.end(),
            )
            for mode, scene in scenes.items()
        ]  # fmt: skip


class _Held:
    """Members of a group behind one proxy, and their receiver, which refuses everything."""

    def __init__(self, node: RocketMqNode, folder: Path, endpoints: str, stack: ExitStack) -> None:
        self.bodies = Bodies(node)
        node.create_group(self.bodies.group, times_max=1)  # the second repetition would be a dead letter
        self.receiver = stack.enter_context(Receiver(out=folder / unique("rows")))
        self.receiver.fail("status", status=503)
        source = {"client": "grpc", "endpoints": endpoints}
        config = configuration(source, self.bodies, self.receiver.url)
        self.daemons = [Daemon(folder, config, name=unique("holds")) for _ in range(MEMBERS)]
        for daemon in self.daemons:
            stack.enter_context(daemon).wait_ready(PATIENCE_S)

    def take(self, messages: int) -> None:
        """Send messages, and wait until members hold all of them."""
        self.bodies.send(messages)
        wanted = self.bodies.wanted.total()
        wait_until(lambda: sum(one.status()["in_flight"] for one in self.daemons) >= wanted, PATIENCE_S, "all are held")

    def end(self) -> str:
        """Stop the members; the number of messages that were handed over more than once."""
        again = sum(one.status()["duplicate"] for one in self.daemons)
        for daemon in self.daemons:
            daemon.stop()
        twice = len(self.bodies.tally(self.receiver).twice)
        dead = self.bodies.node.end_offsets(f"{DLQ}{self.bodies.group}", 1)[0]
        assert not again, f"{again} came again to their member, {twice} were delivered twice, {dead} are dead letters"
        assert not dead, f"{dead} accepted messages are dead letters of the broker"
        return "none was handed over again, or is a dead letter of the group (`retryMaxTimes: 1`)"
