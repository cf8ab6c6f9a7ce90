"""Rows of RocketMQ's stored messages made in C, beside those that Python makes: equal to the byte."""

from __future__ import annotations

import gc
import random
import shutil
import sys
from typing import Any

import pytest
import sidecar_fastlane as fastlane
from build_lane import compiled

from sidecar.config.model import Settings
from sidecar.core.records import Framer, TopicPartition
from sidecar.runtime.build import build_reading
from sidecar.runtime.stored_rows import StoredFramer
from sidecar.sinks.formats import LARGE_BYTES, EnvelopeFramer
from sidecar.sources.rocketmq.remoting.columns import RocketMqColumns
from sidecar.sources.rocketmq.wire.messages import StoredMessage
from tests.support.lane_cases import blob

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

TP = TopicPartition('or"ders', 3, "broker-ü")
NAMES = [b"KEYS", b"TAGS", b"UNIQ_KEY", b"WAIT", b"", b'na"me', b"KEYSX", b"\t"]
PAIRS = [b"nothing", b"", b"KEYS", b"\x02"]
RARE = [
    b"KEYS\x01a\x02KEYS\x01b\x02",
    b"n\xc3\xa9\x01v\x02",
    b"n\xff\x01v\x02",
    b"".join(b"%d\x01\x02" % i for i in range(80)),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> fastlane.Library:
    """The compiled part."""
    return fastlane.Library(compiled(tmp_path_factory.mktemp("lane") / "libfastlane.so"))


def properties(chance: random.Random) -> bytes:
    """Properties in the stored form, each name once; now and then what is no pair."""
    pairs = [chance.choice(PAIRS)] * (chance.random() < 0.1)
    for name in chance.sample(NAMES, chance.randrange(len(NAMES) + 1)):
        value = (blob(chance, 8) or b"").replace(b"\x01", b" ").replace(b"\x02", b"\x0b")
        pairs.append(name + b"\x01" + value)
    return b"\x02".join(pairs) + b"\x02" * chance.randrange(2)


def message(chance: random.Random, **change: Any) -> StoredMessage:
    """A message of any kind."""
    stored = StoredMessage(
        offset=chance.randrange(1 << 62),
        body=blob(chance) or b"",
        properties=properties(chance),
        born_ms=chance.choice((0, -5, 1_700_000_000_000)),
        stored_ms=0,
        position=chance.randrange(1 << 62),
        store_host=chance.randbytes(chance.choice((8, 20))),
        reconsume_times=chance.randrange(3),
    )
    return stored._replace(**change)


def framers(library: fastlane.Library, split: str | None = None) -> tuple[Framer, EnvelopeFramer]:
    """C's, and Python's."""
    columns = RocketMqColumns()
    tags: dict[str, Any] = {} if split is None else {"split": split}
    settings = Settings.model_validate(
        {
            "source": {"rocketmq": {"name_servers": "h:1", "client": "remoting", "group": "g", "topics": ["orders"]}},
            "tags": tags,
            "sink": {"http": {"url": "http://localhost:1/", "format": "envelope"}},
            "state": {"dir": "/nowhere"},
        }
    )
    filter_, reading = settings.tags.filter(), build_reading(settings, columns)[0]

    def tags_of(tp: TopicPartition, messages: Any) -> Any:
        return map(filter_.tags, reading.tags(tp, messages))

    python = EnvelopeFramer(columns, tags_of)
    return StoredFramer(library, tags_of, python), python


class NoFramer:
    """Must not be asked."""

    separator = b"\n"

    def frame(self, tp: TopicPartition, messages: Any) -> Any:
        """Fail."""
        raise AssertionError(messages)


@pytest.mark.parametrize("split", [None, " "])
def test_both_ways_give_the_same(library: fastlane.Library, split: str | None) -> None:
    """Of 5,000 messages of every kind, one at a time and many together."""
    chance = random.Random(29)
    ours, theirs = framers(library, split)
    messages = [message(chance) for _ in range(5_000)]
    for start in range(0, 5_000, 500):
        assert ours.frame(TP, messages[start : start + 500]) == theirs.frame(TP, messages[start : start + 500])
    for each in messages[:500]:
        assert ours.frame(TP, [each]) == theirs.frame(TP, [each])


def test_usual_messages_are_framed_in_c(library: fastlane.Library) -> None:
    """Python is not asked, or the comparison above compares Python with itself."""
    chance = random.Random(3)
    ours, _ = framers(library)
    assert isinstance(ours, StoredFramer)
    ours._python = NoFramer()
    ours.frame(TP, [message(chance) for _ in range(1_000)])


@pytest.mark.parametrize("change", [*({"properties": rare} for rare in RARE), {"body": b"x" * (LARGE_BYTES + 1)}])
def test_what_is_rare_is_left_to_python(library: fastlane.Library, change: dict[str, bytes]) -> None:
    """A name that is there twice or is not ASCII, very many names, and a body that Python makes in pieces."""
    chance = random.Random(7)
    ours, theirs = framers(library)
    messages = [message(chance), message(chance, **change), message(chance)]
    assert ours.frame(TP, messages) == theirs.frame(TP, messages)
    assert isinstance(ours, StoredFramer)
    ours._python = NoFramer()
    with pytest.raises(AssertionError):
        ours.frame(TP, messages)


@pytest.mark.parametrize("size", [1_000, LARGE_BYTES + 1])
def test_bodies_are_let_go_at_once(library: fastlane.Library, size: int) -> None:
    """With the call, not with the next collection of cycles."""
    ours, _ = framers(library)
    body = random.Random(5).randbytes(size)
    held = sys.getrefcount(body)
    gc.disable()
    try:
        ours.frame(TP, [message(random.Random(5), body=body)])
        assert sys.getrefcount(body) == held
    finally:
        gc.enable()


def test_a_lack_of_memory_is_an_error(library: fastlane.Library) -> None:
    """Whichever allocation fails, Python is told."""
    ours, _ = framers(library)
    messages = [message(random.Random(1), body=b"x" * 9_000) for _ in range(40)]
    failed = 0
    for allocations in range(100):
        library.c.fl_fail_after(allocations)
        try:
            ours.frame(TP, messages)
        except MemoryError:
            failed += 1
            continue
        finally:
            library.c.fl_fail_after(-1)
        break
    assert failed > 1
