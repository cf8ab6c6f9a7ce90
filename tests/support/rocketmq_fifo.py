"""A FIFO topic over gRPC, read in order by a daemon that is killed: lost, twice, and how soon it goes on."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.audit import Finding
from tests.support.kafka import unique
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver
from tests.support.rocketmq import Message, RocketMqNode
from tests.support.rocketmq_flow import PATIENCE_S, QUEUES, WANTED, Bodies, await_all, configuration

NEXT_ROW_S, EACH_ROW_S = 5.0, 10.0


def fifo_kills(node: RocketMqNode, source: Mapping[str, Any], folder: Path, messages: int, times: int) -> Finding:
    """Killed while parts of several queues are in flight: each message once, and no queue waits for the dead."""
    begun, bodies, chance = time.monotonic(), Bodies(node), random.Random(times)
    node.create_topic(bodies.topic, QUEUES, "FIFO")
    node.create_group(bodies.group, orderly=True)
    waits: list[float] = []
    whole: list[float] = []
    with Receiver(out=folder / unique("rows")) as receiver:
        receiver.fail("slow", delay_ms=30)
        config = configuration(source, bodies, receiver.url)
        config["sink"]["http"]["ordering"] = "partition"
        with Daemon(folder, config, name=unique("fifo")) as daemon:
            daemon.wait_ready()
            for number in range(times):
                _send(bodies, messages // times, number)
                rows = receiver.stats["rows"] + chance.randrange(20, messages // times // 2)
                wait_until(lambda rows=rows: receiver.stats["rows"] >= rows, PATIENCE_S, "it delivers")  # type: ignore[misc]
                daemon.kill9()
                rows, again_s = receiver.stats["rows"], time.monotonic()
                daemon.start()
                wait_until(
                    lambda rows=rows: receiver.stats["rows"] > rows,  # type: ignore[misc]
                    PATIENCE_S, "it goes on", detail=daemon.log_tail,
                )  # fmt: skip
                waits.append(time.monotonic() - again_s)
                wait_until(lambda: bodies.has_arrived(receiver), PATIENCE_S, "all arrive", detail=daemon.log_tail)
                whole.append(time.monotonic() - again_s)
            await_all(daemon, bodies, receiver)
            assert not daemon.events("members.gone")
            daemon.stop()
        found = bodies.tally(receiver)
    assert max(waits) <= NEXT_ROW_S, f"went on after {sorted(waits)} s; {found}"
    assert max(whole) <= EACH_ROW_S, f"all had arrived after {sorted(whole)} s; {found}"
    notes = f"the next row after {max(waits):.1f} s at most, all of them after {max(whole):.1f} s"
    point = "FIFO over `client: grpc`, in order, `kill -9`"
    return Finding(point, times, bodies.sent, found, time.monotonic() - begun, notes)


def _send(bodies: Bodies, count: int, number: int) -> None:
    messages = [
        Message(
            b"%d %d" % (number, i), tag=WANTED[i % 2], queue=i % QUEUES, properties={"__SHARDINGKEY": f"{i % QUEUES}"}
        )
        for i in range(count)
    ]
    bodies.send_these(messages)
