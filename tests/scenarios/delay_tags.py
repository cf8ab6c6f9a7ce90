"""Held messages of many tags: a listing, a count and a change of `tags` read those that may match, and no others."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from sidecar.cli import main
from tests.scenarios.delayed import HEADER, counted
from tests.scenarios.exactly_once import configuration, finish, new_topics
from tests.scenarios.reloads import reload
from tests.support.audit import Finding, tally_counts
from tests.support.kafka import Broker, Outgoing, produce, unique
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver, value_hash

PARTITIONS = 2
A_SECOND = 250_000
"""Messages that fall due within a second."""
LISTINGS = 4
"""Commands that together list all messages of the tag."""
READ_MAX = 1.1
"""Messages that are read, for each that matches."""
WANTED = 7


def delay_tags(
    broker: Broker, folder: Path, messages: int, tags: int, due_in_s: float, *, store: str, back: bool = False
) -> Finding:
    """Hold messages, look for one of their tags, and subscribe to it alone before they are due.

    Args:
        broker: The broker.
        folder: For the daemon's files.
        messages: At most 4,000 for each tag.
        tags: Number of tags.
        due_in_s: Until the first is due; all must be held by then, and the change be made.
        store: `delay.store`.
        back: Whether the tags are changed back in time.

    Raises:
        AssertionError: More was read than matches.
    """
    begun = time.monotonic()
    (topic,) = new_topics(broker, 1, PARTITIONS)
    matching, spread_ms = len(range(WANTED, messages, tags)), max(1_000, messages * 1_000 // A_SECOND)
    step_ms = spread_ms // LISTINGS
    with Receiver(out=folder / unique("rows")) as receiver:
        config = configuration(broker, [topic], receiver.url, "*", delay={"store": store})
        with Daemon(folder, config, name=unique("tags")) as daemon:
            first_ms = time.time_ns() // 1_000_000 + int(due_in_s * 1_000)
            produce(broker.bootstrap, topic, _messages(messages, tags, first_ms, spread_ms))
            daemon.wait_ready()
            wait_until(lambda: daemon.status()["delayed"] == messages, due_in_s, "all are held", detail=daemon.log_tail)
            count, listings = _asked(daemon, "count"), [
                _asked(daemon, "list", "--limit", "1000", "--from", str(from_ms), "--until", str(from_ms + step_ms))
                for from_ms in range(first_ms, first_ms + LISTINGS * step_ms, step_ms)
            ]  # fmt: skip
            assert (count["held"], sum(len(each["messages"]) for each in listings)) == (matching, matching)
            narrow = deepcopy(daemon.config)
            narrow["tags"]["subscribe"] = f"tag-{WANTED}"
            for each in (narrow, *([daemon.config] if back else ())):
                reload(daemon, each)
                wait_until(lambda: daemon.status()["reload"]["outcome"] == "applied", 60, "it applies")
            assert time.time_ns() // 1_000_000 < first_ms, "the change came too late: give it more time"
            delivered = messages if back else matching
            wait_until(
                lambda: daemon.status()["delivered"] == delivered and not daemon.status()["delayed"],
                60 + messages / 5_000, "all are delivered or filtered", detail=daemon.log_tail,
            )  # fmt: skip
            last = finish(broker, daemon, 60)
        wanted = range(messages) if back else range(WANTED, messages, tags)
        found = tally_counts(counted(receiver.parts()), Counter(value_hash(b"%d" % number) for number in wanted))
    assert last["filtered"] == messages - delivered
    listed = sum(each["read"] for each in listings)
    reads = {"listed": listed, "counted": count["read"], "delivered": last["delay"]["read"]}
    allowed = {"listed": matching, "counted": matching, "delivered": delivered}
    for what, read in reads.items():
        assert read <= READ_MAX * allowed[what], f"{read} messages are read, {allowed[what]} match: {what}"
    notes = f"{matching:,} match; read to be " + ", ".join(f"{what}: {read:,}" for what, read in reads.items())
    how = "changed to one tag and back" if back else "changed to one tag"
    return Finding(
        f"delayed, {store}, {tags:,} tags, `tags` {how}", 1, messages, found, time.monotonic() - begun, notes
    )


def _messages(count: int, tags: int, first_ms: int, spread_ms: int) -> Iterator[Outgoing]:
    for number in range(count):
        due_ms = first_ms + number * spread_ms // count
        headers = [("tag", b"tag-%d" % (number % tags)), (HEADER, b"%d" % due_ms)]
        yield Outgoing(number % PARTITIONS, b"%d" % number, None, headers)


def _asked(daemon: Daemon, command: str, *arguments: str) -> Any:
    """What a command tells about the messages of the tag."""
    given = ["-c", str(daemon.config_path), "--json", "--tag", f"tag-{WANTED}", *arguments]
    result = CliRunner().invoke(main, ["delay", command, *given])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)
