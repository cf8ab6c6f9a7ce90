"""Proxies apart from their broker that are killed, or stopped, and started again: what arrives over gRPC."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from tests.support.audit import Finding
from tests.support.kafka import unique
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver, value_hash
from tests.support.rocketmq import Message, RocketMqNode
from tests.support.rocketmq_flow import PATIENCE_S, QUEUES, WANTED, Bodies, await_all, await_arrival, configuration
from tests.support.rocketmq_servers import proxy

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
