"""What the fast lane holds: large messages, many tags and many groups, and how much is left of it afterwards."""

from __future__ import annotations

import ctypes
import gc
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import confluent_kafka as ck
import numpy as np
import orjson
import pytest
import sidecar_fastlane as fastlane

from sidecar.sinks.formats import row_head
from tests.support.kafka import Broker, KafkaBroker, Outgoing, produce, unique
from tests.support.lane import built, reader_of

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

MIB = 1 << 20
LARGEST = 30 * MIB
NEAR_BYTES = 64 << 10
"""Of what an idle reader holds: a few small buffers more than a new one."""
IDLE_POLLS = 40
PER_GROUP_BYTES = 8_000
KINDS: dict[str, Callable[[int], bytes]] = {
    "text": lambda size: b"x" * size,
    "quotes": lambda size: b'"' * size,
    "controls": lambda size: b"\x01" * size,
    "bytes": lambda size: b"\xff" * size,
}


@pytest.fixture(scope="module")
def library() -> fastlane.Library:
    """The compiled part."""
    return fastlane.Library(built())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that takes large messages."""
    with KafkaBroker(
        tmp_path_factory.mktemp("large") / "broker", config={"message.max.bytes": str(LARGEST)}, heap="1g"
    ) as broker:
        yield broker


def rules(format_: fastlane.Format = "envelope") -> fastlane.Rules:
    """A group for each tag."""
    return fastlane.Rules(
        group_of=lambda raw: str(raw),
        row_head=row_head,
        tag_place="header",
        tag_header="tag",
        format=format_,
        wants=frozenset({"value"}),
    )


def bodies(run: fastlane.Run, format_: fastlane.Format) -> list[bytes]:
    """What it has, whose parts are to be joined by line feeds."""
    if format_ != "columns":
        return [rows.data for rows in run.sort(rules(format_)).rows]
    table = run.columns(rules(format_))
    assert table.value is not None
    ends = np.frombuffer(table.value.ends, np.int32)
    return [table.value.data[start:end] for start, end in pairwise(ends)]


def is_idle(reader: fastlane.Reader) -> int:
    """What it holds after it found nothing for a while."""
    for _ in range(IDLE_POLLS):
        assert not reader.poll(2_000, 0)
    return reader.memory_bytes


def rss_bytes() -> int:
    """Anonymous memory of this process, after what was freed has been given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon"))) << 10


def runs(reader: fastlane.Reader, count: int, most: int = 2_000) -> Iterator[fastlane.Run]:
    """So many messages."""
    while count > 0:
        for run in reader.poll(most, 0.1):
            assert isinstance(run, fastlane.Run)
            count -= run.count
            yield run


@pytest.mark.parametrize("format_", ["envelope", "ndjson", "columns"])
@pytest.mark.parametrize("size", [MIB, 20 * MIB])
def test_large_messages_pass_and_leave_nothing(
    library: fastlane.Library, broker: Broker, size: int, format_: fastlane.Format
) -> None:
    """Values of 1 and 20 MiB are in rows and columns, the buffers are little larger than these, and are given back."""
    topic = broker.create_topic(unique("large"), 1, {"max.message.bytes": str(LARGEST)})
    with reader_of(library, broker.bootstrap, topic, **{"fetch.message.max.bytes": LARGEST}) as (reader, _):
        base, before = is_idle(reader), rss_bytes()
        for number, (kind, make) in enumerate(KINDS.items()):
            value = make(size)
            produce(
                broker.bootstrap, topic, [Outgoing(0, value, b"k")] * 2, message_max_bytes=LARGEST, batch_size=LARGEST
            )
            large, data = 0, list[bytes]()
            for run in runs(reader, 2):
                data += bodies(run, format_)
                large = max(large, reader.memory_bytes)
            joined = b"\n".join(data)
            assert large < 1.5 * len(joined) + 4 * MIB, kind
            if format_ != "envelope":
                assert joined == value + b"\n" + value
            elif kind != "bytes":
                assert [orjson.loads(row)["value"].encode() for row in joined.splitlines()] == [value] * 2
            del data, joined, run
            assert is_idle(reader) - base < NEAR_BYTES, (kind, number)
        del value
        assert rss_bytes() - before < 2 * size + 8 * MIB
    del reader


def test_tags_are_forgotten_before_they_are_too_many(library: fastlane.Library, kafka: Broker, topic: str) -> None:
    """With 100,000 tags in as many groups the table stays within its bounds, and idle buffers are given back."""
    count, chunk = 100_000, 2_000
    produce(kafka.bootstrap, topic, (Outgoing(0, b"v", None, [("tag", b"%d" % number)]) for number in range(count)))
    by_tag, most, seen = rules(), 0, set[str]()
    with reader_of(library, kafka.bootstrap, topic) as (reader, consumer):
        base = is_idle(reader)
        for run in runs(reader, count, chunk):
            seen |= {rows.group for rows in run.sort(by_tag).rows}
            most = max(most, reader.memory_bytes)
        assert len(seen) == count
        table = (fastlane.TAGS_MAX + chunk) * (64 + 32 + 32 + 16) + 4 * fastlane.TAGS_MAX * 8
        assert most - base < table + chunk * PER_GROUP_BYTES
        left = is_idle(reader)
        assert left - base < table
        consumer.seek(ck.TopicPartition(topic, 0, count - 1))
        reader.poll(1, 5)


def test_large_tags_are_forgotten(library: fastlane.Library, kafka: Broker, topic: str) -> None:
    """Tags of 100 kB each do not stay: 40 MB of them leave 16 at most."""
    count = 400
    tags = (b"%d" % number + b"t" * 100_000 for number in range(count))
    produce(kafka.bootstrap, topic, (Outgoing(0, b"v", None, [("tag", tag)]) for tag in tags))
    one_group, most = fastlane.Rules(lambda raw: "g", row_head, "header", "tag"), 0
    with reader_of(library, kafka.bootstrap, topic) as (reader, _):
        for run in runs(reader, count, 10):
            run.sort(one_group)
            most = max(most, reader.memory_bytes)
        assert most < fastlane.TAG_BYTES_MAX + 4 * MIB


def test_one_slot_after_the_other_grows_to_no_more_than_the_messages_need(
    library: fastlane.Library, kafka: Broker, topic: str
) -> None:
    """A large group that comes at another place of each run does not leave a large buffer at each place."""
    groups, large = 200, b"x" * 200_000
    messages = [
        Outgoing(0, large if tag == number else b"v", None, [("tag", b"%d" % tag)])
        for number in range(groups)
        for tag in range(groups)
    ]
    produce(kafka.bootstrap, topic, messages)
    by_tag, most = rules(), 0
    with reader_of(library, kafka.bootstrap, topic) as (reader, _):
        for run in runs(reader, len(messages), groups):
            run.sort(by_tag)
            most = max(most, reader.memory_bytes)
    assert most < 20 * MIB


def test_nothing_is_left_of_a_reader(library: fastlane.Library, kafka: Broker, topic: str) -> None:
    """When all readers are gone, every byte that the lane took is given back."""
    produce(kafka.bootstrap, topic, [Outgoing(0, b"v", b"k", [("tag", b"a"), ("tag", b"b")])] * 100)
    with reader_of(library, kafka.bootstrap, topic) as (reader, _):
        for run in runs(reader, 100):
            run.sort(rules())
        assert reader.memory_bytes > 500_000
    del reader, run
    gc.collect()
    assert library.c.fl_memory() == 0
