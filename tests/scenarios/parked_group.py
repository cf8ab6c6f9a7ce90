"""One of a hundred tag groups fails for long under load: the others do not notice."""

from __future__ import annotations

import gc
import threading
import time
from array import array
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.scenarios.exactly_once import await_settled, configuration, new_topics
from tests.support.audit import Finding, Tally
from tests.support.kafka import Broker, unique
from tests.support.process import Daemon, wait_until
from tests.support.produce import make_producer
from tests.support.receiver import Receiver, parts_in

PARTITIONS = 3
GROUPS = 100
A_SECOND = 1_000
FAILING = 0
BUDGET_MIB = 16
TIMES = 10
"""The failing group's bytes are so many times `memory.budget`, and a partition's messages so many times the span."""
LARGEST_BYTES, SPAN_MIN = 60_000, 6_000
"""What comes until the group is parked must fit into budget and span: in less than 5 minutes, it is fewer times."""
WARM_S, BEFORE_S = 10.0, 300.0
"""Time before anything is measured; longest time for which it is measured before the group fails."""
RATIO_MAX = 1.1
"""Of the others' p99 meanwhile to that before."""
VALUE_BYTES = 200


class Load(threading.Thread):
    """Produces messages at an even rate, each group's in turn; knows when each was produced.

    Args:
        broker: The broker.
        topic: Has `PARTITIONS`; it is empty.
        large_bytes: Size of a value of the group that will fail.
    """

    def __init__(self, broker: Broker, topic: str, large_bytes: int) -> None:
        super().__init__(daemon=True)
        self.sent_ms = [array("q") for _ in range(PARTITIONS)]
        """By partition and offset."""
        self._producer = make_producer(broker.bootstrap, linger_ms=2)
        self._topic, self._large_bytes = topic, large_bytes
        self._over = threading.Event()

    def run(self) -> None:
        """Produce until `end`."""
        begun_s, number = time.monotonic(), 0
        while not self._over.wait(0.005):
            while number < (time.monotonic() - begun_s) * A_SECOND:
                self._send(number)
                number += 1
            self._producer.poll(0)

    def _send(self, number: int) -> None:
        group, partition = number % GROUPS, number // GROUPS % PARTITIONS
        value = (b"%d " % number).ljust(self._large_bytes if group == FAILING else VALUE_BYTES, b"x")
        self.sent_ms[partition].append(time.time_ns() // 1_000_000)
        self._producer.produce(self._topic, value, partition=partition, headers=[("tag", name_of(group).encode())])

    def end(self) -> None:
        """Stop, and wait until the broker has all."""
        self._over.set()
        self.join()
        assert self._producer.flush(60) == 0

    def tally(self, file: Path) -> Tally:
        """What the receiver got, against what was produced."""
        found, counts = Tally(), [bytearray(len(sent)) for sent in self.sent_ms]
        for _, partition, offset, _ in rows_of(file):
            if counts[partition][offset]:
                found.twice.append((partition, offset))
            counts[partition][offset] = 1
        for partition, count in enumerate(counts):
            found.lost += [(partition, offset) for offset, each in enumerate(count) if not each]
        return found

    def p99_ms(self, file: Path, begin_ms: int, end_ms: int) -> int:
        """Of the others' messages that were produced in this time: from producing until they had come."""
        took = array("q")
        for group, partition, offset, at_ms in rows_of(file):
            if group != name_of(FAILING) and begin_ms <= (sent_ms := self.sent_ms[partition][offset]) < end_ms:
                took.append(at_ms - sent_ms)
        return sorted(took)[int(len(took) * 0.99)]


def rows_of(file: Path) -> Iterator[tuple[str, int, int, int]]:
    """What a receiver got: group, partition, offset, and when."""
    for part in parts_in(file):
        for _, partition, offset, _ in part["rows"]:
            yield part["group"], partition, offset, part["at_ms"]


def name_of(group: int) -> str:
    """The tag of a group."""
    return f"g{group:02}"


class Watch:
    """Looks at a daemon's status, and notes how near it came to its limits.

    Args:
        daemon: The daemon.
        span_max: `batch.span_max`.
    """

    def __init__(self, daemon: Daemon, span_max: int) -> None:
        self._daemon, self._span_max = daemon, span_max
        self.held_bytes = self.parked = self.span = 0
        """The most of each."""

    def look_for(self, seconds: float) -> None:
        """Look for some time.

        Raises:
            AssertionError: A limit was reached.
        """
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            status = self._daemon.status()
            assert status["intake_stopped"] == [], status["intake_stopped"]
            self.held_bytes = max(self.held_bytes, status["held_bytes"])
            self.parked = max(self.parked, status["parked"])
            spans = (each["position"] - each["watermark"] for each in status["partitions"])
            self.span = max([self.span, *spans])
            time.sleep(min(left_s, 0.25))
        assert self.held_bytes < BUDGET_MIB << 20
        assert self.span < self._span_max


def failing_group(broker: Broker, folder: Path, seconds: int, *, store: str = "changelog") -> Finding:
    """A group fails for so long; how late the others' messages come before and meanwhile, and what came of all.

    Args:
        broker: The broker.
        folder: For the daemon's files.
        seconds: How long the group fails.
        store: `delay.store`.

    Raises:
        AssertionError: The others waited, or memory or span was used up.
    """
    begun = time.monotonic()
    (topic,) = new_topics(broker, 1, PARTITIONS)
    each = A_SECOND * seconds // GROUPS  # messages of a group
    span_max = max(SPAN_MIN, each * GROUPS // PARTITIONS // TIMES)
    large = min(LARGEST_BYTES, (TIMES * BUDGET_MIB << 20) // each)
    out = folder / unique("rows")
    with Receiver(out=out) as receiver:
        config: dict[str, Any] = configuration(
            broker, [topic], receiver.url, "*",
            delay={"store": store}, memory={"budget": f"{BUDGET_MIB}MiB"}, retry={"park_after": "10s"},
            batch={"by": "group", "linger": "500ms", "span_max": span_max},
        )  # fmt: skip
        load = Load(broker, topic, large)
        gc.disable()  # the receiver knows millions of names: a collection would take as long as what is measured
        with Daemon(folder, config, name=unique("group")) as daemon:
            daemon.wait_ready()
            watch, times = Watch(daemon, span_max), list[int]()
            load.start()
            watch.look_for(WARM_S)
            times.append(time.time_ns() // 1_000_000)
            watch.look_for(min(BEFORE_S, seconds))
            receiver.fail("status", group=name_of(FAILING))
            times.append(time.time_ns() // 1_000_000)
            watch.look_for(seconds)
            receiver.control({"faults": []})
            times.append(time.time_ns() // 1_000_000)
            back_s = time.monotonic()
            wait_until(
                lambda: not daemon.status()["parked"], 120 + seconds, "the store is empty", detail=daemon.log_tail
            )
            back_s = time.monotonic() - back_s
            load.end()
            await_settled(broker, [daemon], 120)
            daemon.stop()
    gc.enable()
    before, meanwhile = (load.p99_ms(out, *each) for each in pairwise(times))
    assert meanwhile <= before * RATIO_MAX, f"p99 {before} ms before, {meanwhile} ms meanwhile"
    notes = (
        f"the others' p99 {before} ms before, {meanwhile} ms meanwhile; the failing group's messages"
        f" {each * large / (BUDGET_MIB << 20):.1f} times the budget, {watch.parked:,} parked at most;"
        f" memory at most {watch.held_bytes / (1 << 20):.1f} of {BUDGET_MIB} MiB, span {watch.span:,} of {span_max:,};"
        f" all delivered {back_s:.1f} s after the group's return"
    )
    kind = f"1 of {GROUPS} groups fails for {seconds} s, `park_after: 10s`, {A_SECOND:,} messages a second"
    return Finding(kind, 1, sum(map(len, load.sent_ms)), load.tally(out), time.monotonic() - begun, notes)
