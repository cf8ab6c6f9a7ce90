"""The fast lane beside its Python twin, equal to the byte, and what happens when memory, client or process end."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
import sidecar_fastlane as fastlane
import xxhash
from build_lane import compiled
from sidecar_fastlane.columns import WANTS

from sidecar.config.model import Settings
from sidecar.runtime.lane import rules_of
from tests.support.jars import ROOT
from tests.support.kafka import Broker, MakeTopic, Outgoing, produce
from tests.support.lane import built, client, handle_of, lane_of, reader_of
from tests.support.lane_cases import blob, strange
from tests.support.lane_compared import Twins, by_python, read
from tests.support.process import Daemon, wait_until
from tests.support.scene import Scene

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
    {"subscribe": " || ".join("abcdefghijkl"), "split": ","},  # so many that the mask is a set of hashes
]
IDS: list[Any] = ["position", "key", {"header": "id"}]
FEW = 60
SECRET = bytes.fromhex("b8fe6c3923a44bbe")
"""The hash of a text of 32 bytes that begins so does not depend on the next 8."""


@pytest.fixture(scope="module")
def library() -> fastlane.Library:
    """The compiled part."""
    return fastlane.Library(built())


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


def cases() -> Iterable[tuple[dict[str, Any], Any, str]]:
    """Where the tag is and the filter, where the id is, and the format."""
    for place, filter_, dedup, row_format in product(TAG_PLACES, FILTERS, IDS, ("ndjson", "envelope")):
        if place != "none" or filter_ == {}:
            yield {**TAG_PLACES[place], **filter_}, dedup, row_format


def polled(reader: fastlane.Reader, count: int) -> Iterator[fastlane.Run]:
    """So many messages."""
    while count > 0:
        for run in reader.poll(1_000, 0.05):
            assert isinstance(run, fastlane.Run)
            count -= run.count
            yield run


def plain(*, ids: bool = False) -> fastlane.Rules:
    """Rules by which a tag is its own group."""
    return fastlane.Rules(
        group_of=str,
        row_head=lambda topic, partition: b"{",
        tag_place="header",
        tag_header="tag",
        id_place="key" if ids else "none",
    )


def send(broker: Broker, topic: str, tags: Sequence[bytes]) -> None:
    """A message for each tag."""
    produce(broker.bootstrap, topic, [Outgoing(0, b"v", b"k", [("tag", tag)]) for tag in tags])


def test_the_hash_is_xxh3(library: fastlane.Library) -> None:
    """Of every length up to 2,000 bytes, and of long texts."""
    chance = random.Random(5)
    for size in [*range(2_000), 4_095, 100_001, 1 << 20]:
        data = chance.randbytes(size)
        assert library.xxh3(data) == xxhash.xxh3_64_intdigest(data), size


def test_a_compiled_part_of_another_version_is_not_used(tmp_path: Path) -> None:
    """What it returned would be taken for something else, as counters of random numbers."""
    other = compiled(tmp_path / "other.so", "-UFL_SOURCES", "-DFL_SOURCES=1u")
    with pytest.raises(fastlane.UnavailableError, match="of another version: run make fastlane, or install it again"):
        fastlane.Library(other)


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
def test_reader_and_client_may_end_in_any_order(
    library: fastlane.Library, kafka: Broker, topic: str, first: str
) -> None:
    """What is closed says so, twice too; messages that were read go with the client, which does not wait for them."""
    send(kafka, topic, [b"a"] * FEW)
    with reader_of(library, kafka.bootstrap, topic) as (reader, consumer):
        run = next(polled(reader, 1))
        ends = [reader.close, consumer.close]
        for end in ends if first == "reader" else reversed(ends):
            end()
        with pytest.raises(fastlane.GoneError):
            run.message(0)
        with pytest.raises(fastlane.GoneError):
            run.offsets()
        with pytest.raises(fastlane.GoneError):
            run.sort(plain())
        with pytest.raises(fastlane.ClosedError):
            reader.poll(10, 0)
        with pytest.raises(fastlane.ClosedError):
            reader.forward("orders", 0)


def test_a_client_that_ends_waits_for_a_poll_on_another_thread(library: fastlane.Library) -> None:
    """Nothing that the poll uses is taken away under it."""
    for _ in range(20):
        consumer, handle = handle_of(library)
        reader, raised = fastlane.Reader(library, handle), list[Exception]()

        def poll(reader: fastlane.Reader = reader, raised: list[Exception] = raised) -> None:
            try:
                while True:
                    reader.poll(100, 0.01)
            except fastlane.ClosedError as error:
                raised.append(error)

        thread = threading.Thread(target=poll)
        thread.start()
        consumer.close()
        thread.join(10)
        assert not thread.is_alive()
        assert len(raised) == 1


def test_a_forked_child_has_no_reader(library: fastlane.Library, kafka: Broker, topic: str) -> None:
    """In the child it is closed, and touches nothing of the client, whose threads stayed behind."""
    send(kafka, topic, [b"a"])
    with reader_of(library, kafka.bootstrap, topic) as (reader, _):
        (run,) = polled(reader, 1)
        child = os.fork()
        if not child:
            try:
                run.message(0)
            except fastlane.GoneError:
                reader.close()
                reader.__del__()
                os._exit(7)
            os._exit(8)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert run.message(0).value == b"v"


def test_both_ways_give_the_same(library: fastlane.Library, kafka: Broker, make_topic: MakeTopic) -> None:
    """Rows, offsets, ids, groups, counts and fingerprints of 5,000 messages, in each configuration."""
    topic = make_topic(name="lane")
    produce(kafka.bootstrap, topic, strange(random.Random(17), MESSAGES))
    messages, compared = by_python(kafka.bootstrap, topic, {0: MESSAGES}), 0
    for case in cases():
        twins = Twins(settings_of(kafka.bootstrap, topic, *case), messages)
        with lane_of(library, kafka.bootstrap) as (lane, consumer):
            for run in read(lane, consumer, twins, list(messages)):
                twins.take(run)
        assert not twins.mismatches, (case, twins.mismatches[0])
        assert bool(twins.tally["masked"]) == ("subscribe" in case[0]), case
        assert sum(map(twins.tally.__getitem__, ("rows", "unframeable", "filtered", "duplicate"))) == MESSAGES
        compared += 1
    assert compared == 96


def test_a_run_of_an_earlier_poll_is_gone(library: fastlane.Library, kafka: Broker, topic: str) -> None:
    """It never stands for messages of a later one."""
    send(kafka, topic, [b"a"] * FEW)
    with reader_of(library, kafka.bootstrap, topic) as (reader, _):
        first = next(polled(reader, 1))
        reader.poll(1, 0)
        asked: list[Any] = [first.offsets, partial(first.message, 0), partial(first.sort, plain())]
        for ask in [*asked, partial(first.ids, plain(ids=True))]:
            with pytest.raises(fastlane.GoneError):
                ask()


def test_flags_must_belong_to_the_ids(library: fastlane.Library, kafka: Broker, topic: str) -> None:
    """Too few flags, none, or flags for other rules than the ids' are refused, and those of the ids are taken then."""
    send(kafka, topic, [b"a"] * FEW)
    rules = plain(ids=True)
    with reader_of(library, kafka.bootstrap, topic) as (reader, _):
        run = next(polled(reader, 1))
        for fresh in (b"\1" * run.count, None):
            with pytest.raises(ValueError):
                run.sort(rules, fresh)
        ids, _ = run.ids(rules)
        with pytest.raises(ValueError):
            run.sort(rules, b"\1" * (len(ids) - 1))
        with pytest.raises(ValueError):
            run.sort(plain(ids=True), b"\1" * len(ids))
        assert run.sort(rules, b"\1" * len(ids)).rows[0].offsets.tolist() == list(range(run.count))


