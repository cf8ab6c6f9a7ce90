"""The fast lane beside its Python twin: strange messages through a real broker, read both ways, equal to the byte."""

from __future__ import annotations

import os
import random
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka as ck
import pytest
import sidecar_fastlane as fastlane
import xxhash
from build_lane import compiled

from sidecar.config.model import Settings
from sidecar.core.intake.intake import Intake
from sidecar.core.lineage import Lineage
from sidecar.core.partition.ownerships import Ownerships
from sidecar.core.partition.partition import Partition
from sidecar.core.partition.room import Room
from sidecar.core.partition_state import PartitionState
from sidecar.core.records import Columns, Run, TopicPartition
from sidecar.runtime.build import build_parts
from sidecar.runtime.lane import rules_of
from sidecar.sources.kafka.columns import KafkaColumns, runs_of
from sidecar.sources.kafka.lane.lane import Lane
from sidecar.sources.kafka.lane.messages import LaneColumns
from tests.support.jars import CACHE, ROOT, locked
from tests.support.kafka import Broker, MakeTopic, produce
from tests.support.process import Daemon, wait_until
from tests.support.scene import Scene
from tests.support.strange import strange

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

MESSAGES = 5_000
TAG_PLACES: dict[str, dict[str, Any]] = {
    "header": {"from": {"header": "tag"}},
    "key": {"from": "key"},
    "topic": {"from": "topic"},
    "none": {},
}
FILTERS: list[dict[str, Any]] = [
    {},
    {"subscribe": "a || b"},
    {"exclude": "c", "split": ","},
    {"subscribe": "a || b || c", "groups": {"g": "a || b"}, "split": ","},
]
IDS: list[Any] = ["position", "key", {"header": "id"}]


@pytest.fixture(scope="module")
def library() -> fastlane.Library:
    """The compiled part; no daemon of another test uses it."""
    with locked(CACHE / "lock"):
        return fastlane.Library(compiled(CACHE / "libfastlane.so"))


class Found(NamedTuple):
    """What became of all messages: by group its offsets, rows, ids and unframeable offsets."""

    groups: dict[str, tuple[list[int], list[bytes], list[int], list[int]]]
    filtered: int
    duplicate: int
    stamp_ms: int | None
    digests: list[int]


class Sorter:
    """The core's intake for one partition."""

    def __init__(self, settings: Settings, columns: Columns, tp: TopicPartition) -> None:
        self.reading = build_parts(settings, columns).reading
        self.intake = Intake(self.reading)
        owned = Ownerships(b"\n")
        owned.limit(Room(extra_bytes=1 << 62))
        owned.take(tp, "s", PartitionState(0, 0), Lineage())
        self.partition: Partition = owned[tp]
        self._groups: dict[str, tuple[list[int], list[bytes], list[int], list[int]]] = defaultdict(
            lambda: ([], [], [], [])
        )
        self._filtered = self._duplicate = 0
        self._stamp_ms: int | None = None
        self.digests: list[int] = []

    def take(self, run: Run) -> None:
        """Sort a run."""
        sorted_run = self.intake.sort(self.partition, run, 1.0)
        self.partition.reach.position = run.last + 1
        self._filtered += sorted_run.filtered
        self._duplicate += sorted_run.duplicate
        assert self.reading.digest is not None
        self.digests.append(self.reading.digest(run.messages[-1]))
        for group, fragment in sorted_run.opened:
            offsets, rows, ids, odd = self._groups[group]
            offsets += fragment.offsets
            rows += bytes(fragment.data).split(b"\n") if fragment.offsets else []
            ids += fragment.ids or ()
            odd += fragment.unframeable
            self._stamp_ms = fragment.stamp_ms if self._stamp_ms is None else self._stamp_ms

    def found(self) -> Found:
        """What became of all runs."""
        return Found(dict(self._groups), self._filtered, self._duplicate, self._stamp_ms, self.digests)


