"""A FIFO topic over gRPC, read in order by a daemon that is killed: lost, twice, and how soon each queue goes on."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.audit import Finding
from tests.support.kafka import unique
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver, value_hash
from tests.support.rocketmq import Message, Node, RocketMqNode
from tests.support.rocketmq_flow import PATIENCE_S, QUEUES, WANTED, Bodies, await_all, configuration

NEXT_ROW_S, EACH_ROW_S = 5.0, 5.0
"""After a start, the next row; after that one, all."""
REFUSED_S, AGAIN_S = 20.0, 3.0


def fifo_bodies(node: Node, queues: int = QUEUES) -> Bodies:
    """Bodies for a FIFO topic, and a group that takes the messages of a queue one batch after the other."""
    bodies = Bodies(node)
    node.create_topic(bodies.topic, queues, "FIFO")
    node.create_group(bodies.group, orderly=True)
    return bodies


def fifo_kills(
    node: RocketMqNode,
    source: Mapping[str, Any],
    folder: Path,
    messages: int,
    times: int,
    within_s: float = NEXT_ROW_S,
) -> Finding:
    """Killed while parts of several queues are in flight: each message once, and no queue waits for the dead."""
    begun, bodies, chance = time.monotonic(), fifo_bodies(node), random.Random(times)
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
    assert max(waits) <= within_s, f"went on after {sorted(waits)} s; {found}"
    assert max(whole) <= within_s + EACH_ROW_S, f"all had arrived after {sorted(whole)} s; {found}"
    notes = f"the next row after {max(waits):.1f} s at most, all of them after {max(whole):.1f} s"
    point = "FIFO over `client: grpc`, in order, `kill -9`"
    return Finding(point, times, bodies.sent, found, time.monotonic() - begun, notes)


def fifo_refused(
    node: RocketMqNode,
    source: Mapping[str, Any],
    folder: Path,
    messages: int,
    times: int,
    queues: int = QUEUES,
    within_s: float = NEXT_ROW_S,
    refused_s: float = REFUSED_S,
) -> Finding:
    """Killed after refusals, and once more soon after the restart: then each queue goes on, and rests for no long time.

    What the first process held, whether it was sent or not, must not keep the last one waiting. As the first rows come
    from the state file, the longest time without a row counts, for each queue that has more.
    """
    begun, bodies, queue_of = time.monotonic(), fifo_bodies(node, queues), dict[str | None, int]()
    rests: list[float] = []
    with Receiver(out=folder / unique("rows")) as receiver:
        config = configuration(source, bodies, receiver.url)
        config["sink"]["http"]["ordering"] = "partition"
        with Daemon(folder, config, name=unique("fifo")) as daemon:
            daemon.wait_ready()
            for number in range(times):
                receiver.fail("status", status=503)
                queue_of |= _send(bodies, messages // times, number, queues)
                time.sleep(refused_s)
                daemon.kill9()
                daemon.start()
                time.sleep(AGAIN_S)
                daemon.kill9()
                receiver.control({"faults": []})
                again_ms = time.time() * 1000
                daemon.start()
                wait_until(lambda: bodies.has_arrived(receiver), PATIENCE_S, "all arrive", detail=daemon.log_tail)
                rests.append(_longest_rest_s(receiver, queue_of, again_ms))
            await_all(daemon, bodies, receiver)
            assert not daemon.events("members.gone")
            daemon.stop()
        found = bodies.tally(receiver)
    assert max(rests) <= within_s, f"a queue rested for {sorted(rests)} s; {found}"
    notes = f"no queue waited for its next row for more than {max(rests):.1f} s"
    point = (
        f"FIFO over `client: grpc`, {queues} queues: 503 for {refused_s:g} s, `kill -9`, and again after {AGAIN_S:g} s"
    )
    return Finding(point, times, bodies.sent, found, time.monotonic() - begun, notes)


def _longest_rest_s(receiver: Receiver, queue_of: Mapping[str | None, int], from_ms: float) -> float:
    """The longest time without a row of a queue, from a time on until its last row."""
    last, longest = dict[int, float](), 0.0
    for part in receiver.parts():
        for queue in {queue_of[row[3]] for row in part["rows"] if part["at_ms"] >= from_ms}:
            longest = max(longest, part["at_ms"] - last.get(queue, from_ms))
            last[queue] = part["at_ms"]
    return longest / 1000


def _send(bodies: Bodies, count: int, number: int, queues: int = QUEUES) -> dict[str | None, int]:
    """Send to all queues by turns; the queue of each message."""
    messages = [
        Message(
            b"%d %d" % (number, i), tag=WANTED[i % 2], queue=i % queues, properties={"__SHARDINGKEY": f"{i % queues}"}
        )
        for i in range(count)
    ]
    bodies.send_these(messages)
    return {value_hash(one.body): i % queues for i, one in enumerate(messages)}
