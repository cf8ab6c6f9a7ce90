"""A loop that pulls timer messages of RocketMQ, and notes how late each is, by the due time in its body."""

from __future__ import annotations

import re
import sys
import uuid
from functools import partial

from benchmarks.delay_receiver import Lateness
from benchmarks.rocketmq_bare import BUDGET_BYTES
from sidecar.core.records import Run
from sidecar.runtime.build import QUEUE_SHARE as CLIENT_SHARE
from sidecar.sources.rocketmq.remoting.pulling import Node
from sidecar.sources.rocketmq.remoting.pulls import Pulls
from sidecar.sources.rocketmq.remoting.routes import Routes
from sidecar.sources.rocketmq.remoting.source import QUEUE_SHARE
from sidecar.sources.rocketmq.wire.network import Link, Network
from sidecar.sources.rocketmq.wire.requests import Asks, Subscription

DUE = re.compile(rb'"due":(\d+)')


def _place(link: Link, _: str) -> Node:
    return Node(link)


def main(name_server: str, topic: str, messages: int) -> None:
    """Pull until all messages have come; a line is printed once the queues are pulled."""
    network, asks = Network(None, None, lambda frame: None), Asks("timer", f"timer-{uuid.uuid4().hex}")
    routes = Routes(network, asks, [name_server], [topic])
    assert not routes.find([topic], 10.0)
    pulls, lateness = Pulls(asks, QUEUE_SHARE * BUDGET_BYTES // CLIENT_SHARE), Lateness(messages)
    for tp in routes.queues(topic):
        link = routes.link(tp.broker)
        assert link is not None
        pulls.add_queue(tp, 0, Subscription(topic, "*"), partial(_place, link))
    print("pulling", flush=True)
    while True:
        pulls.ask()
        network.turn(0.02, lambda: pulls.is_full)
        for found in pulls.take():
            if isinstance(found, Run):
                lateness.note([int(due) for message in found.messages for due in DUE.findall(message.body)])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