def settings_of(bootstrap: str, topic: str, tags: dict[str, Any], dedup: Any, row_format: str) -> Settings:
    """A configuration of the comparison."""
    return Settings.model_validate(
        {
            "source": {"kafka": {"bootstrap_servers": bootstrap, "group_id": "g", "topics": [topic]}},
            "tags": tags,
            "dedup": {"by": dedup},
            "sink": {"http": {"url": "http://localhost:1/", "format": row_format}},
            "state": {"dir": "/nowhere"},
        }
    )


def client(bootstrap: str, more: dict[str, Any]) -> ck.Consumer:
    """A consumer that commits nothing."""
    return ck.Consumer({"bootstrap.servers": bootstrap, "group.id": "lane", "enable.auto.commit": False, **more})


def by_python(bootstrap: str, tp: TopicPartition, count: int) -> list[Run]:
    """All messages of a partition as the twin reads them."""
    consumer, messages = client(bootstrap, {}), list[ck.Message]()
    consumer.assign([ck.TopicPartition(tp.topic, tp.partition, 0)])
    while len(messages) < count:
        messages += consumer.consume(500, 10)
    consumer.close()
    return runs_of(messages)


def by_lane(
    library: fastlane.Library, bootstrap: str, tp: TopicPartition, count: int, take: Callable[[Run], None]
) -> None:
    """All messages of a partition as the lane reads them, each run as soon as it comes."""
    lane = Lane(library, 1 << 20)
    consumer = lane.make(partial(client, bootstrap))
    try:
        lane.forward([tp])
        consumer.incremental_assign([ck.TopicPartition(tp.topic, tp.partition, 0)])
        lane.forward([tp])
        seen = 0
        while seen < count:
            consumer.poll(0)
            for run in lane.read(0.02)[0]:
                assert isinstance(run, Run)
                seen += len(run.messages)
                take(run)
    finally:
        lane.close()
        consumer.close()


def cases() -> Iterable[tuple[str, dict[str, Any], Any, str]]:
    """Where the tag is, the filter, where the id is, and the format."""
    for place, filter_, dedup, row_format in product(TAG_PLACES, FILTERS, IDS, ("ndjson", "envelope")):
        if place == "none" and filter_ != {}:
            continue
        yield place, {**TAG_PLACES[place], **filter_}, dedup, row_format


def handle_of(library: fastlane.Library) -> tuple[ck.Consumer, int]:
    """A client that connects to nothing, and its handle."""
    library.expect()
    consumer = client("localhost:1", {"plugin.library.paths": str(library.path), "log_level": 0})
    return consumer, library.born()


def test_the_hash_is_xxh3(library: fastlane.Library) -> None:
    """Of every length up to 2,000 bytes, and of long texts."""
    chance = random.Random(5)
    for size in [*range(2_000), 4_095, 100_001, 1 << 20]:
        data = chance.randbytes(size)
        assert library.xxh3(data) == xxhash.xxh3_64_intdigest(data), size


def test_a_client_that_is_not_the_only_one_is_not_taken(library: fastlane.Library) -> None:
    """Two births, or none, give no handle."""
    library.expect()
    with pytest.raises(fastlane.UnavailableError):
        library.born()
    more = {"plugin.library.paths": str(library.path), "log_level": 0}
    consumers = [client("localhost:1", more) for _ in range(2)]
    with pytest.raises(fastlane.UnavailableError):
        library.born()
    for consumer in consumers:
        consumer.close()


@pytest.mark.parametrize("first", ["reader", "client"])
def test_reader_and_client_may_end_in_any_order(library: fastlane.Library, first: str) -> None:
    """What is closed says so, twice too, and nothing of a client that is gone is touched."""
    consumer, handle = handle_of(library)
    reader = fastlane.Reader(library, handle)
    ends = [reader.close, consumer.close]
    for end in ends if first == "reader" else reversed(ends):
        end()
    del consumer
    reader.close()
    with pytest.raises(fastlane.ClosedError):
        reader.poll(10, 0)
    with pytest.raises(fastlane.ClosedError):
        reader.forward("orders", 0)