def test_tags_that_were_chosen_to_be_alike_are_forgotten(library: fastlane.Library, kafka: Broker, topic: str) -> None:
    """Contents of one hash make a long search once, not at each message from then on."""
    alike = [SECRET + b"%08d" % number + b"x" * 16 for number in range(2_000)]
    assert len({library.xxh3(tag) for tag in alike}) == 1
    send(kafka, topic, alike)
    asked = list[fastlane.Raw]()
    rules = plain()
    rules = fastlane.Rules(lambda raw: asked.append(raw) or "g", rules.row_head, "header", "tag")
    with reader_of(library, kafka.bootstrap, topic) as (reader, consumer):
        sizes = list[int]()
        for _ in range(2):
            for run in polled(reader, 2_000):
                run.sort(rules)
            sizes.append(len(asked))
            consumer.seek(ck.TopicPartition(topic, 0, 0))
    assert sizes[1] > sizes[0] + 500
    assert asked[:2_000] == alike


@pytest.mark.parametrize("format_", ["envelope", "columns"])
def test_each_lack_of_memory_is_an_error_and_no_more(
    library: fastlane.Library, kafka: Broker, topic: str, format_: fastlane.Format
) -> None:
    """Whichever allocation fails, Python is told; what is asked for again or read again is there, by new rules."""
    chance = random.Random(3)
    tags = [[("tag", b"%d" % number)] * (number % 4) for number in range(16)]
    plenty = [Outgoing(0, blob(chance, 300), b"%d" % len(tag), tag) for tag in tags]
    produce(kafka.bootstrap, topic, [*strange(chance, 8), *plenty])
    settings = settings_of(kafka.bootstrap, topic, TAG_PLACES["header"], {"header": "id"}, "envelope")
    consumer, handle = handle_of(library, kafka.bootstrap, **{"fetch.wait.max.ms": 5})
    consumer.incremental_assign([ck.TopicPartition(topic, 0, 0)])

    def again(reader: fastlane.Reader) -> fastlane.Run:
        while True:
            consumer.incremental_unassign([ck.TopicPartition(topic, 0)])
            reader.poll(1_000, 0)
            reader.forward(topic, 0)
            consumer.incremental_assign([ck.TopicPartition(topic, 0, 0)])
            reader.forward(topic, 0)
            # What comes after the earlier ownership's end and before the second forwarding goes another way.
            found = next((runs[0] for runs in (reader.poll(1_000, 0.05) for _ in range(60)) if runs), None)
            if isinstance(found, fastlane.Run):
                return found

    def sorted_by(run: fastlane.Run) -> Any:
        rules = replace(
            rules_of(settings.tags, settings.dedup, "envelope", settings.tags.filter()),
            format=format_,
            wants=frozenset(WANTS),
        )
        if format_ == "columns":
            return run.columns(rules)
        ids, last = run.ids(rules)
        return ids, last, run.sort(rules, b"\1" * len(ids))

    failed, wanted, allocations = dict.fromkeys(("open", "sort"), 0), None, -1
    while True:
        library.c.fl_fail_after(allocations)
        try:
            reader = fastlane.Reader(library, handle)
        except MemoryError:
            failed["open"] += 1
            allocations += 1
            continue
        run, step = again(reader), ""
        try:
            found = sorted_by(run)
        except MemoryError:
            step = "sort"
            found = sorted_by(again(reader))
        library.c.fl_fail_after(-1)
        reader.close()
        wanted = wanted or found
        assert found == wanted, (allocations, step)
        if not step and allocations >= 0:
            break
        if step:
            failed[step] += 1
        allocations += 1
    consumer.close()
    assert failed["open"] == 3
    assert failed["sort"] > 20


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
