"""A receiver that refuses one tag group for long, while the daemon is killed: its batches wait in the store."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.scenarios.delayed import HEADER
from tests.scenarios.exactly_once import configuration, ends, new_topics
from tests.support.audit import Finding, tally_counts
from tests.support.kafka import Broker, Outgoing, produce, unique
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver, value_hash

PARTITIONS = 3
SPAN_MAX = 1_000
BATCH = 20
"""Messages of a batch of `parked_round`."""


def parked_outage(
    broker: Broker,
    folder: Path,
    messages: int,
    times: int,
    *,
    store: str = "local",
    delay: Mapping[str, Any] | None = None,
    forgets: bool = False,
    ordering: str = "none",
    seed: int = 1,
) -> Finding:
    """One of two groups fails until all is read, the daemon is killed then and while the rest is delivered.

    Args:
        broker: The broker.
        folder: For the daemon's files.
        messages: Half of them are of the group that fails; a quarter is delayed.
        times: The number of kills in each of the two times.
        store: `delay.store`.
        delay: More of the section `delay`.
        forgets: Whether the daemon's folder is deleted at each kill.
        ordering: `sink.http.ordering`.
        seed: Of instants.

    Raises:
        AssertionError: A partition waited for the group that fails.
    """
    begun, chance = time.monotonic(), random.Random(seed)
    (topic,) = new_topics(broker, 1, PARTITIONS)
    with Receiver(out=folder / unique("rows")) as receiver:
        receiver.fail("status", group="a")
        config = configuration(
            broker, [topic], receiver.url, "a || b",
            delay={"store": store, **(delay or {})}, batch={"max_messages": 50, "linger": "20ms", "span_max": SPAN_MAX},
            retry={"park_after": "300ms"},
        )  # fmt: skip
        config["sink"]["http"]["ordering"] = ordering
        with Daemon(folder, config, name=unique("parked")) as daemon:
            soon = b"%d" % (time.time_ns() // 1_000_000 + 2_000)
            produce(broker.bootstrap, topic, [_message(number, soon) for number in range(messages)])

            def restart() -> None:
                daemon.kill9()
                if forgets and daemon.state_dir.exists():
                    shutil.rmtree(daemon.state_dir)
                daemon.start()
                daemon.wait_ready()

            for _ in range(times):
                time.sleep(chance.uniform(0, 1.5))  # the instant is random: there is nothing to wait for
                restart()
            end = set(ends(broker, [topic]).values())
            _await(daemon, "all else is settled", lambda now: _is_out(now, end))
            assert daemon.status()["parked"] == messages // 2, "the store has all of the group that fails"
            receiver.control({"faults": []})
            for _ in range(times):
                time.sleep(chance.uniform(0, 0.5))  # as above
                restart()
            _await(daemon, "the store is empty", lambda now: _is_out(now, end) and not now["parked"])
            daemon.stop()
        parts = receiver.parts()
    wanted = Counter(value_hash(b"%d" % number) for number in range(messages))
    found = tally_counts(Counter(row[-1] for part in parts for row in part["rows"]), wanted)
    kind = f"parked, {store}, `kill -9`{' and the folder deleted' if forgets else ''}, ordering {ordering}"
    notes = f"{messages // 2} messages parked, `batch.span_max` {SPAN_MAX}"
    return Finding(kind, 2 * times, messages, found, time.monotonic() - begun, notes)


def parked_round(
    broker: Broker,
    folder: Path,
    messages: int,
    between: int,
    *,
    store: str = "changelog",
    delay: Mapping[str, Any] | None = None,
) -> Finding:
    """A partition goes from one member over others back to the first, with parked batches and its folder kept.

    Args:
        broker: The broker.
        folder: For the daemons' files.
        messages: All of the group that fails, which the first member parks.
        between: The number of owners in between; each commits, and parks one more.
        store: `delay.store`.
        delay: More of the section `delay`.

    Raises:
        AssertionError: A member takes the broker to have lost commits.
    """
    begun = time.monotonic()
    (topic,) = new_topics(broker, 1, 1)
    with Receiver(out=folder / unique("rows")) as receiver:
        receiver.fail("status", group="a")
        receiver.fail("hang", group="b")  # holds the watermark back, so that owners find much above it
        config = configuration(
            broker, [topic], receiver.url, "a || b", delay={"store": store, **(delay or {})}, drain_timeout="100ms",
            batch={"max_messages": BATCH, "linger": "20ms"}, retry={"park_after": "200ms"},
        )  # fmt: skip
        members = [Daemon(folder, config, name=unique("round")) for _ in range(1 + between)]
        produce(broker.bootstrap, topic, [_of("b", -1), *(_of("a", number) for number in range(messages))])
        sent = messages
        for number, member in enumerate(members):
            if number:
                produce(broker.bootstrap, topic, [_of("a", sent)])
                sent += 1
            here = sent if number == 0 or store != "local" else 1
            with member:
                member.wait_ready()
                _await(member, "all but one is parked", partial(_is_parked, here))
                member.terminate()
                member.process.wait(30)
        receiver.control({"faults": []})
        end = set(ends(broker, [topic]).values())
        for member in members if store == "local" else members[:1]:
            with member:
                member.wait_ready()
                _await(member, "the store is empty", lambda now: _is_out(now, end) and not now["parked"])
                assert not member.events("commit.behind"), "no commit was lost"
                member.stop()
        parts = receiver.parts()
    wanted = Counter(value_hash(b"%d" % number) for number in range(-1, sent))
    found = tally_counts(Counter(row[-1] for part in parts for row in part["rows"]), wanted)
    kind = f"parked, {store}, {between} owners in between, the first one's folder kept"
    notes = f"{messages // BATCH} batches parked by the first owner"
    return Finding(kind, 1, sent + 1, found, time.monotonic() - begun, notes)


def _is_parked(count: int, status: dict[str, Any]) -> bool:
    return bool(status["parked"] == count and status["partitions"])


def _of(tag: str, number: int) -> Outgoing:
    return Outgoing(0, b"%d" % number, None, [("tag", tag.encode())])


def _message(number: int, soon: bytes) -> Outgoing:
    headers: list[tuple[str, bytes | None]] = [("tag", b"ab"[number % 2 : number % 2 + 1])]
    if number % 4 == 3 or number % 8 == 0:
        headers.append((HEADER, soon))
    return Outgoing(number // 2 % PARTITIONS, b"%d" % number, None, headers)


def _is_out(status: dict[str, Any], end: set[int]) -> bool:
    assert status["intake_stopped"] == []
    is_read = {partition["watermark"] for partition in status["partitions"]} == end
    return is_read and not (status["in_flight"] or status["delayed"])


def _await(daemon: Daemon, what: str, holds: Any) -> None:
    wait_until(lambda: holds(daemon.status()), 120, what, detail=lambda: f"{daemon.status()}\n{daemon.log_tail()}")
