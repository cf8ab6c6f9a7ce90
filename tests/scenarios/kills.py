"""The daemon ended, and its broker broken, in mid-flow; what arrived, how soon, how often."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from tests.scenarios.exactly_once import PARTITIONS, configuration, finish, new_topics
from tests.support.audit import (
    COMMIT_MS,
    SETTLED_MS,
    Finding,
    Life,
    StrikingReceiver,
    first_new_rows_ms,
    oldest_repeat_ms,
    tally,
)
from tests.support.kafka import Broker, KafkaBroker, Outgoing, produce, unique
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver, value_hash
from tests.support.workload import TAGS, WANTED, Stream, Workload

How = Literal["kill -9", "SIGTERM"]


By = Literal["partition", "group"]


AGAIN_MS = 8_000
"""What no restart may take: without the eviction of the dead member it would be the session's 9 s. The 3 s that are
promised depend on the machine, since half of them are CPU time: what it did take stands in the notes."""


HEAL_S = 15.0
"""After an outage a fresh message is delivered within."""


LIFE_S = 3
"""Messages are produced over so many seconds for each end."""


SMALL_BATCHES = {"max_messages": 200, "linger": "50ms"}


def kills(
    broker: Broker,
    folder: Path,
    messages: int,
    times: int,
    *,
    how: How = "kill -9",
    by: By = "partition",
    remember: bool = True,
    delete_state: bool = False,
    tags: int = len(TAGS),
    seed: int = 1,
    slack: int = 1,
) -> Finding:
    """End the daemon at random instants of one flow and start it again: what arrived, how soon, how often.

    Args:
        broker: The broker.
        folder: For the daemon's files.
        messages: How many.
        times: How many ends, one in five of them within the first second of a life.
        how: By SIGKILL, or in order.
        by: `batch.by`.
        remember: Whether the receiver remembers names.
        delete_state: Delete the state folder after each end.
        tags: 8, of which 5 are wanted, or more, all wanted.
        seed: Of the instants.
        slack: How many times as long it may take to deliver again, and a commit.

    Raises:
        AssertionError: Something was lost, or came twice beyond what is promised, or a restart took too long.
    """
    begun = time.monotonic()
    topics = new_topics(broker, 3 if tags == len(TAGS) else 1)
    names = TAGS if tags == len(TAGS) else [f"tag-{i}" for i in range(tags)]
    wanted = WANTED if tags == len(TAGS) else names
    work = Workload(topics, PARTITIONS, messages, seed=seed, tags=names, wanted=wanted, odd=False)
    subscribe = " || ".join(WANTED) if tags == len(TAGS) else "*"
    with (
        StrikingReceiver(remember=remember, out=folder / unique("rows")) as receiver,
        Stream(broker.bootstrap, work, messages // (times * LIFE_S)) as stream,
    ):
        receiver.fail("slow", delay_ms=15)
        config = configuration(broker, topics, receiver.url, subscribe, batch={"by": by, **SMALL_BATCHES})
        with Daemon(folder, config, name=unique("killed")) as daemon:
            rows = messages * len(wanted) // len(names) // (times + 1)
            lives = _live_and_die(daemon, receiver, _instants(rows, times, seed), how, delete_state=delete_state)
            stream.wait()
            finish(broker, daemon, 60 + messages / 1_000)
        lives[-1].ended_ms = _now_ms()
        parts = receiver.parts()
    places = work.expected.wanted
    found = tally((row for part in parts for row in part["rows"]), places)
    repeats, notes = 0, []
    if how == "kill -9" and not remember:
        repeats, oldest = oldest_repeat_ms(parts, lives)
        assert oldest <= SETTLED_MS + slack * COMMIT_MS, f"{oldest} ms before a kill was stored what came again"
        found.twice.clear()
        notes.append(f"{repeats} rows repeated, the oldest {oldest} ms old at the kill")
    again = first_new_rows_ms(parts, lives)
    late = {life: ms for life, ms in again.items() if life and ms > slack * AGAIN_MS}
    assert not late, f"lives that delivered late, in milliseconds: {late}"
    waits = sorted(ms / 1000 for life, ms in again.items() if life)
    notes.append(f"delivers again after {waits[len(waits) // 2]:.1f} s, at most {waits[-1]:.1f} s")
    return Finding(_name(how, by, tags, remember=remember, deleted=delete_state), times, messages, found,
                   time.monotonic() - begun, "; ".join(notes), repeats)  # fmt: skip


def _name(how: How, by: By, tags: int, *, remember: bool, deleted: bool) -> str:
    words = [f"{how}" if how == "SIGTERM" else f"`{how}`", f"`batch.by: {by}`"]
    words += [f"{tags} groups"] if tags != len(TAGS) else []
    words += [] if remember else ["a receiver that does not remember names"]
    words += ["state folder deleted at each"] if deleted else []
    return ", ".join(words)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _instants(rows: int, times: int, seed: int) -> list[tuple[int, float]]:
    """For each end: how many rows must have arrived since the start, up to `rows`, and how many seconds pass then."""
    chance = random.Random(seed)
    return [
        (0, chance.uniform(0, 1.5)) if i % 5 == 1 else (chance.randint(1, rows), chance.uniform(0, 0.3))
        for i in range(times)
    ]


def _live_and_die(
    daemon: Daemon,
    receiver: StrikingReceiver,
    instants: list[tuple[int, float]],
    how: How,
    *,
    delete_state: bool,
) -> list[Life]:
    """Every second kill comes the moment a request has arrived; the others at any time."""
    lives = [Life(_now_ms())]
    for number, (rows, after_s) in enumerate(instants):
        if rows:
            _await_rows(daemon, receiver, receiver.stats["rows"] + rows)
        time.sleep(after_s)  # the instant is random: there is nothing to wait for
        if how == "SIGTERM":
            daemon.wait_ready()  # before that, a signal ends the process at once
            daemon.stop()
        elif number % 2 == 0:
            receiver.strike = daemon.process.kill
            wait_until(lambda: not daemon.running, 30, "a request comes")
        else:
            daemon.kill9()
        lives[-1].ended_ms = _now_ms()
        if delete_state:
            shutil.rmtree(daemon.state_dir, ignore_errors=True)
        lives.append(Life(_now_ms()))
        daemon.start()
    return lives


def _await_rows(daemon: Daemon, receiver: Receiver, rows: int) -> None:
    def there() -> bool:
        assert daemon.running, f"the daemon ended\n{daemon.log_tail()}"
        return receiver.stats["rows"] >= rows

    wait_until(there, 60, f"{rows} rows have arrived", detail=lambda: f"{receiver.stats}\n{daemon.log_tail()}")


def outage(
    broker: KafkaBroker, folder: Path, messages: int, kind: Literal["killed", "frozen"], *, times: int = 1,
    slack: int = 1,
) -> Finding:  # fmt: skip
    """The broker is killed and started again, or stands still for 15 s, in mid-flow: nothing lost or twice."""
    begun, slowest = time.monotonic(), 0.0
    topics = new_topics(broker)
    (fresh,) = new_topics(broker, 1, 1)
    work = Workload(topics, PARTITIONS, messages, odd=False)
    with (
        Receiver(out=folder / unique("rows")) as receiver,
        Stream(broker.bootstrap, work, messages // (times * LIFE_S), upto=0) as stream,
    ):
        receiver.fail("slow", delay_ms=15)
        config = configuration(broker, [*topics, fresh], receiver.url, batch=dict(SMALL_BATCHES))
        with Daemon(folder, config, name=kind) as daemon:
            for number in range(times):
                stream.go_on(messages // times)  # not all at once: a slow machine would have none left at the last kill
                _await_rows(daemon, receiver, receiver.stats["rows"] + messages // times // 8)
                _break_and_mend(broker, kind)
                slowest = max(slowest, _await_fresh(broker, fresh, receiver, slack * HEAL_S))
                work.expected.wanted[fresh, 0, number] = value_hash(b"fresh")
            stream.go_on()
            stream.wait()
            finish(broker, daemon, 60)
        found = tally(receiver.rows(), work.expected.wanted)
    notes = f"a fresh message at most {slowest:.1f} s after its return"
    return Finding(f"broker {kind} in mid-flow", times, messages, found, time.monotonic() - begun, notes)


def _await_fresh(broker: Broker, topic: str, receiver: Receiver, within_s: float) -> float:
    """Produce a message and wait until it arrives; the seconds that it took."""
    back, requests = time.monotonic(), len(receiver.headers)
    produce(broker.bootstrap, topic, [Outgoing(0, b"fresh", None, [("tag", WANTED[0].encode())])])

    def arrived() -> bool:
        return any(topic in headers["sidecar-parts"] for headers in receiver.headers[requests:])

    wait_until(arrived, within_s, "a fresh message arrives")
    return time.monotonic() - back


def _break_and_mend(broker: KafkaBroker, kind: Literal["killed", "frozen"]) -> None:
    if kind == "killed":
        broker.kill()
        time.sleep(2)  # long enough that every request under way fails
        broker.start()
    else:
        broker.freeze()
        time.sleep(15)  # beyond the session: the broker has thrown the member out when it wakes
        broker.thaw()


def together(*scenarios: Callable[[], Finding]) -> list[Finding]:
    """Run several that mostly wait, at the same time.

    Raises:
        AssertionError: Of the first one that failed.
    """
    with ThreadPoolExecutor(len(scenarios)) as pool:
        return [running.result() for running in [pool.submit(scenario) for scenario in scenarios]]
