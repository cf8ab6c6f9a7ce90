"""An operator cancels and releases delayed messages while the daemon is killed: each answer stands."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from pathlib import Path
from threading import Timer

from click.testing import CliRunner

from sidecar.cli import main
from sidecar.errors import EXIT_NO_INPUT
from tests.scenarios.delayed import HEADER, PARTITIONS
from tests.scenarios.exactly_once import configuration, finish, new_topics
from tests.scenarios.kills import SMALL_BATCHES
from tests.support.audit import Finding, tally_counts
from tests.support.kafka import Broker, Outgoing, produce, unique
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver, value_hash

BETWEEN = 20
"""Requests between two kills, about."""


def delay_requests(
    broker: Broker, folder: Path, messages: int, times: int, *, store: str, forgets: bool = False, seed: int = 1
) -> Finding:
    """Cancel and release random messages while they fall due, and kill the daemon at random instants of that.

    Args:
        broker: The broker.
        folder: For the daemon's files.
        messages: All have a due time.
        times: The number of kills.
        store: `delay.store`.
        forgets: Whether the daemon's folder is deleted at each kill.
        seed: Of due times, requests and instants.

    Raises:
        AssertionError: A message came that was cancelled, or one early that was not to be released.
    """
    begun, chance = time.monotonic(), random.Random(seed)
    (topic,) = new_topics(broker, 1, PARTITIONS)
    now_ms, spread_ms = time.time_ns() // 1_000_000, 6_000 * (times + 1)
    dues = [now_ms + chance.randrange(spread_ms) for _ in range(messages)]
    cancelled, unknown, released, answers = set[int](), set[int](), set[int](), Counter[str]()
    with Receiver(out=folder / unique("rows")) as receiver:
        config = configuration(
            broker, [topic], receiver.url, "*", batch=dict(SMALL_BATCHES), delay={"store": store},
        )  # fmt: skip
        with Daemon(folder, config, name=unique("requests")) as daemon:
            values = [b"%d" % number for number in range(messages)]
            headers = [[("tag", b"a"), (HEADER, b"%d" % due_ms)] for due_ms in dues]
            sent = [Outgoing(i % PARTITIONS, values[i], None, headers[i]) for i in range(messages)]
            produce(broker.bootstrap, topic, sent)
            daemon.wait_ready()
            for kill in range(times + 1):
                timer = Timer(chance.uniform(0, 4), daemon.kill9)
                if kill < times:
                    timer.start()
                for _ in range(BETWEEN):
                    number, what = chance.randrange(messages), chance.choice(("cancel", "release"))
                    place = f"{topic}:{number % PARTITIONS}:{number // PARTITIONS}"
                    arguments = ["delay", what, "-c", str(daemon.config_path), place, "--due", str(dues[number])]
                    code = CliRunner().invoke(main, arguments).exit_code
                    answers[f"{what} {code}"] += 1
                    if what == "release":
                        released.add(number)
                    elif code == 0:
                        cancelled.add(number)
                    elif code != EXIT_NO_INPUT:
                        unknown.add(number)
                if kill < times:
                    timer.join()
                    if forgets and daemon.state_dir.exists():
                        shutil.rmtree(daemon.state_dir)
                    daemon.start()
                    daemon.wait_ready()
            wait_until(lambda: time.time_ns() // 1_000_000 > max(dues), spread_ms / 1_000 + 60, "all are due")
            finish(broker, daemon, 60 + messages / 1_000)
        rows = [(row[-1], part["at_ms"]) for part in receiver.parts() for row in part["rows"]]
    due_of = {value_hash(values[number]): dues[number] for number in set(range(messages)) - released}
    early = [value for value, at_ms in rows if at_ms < due_of.get(value or "", 0)]
    assert not early, f"{len(early)} messages came early"
    came = Counter(value for value, _ in rows)
    perhaps = {value_hash(values[number]) for number in unknown - cancelled}
    wanted = Counter(value_hash(values[number]) for number in range(messages) if number not in cancelled)
    for value in perhaps - came.keys():
        del wanted[value]
    found = tally_counts(came, wanted)
    kind = f"cancelled and released, {store}, `kill -9`{' and the folder deleted' if forgets else ''}"
    notes = f"{len(cancelled)} cancelled, {len(unknown)} without an answer; {dict(answers)}"
    return Finding(kind, times, messages, found, time.monotonic() - begun, notes)
