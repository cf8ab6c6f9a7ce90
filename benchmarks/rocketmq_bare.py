"""The yardstick for RocketMQ: a loop that pulls and counts, on the daemon's own client, filter and read-ahead."""

from __future__ import annotations

import json
import sys
import time
import uuid
from functools import partial

from sidecar.core.records import Run
from sidecar.runtime.build import QUEUE_SHARE as CLIENT_SHARE
from sidecar.sources.rocketmq.remoting.pulling import Node
from sidecar.sources.rocketmq.remoting.pulls import Pulls
from sidecar.sources.rocketmq.remoting.routes import Routes
from sidecar.sources.rocketmq.remoting.source import QUEUE_SHARE
from sidecar.sources.rocketmq.wire.network import Link, Network
from sidecar.sources.rocketmq.wire.requests import Asks, Subscription

BUDGET_BYTES = 128 << 20


def _place(link: Link, _: str) -> Node:
    return Node(link)


def main(name_server: str, topic: str, expression: str, messages: int) -> None:
    """Count `messages` messages; print CPU and wall seconds from the first to the last, and how many that were."""
    network, asks = Network(None, None, lambda frame: None), Asks("bare", f"bare-{uuid.uuid4().hex}")
    routes = Routes(network, asks, [name_server], [topic])
    assert not routes.find([topic], 10.0)
    pulls = Pulls(asks, QUEUE_SHARE * BUDGET_BYTES // CLIENT_SHARE)
    for tp in routes.queues(topic):
        link = routes.link(tp.broker)
        assert link is not None
        pulls.add_queue(tp, 0, Subscription(topic, expression), partial(_place, link))
    counted = first = 0
    begun_s = cpu_s = 0.0
    while counted < messages:
        pulls.ask()
        network.turn(0.02, lambda: pulls.is_full)
        counted += sum(len(found.messages) for found in pulls.take() if isinstance(found, Run))
        if counted and not first:
            first, begun_s, cpu_s = counted, time.perf_counter(), time.process_time()
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - begun_s
    print(json.dumps({"messages": counted - first, "cpu_s": cpu_s, "wall_s": wall_s}))
    network.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