def test_both_ways_give_the_same(library: fastlane.Library, kafka: Broker, make_topic: MakeTopic) -> None:
    """Rows, offsets, ids, groups, counts and fingerprints of 5,000 messages, in each configuration."""
    topic = make_topic(name="lane")
    produce(kafka.bootstrap, topic, strange(random.Random(17), MESSAGES))
    tp = TopicPartition(topic, 0)
    runs, compared = by_python(kafka.bootstrap, tp, MESSAGES), 0
    for place, tags, dedup, row_format in cases():
        settings = settings_of(kafka.bootstrap, topic, tags, dedup, row_format)
        twin, lane = Sorter(settings, KafkaColumns(), tp), Sorter(settings, LaneColumns(), tp)
        assert lane.reading.sorting is not None
        for run in runs:
            twin.take(run)
        by_lane(library, kafka.bootstrap, tp, MESSAGES, lane.take)
        ours, theirs = lane.found(), twin.found()
        assert ours._replace(digests=[]) == theirs._replace(digests=[]), (place, tags, dedup, row_format)
        assert ours.digests[-1] == theirs.digests[-1]
        assert (
            sum(len(group[0]) + len(group[3]) for group in ours.groups.values()) + ours.filtered + ours.duplicate
            == MESSAGES
        )
        compared += 1
    assert compared == 78


def test_each_lack_of_memory_is_an_error_and_no_more(library: fastlane.Library, kafka: Broker, topic: str) -> None:
    """Whichever allocation fails, Python is told; the next run is sorted again."""
    produce(kafka.bootstrap, topic, strange(random.Random(3), 60))
    tp = TopicPartition(topic, 0)
    settings = settings_of(kafka.bootstrap, topic, TAG_PLACES["header"], {"header": "id"}, "envelope")
    rules, failed, allocations = rules_of(settings), 0, 0
    library.expect()
    consumer = client(kafka.bootstrap, {"plugin.library.paths": str(library.path)})
    handle = library.born()
    while True:
        library.c.fl_fail_after(allocations)
        try:
            reader = fastlane.Reader(library, handle)
        except MemoryError:
            failed, allocations = failed + 1, allocations + 1
            continue
        reader.forward(tp.topic, 0)
        consumer.incremental_assign([ck.TopicPartition(tp.topic, 0, 0)])
        reader.forward(tp.topic, 0)
        seen, is_whole = 0, True
        while seen < 60:
            for run in reader.poll(1_000, 0.02):
                assert isinstance(run, fastlane.Run)
                seen += run.count
                try:
                    ids, _ = run.ids(rules)
                    run.sort(rules, [True] * len(ids))
                except MemoryError:
                    failed, is_whole = failed + 1, False
        library.c.fl_fail_after(-1)
        consumer.incremental_unassign([ck.TopicPartition(tp.topic, 0)])
        reader.close()
        if is_whole:
            break
        allocations += 1 if allocations < 16 else 5
    consumer.close()
    assert failed > 20


def test_a_daemon_on_the_lane_is_exact_through_kills(library: fastlane.Library, scene: Scene, tmp_path: Path) -> None:
    """Killed three times in mid-flow: each message arrives once, and the log says who read."""
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "fastlane")))
    env = {"PYTHONPATH": paths, "SIDECAR_FASTLANE_LIBRARY": str(library.path)}
    with Daemon(tmp_path, scene.config(source={"kafka": {"lane": "on"}}), env=env) as daemon:
        for life in range(3):
            daemon.wait_ready()
            goal = len(scene.expected) + 100
            scene.send([b"%d of %d" % (number, life) for number in range(3_000)], tag=f"tag{life}")
            wait_until(partial(has_rows, scene, goal), 30, "it delivers", detail=daemon.log_tail)
            daemon.kill9()
            daemon.start()
        scene.await_all(daemon)
        assert len(daemon.events("lane.used")) == 4
        daemon.stop()


def has_rows(scene: Scene, count: int) -> bool:
    """Whether so many rows have arrived."""
    return len(scene.receiver.rows()) >= count
