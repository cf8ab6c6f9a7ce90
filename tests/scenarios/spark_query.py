"""The driver of a query of one's own killed in mid-flow: the table against what was produced."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path
from typing import Any

from tests.support.audit import Finding, tally_counts
from tests.support.kafka import Broker, produce, unique
from tests.support.produce import Outgoing
from tests.support.rocketmq import Message, Node
from tests.support.spark.broker_query import MODULE
from tests.support.spark.ingesting import sink_rows
from tests.support.spark.zone_query import ZoneQuery

CORES = (3, 1, 2, 4)
PARTITIONS = 3
TAGS = 8
WANTED = [b"t%d" % i for i in range(5)]
SUBSCRIBED = " || ".join(tag.decode() for tag in WANTED)
REPEATED = 0.05


def sent(messages: int, seed: int) -> list[Outgoing]:
    """Messages of which one in twenty repeats an id of its partition.

    Args:
        messages: How many.
        seed: Of what repeats what.
    """
    chance = random.Random(seed)
    found: list[Outgoing] = []
    ids: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for number in range(messages):
        known = ids[number % PARTITIONS]
        is_again = bool(known) and chance.random() < REPEATED
        known.append(chance.choice(known) if is_again else b"id-%d" % number)
        headers: list[tuple[str, bytes | None]] = [("id", known[-1]), ("tag", b"t%d" % chance.randrange(TAGS))]
        found.append(Outgoing(number % PARTITIONS, b"value of %d" % number, None, headers))
    return found


def wanted_of(places: Iterable[tuple[int, int]], produced: Iterable[Outgoing]) -> set[tuple[int, int]]:
    """The places of the messages that have a wanted tag, and an id that no wanted one had before."""
    known: set[tuple[int, bytes | None]] = set()
    wanted: set[tuple[int, int]] = set()
    for place, one in sorted(zip(places, produced, strict=True), key=itemgetter(0)):
        headers = dict(one.headers or ())
        id_ = (place[0], headers["id"])
        if headers["tag"] in WANTED and id_ not in known:  # an id that only an unwanted message had is new
            known.add(id_)
            wanted.add(place)
    return wanted


def drivers(broker: Broker, folder: Path, messages: int, kills: int) -> Finding:
    """`read_kafka_stream` into Parquet; the driver is killed -9 with all its processes, and has other cores then.

    Args:
        broker: The broker.
        folder: Holds checkpoint, ids and table.
        messages: How many.
        kills: Each finds a micro-batch under way.
    """
    topic = broker.create_topic(unique("query"), PARTITIONS)
    produced = sent(messages, seed=18)
    produce(broker.bootstrap, topic, produced)
    wanted = wanted_of(((number % PARTITIONS, number // PARTITIONS) for number in range(messages)), produced)
    tags = {"from": {"header": "tag"}, "subscribe": SUBSCRIBED}
    keys = {"bootstrap_servers": broker.bootstrap, "topics": [topic], "tags": tags}
    return _killed(folder, "read_kafka_stream", keys, messages, kills, wanted)


def rocketmq_drivers(node: Node, folder: Path, messages: int, kills: int) -> Finding:
    """The same with `read_rocketmq_stream`.

    Args:
        node: The node.
        folder: See `drivers`.
        messages: Likewise.
        kills: Likewise.
    """
    topic = node.create_topic(unique("query"), PARTITIONS)
    produced = sent(messages, seed=18)
    wanted = wanted_of(node.send(topic, map(_of_rocketmq, produced), queues=PARTITIONS), produced)
    keys = {"name_servers": node.name_server, "topics": [topic], "tags": {"subscribe": SUBSCRIBED}}
    return _killed(folder, "read_rocketmq_stream", keys, messages, kills, wanted)


def _of_rocketmq(one: Outgoing) -> Message:
    headers = {name: (value or b"").decode() for name, value in one.headers or ()}
    return Message(one.value or b"", headers["tag"], "", one.partition, {"id": headers["id"]})


def _killed(
    folder: Path, function: str, keys: dict[str, Any], messages: int, kills: int, wanted: set[tuple[int, int]]
) -> Finding:
    begun, chance = time.monotonic(), random.Random(5)
    most = max(500, messages // (3 * kills + 3))
    options = json.dumps(keys | {"dedup": {"by": {"header": "id"}}})
    query = ZoneQuery(folder, options, most, MODULE, [function, str(folder / "ids")])
    try:
        for number in range(kills):
            done = query.committed()
            query.start(f"local[{CORES[number % len(CORES)]},4]")
            query.wait_committed(done + 1)
            query.wait_under_way()
            time.sleep(chance.random() / 2)  # the kill is to strike anywhere; nothing is decided by it
            query.kill()
        query.start("local[2,4]", once=True)
        assert query.wait(900) == 0, query.log()
    finally:
        query.kill()
    got = Counter((row["partition"], row["offset"]) for row in sink_rows(query.table))
    found = tally_counts(got, Counter(wanted))
    notes = f"{len(wanted):,} wanted of {messages:,}, 5 % of ids twice, {len(WANTED)} of {TAGS} tags; 1 to 4 cores"
    point = f"`{function}` into Parquet, driver `kill -9`, other cores"
    return Finding(point, kills, messages, found, time.monotonic() - begun, notes)
