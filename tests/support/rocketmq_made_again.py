"""A topic that is deleted and made again while the daemon runs, over any client: of the new one nothing is lost."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from tests.support.audit import Finding, tally_counts
from tests.support.kafka import unique
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver, value_hash
from tests.support.rocketmq import Message, RocketMqNode
from tests.support.rocketmq_flow import PATIENCE_S, QUEUES, Bodies, arrived, configuration

MEANWHILE = ("flowing", "paused by memory", "halted")
STOPPED_S = 3.0
UNASKED_S = 30.0
"""Longer than a request waits at a proxy, and than a broker takes to give out again what was not acknowledged."""
AWAY_S = (0.0, 2.0, 10.0)
FAULTS: Mapping[str, Mapping[str, Any]] = {
    "paused by memory": {"kind": "status", "status": 503},
    "halted": {"kind": "status", "status": 401},
}


def made_again(
    node: RocketMqNode, source: Mapping[str, Any], folder: Path, rounds: Iterable[tuple[str, float]], messages: int
) -> Finding:
    """In each round the topic is deleted meanwhile, made again so many seconds later, and filled beyond its old end.

    What of the old one had not arrived by then need not arrive, nor what the daemon says that the broker skipped.
    """
    begun, bodies, rounds = time.monotonic(), Bodies(node), list(rounds)
    wanted: Counter[str | None] = Counter()
    old: Counter[str | None] = Counter()
    skipped = 0
    with Receiver(out=folder / unique("rows")) as receiver:
        config = configuration(source, bodies, receiver.url, memory={"budget": "16MiB"})
        with Daemon(folder, config, name=unique("made-again")) as daemon:
            daemon.wait_ready()
            for number, (meanwhile, away_s) in enumerate(rounds):
                size = messages + number * messages // 4
                first = _send(bodies, b"%d old" % number, size // 2, 40)
                old.update(first)
                _await(daemon, receiver, first)
                _hold_up(daemon, receiver, meanwhile, old, bodies, number)
                node.delete_topic(bodies.topic)
                time.sleep(away_s)  # how long it is away is what is tried
                node.create_topic(bodies.topic, QUEUES)
                new = _send(bodies, b"%d new" % number, size, 40)
                wanted.update(new)
                receiver.faults.clear()
                wanted -= Counter(_await(daemon, receiver, new, skipped))
                skipped = _skipped(daemon)
            daemon.stop()
            assert daemon.events("topic.recreated") or source.get("client") == "grpc"
        came = arrived(receiver)
    found = tally_counts(came, wanted + Counter({one: came[one] for one in old if came[one] == 1}))
    waits = ", ".join(f"{seconds:g}" for seconds in sorted({seconds for _, seconds in rounds}))
    note = f"{', '.join(dict.fromkeys(how for how, _ in rounds))}; made again after {waits} s and filled at once"
    note += f"; {skipped:,} more were skipped by the broker, each told by `offset.skipped`" if skipped else ""
    point = f"topic made again over `client: {source.get('client', 'remoting')}`"
    return Finding(point, len(rounds), wanted.total(), found, time.monotonic() - begun, note)


def kept_offsets(node: RocketMqNode, source: Mapping[str, Any], folder: Path, times: int) -> Finding:
    """The topic is made again while no request waits, and some queues are told to begin at their old ends.

    Raises:
        AssertionError: What was skipped was not told to the message, as an error, for each queue apart.
    """
    begun, bodies = time.monotonic(), Bodies(node)
    wanted: Counter[str | None] = Counter()
    skipped = 0
    expected: list[tuple[int, int]] = []
    with (
        Receiver(out=folder / unique("rows")) as receiver,
        Daemon(folder, configuration(source, bodies, receiver.url), name=unique("skipped")) as daemon,
    ):
        daemon.wait_ready()
        for number in range(times):
            first = _send(bodies, b"%d old" % number, QUEUES * (10 + number), 40)
            wanted.update(first)
            _await(daemon, receiver, first)
            ends = node.end_offsets(bodies.topic, QUEUES)
            daemon.process.send_signal(signal.SIGSTOP)
            time.sleep(UNASKED_S)  # until nothing is given out any more: it would be of the new topic
            node.delete_topic(bodies.topic)
            node.create_topic(bodies.topic, QUEUES)
            kept = {queue: ends[queue] for queue in range(1 + number % (QUEUES - 1))}
            for queue, at in kept.items():
                node.commit(bodies.group, bodies.topic, queue, at)
            new = _send(bodies, b"%d new" % number, QUEUES * (max(ends.values()) + 20), 40)
            expected.extend(kept.items())
            daemon.process.send_signal(signal.SIGCONT)
            wait_until(
                lambda: len(daemon.events("offset.skipped")) >= len(expected), PATIENCE_S, "all is told",
                detail=lambda: (expected, daemon.events("offset.skipped"), daemon.log_tail()),
            )  # fmt: skip
            missing = _await_all_but(sum(kept.values()), new, receiver, daemon)
            assert {new.index(one) % QUEUES for one in missing} <= kept.keys()
            wanted.update(set(new) - missing)
            skipped += len(missing)
        daemon.stop()
        told = daemon.events("offset.skipped")
        came = arrived(receiver)
    found = tally_counts(came, wanted)
    assert sorted((one["partition"], one["skipped"]) for one in told) == sorted(expected), (told, expected)
    assert {one["level"] for one in told} == {"error"}
    assert skipped == sum(at for _, at in expected)
    notes = f"{skipped:,} more were skipped in {len(expected)} queues, each told as an error with its count"
    point = "topic made again over `client: grpc`, whose broker kept old offsets"
    return Finding(point, times, wanted.total(), found, time.monotonic() - begun, notes)


def every_round(times: int) -> Sequence[tuple[str, float]]:
    """All there are, over and over."""
    rounds = list(product(MEANWHILE, AWAY_S))
    return [rounds[i % len(rounds)] for i in range(times)]


def _await_all_but(count: int, sent: Sequence[str | None], receiver: Receiver, daemon: Daemon) -> set[str | None]:
    """Wait until no more than so many have not arrived; gives those."""
    wait_until(
        lambda: len(set(sent) - arrived(receiver).keys()) <= count, PATIENCE_S, "the rest arrives",
        detail=lambda: (daemon.status(), daemon.log_tail()),
    )  # fmt: skip
    return set(sent) - arrived(receiver).keys()


def _send(bodies: Bodies, text: bytes, count: int, size: int) -> list[str | None]:
    found = [b"%s %d " % (text, i) + bytes(size) for i in range(count)]
    bodies.send_these([Message(body, tag="paid") for body in found])
    return [value_hash(body) for body in found]


def _await(daemon: Daemon, receiver: Receiver, wanted: Iterable[str | None], skipped: int = 0) -> Iterable[str | None]:
    """Wait until all has arrived but what is said to be skipped beyond what was before; gives the latter."""
    wanted = set(wanted)

    def missing() -> set[str | None]:
        return wanted - arrived(receiver).keys()

    wait_until(
        lambda: not missing() or len(missing()) == _skipped(daemon) - skipped, PATIENCE_S, "all has arrived",
        detail=lambda: (len(missing()), daemon.status(), daemon.log_tail()),
    )  # fmt: skip
    return missing()


def _skipped(daemon: Daemon) -> int:
    return sum(event["skipped"] for event in daemon.events("offset.skipped"))


def _hold_up(
    daemon: Daemon, receiver: Receiver, how: str, old: Counter[str | None], bodies: Bodies, number: int
) -> None:
    if how not in FAULTS:
        receiver.fail("slow", delay_ms=5)
        old.update(_send(bodies, b"%d more" % number, 400, 40))
        return
    receiver.fail(**FAULTS[how])
    old.update(_send(bodies, b"%d more" % number, 400, 60_000 if how == "paused by memory" else 40))
    since: dict[object, float] = {}
    wait_until(lambda: _has_stopped(daemon, since), PATIENCE_S, f"it is {how}", detail=daemon.status)


def _has_stopped(daemon: Daemon, since: dict[object, float]) -> bool:
    """Whether nothing more is taken in, though the broker has more: for 3 s, since clients have bounds of their own."""
    status, now_s = daemon.status(), time.monotonic()
    rests_s = now_s - since.setdefault(status["consumed"], now_s)
    return bool(status["intake_stopped"]) or (bool(status["in_flight"]) and rests_s >= STOPPED_S)
