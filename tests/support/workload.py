"""Messages of every kind, the same ones for the same seed, and what must arrive of them. Starts no daemon."""

from __future__ import annotations

import base64
import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import orjson
import xxhash

from tests.support.produce import Outgoing, make_producer, produce
from tests.support.receiver import value_hash

Place: TypeAlias = tuple[str, int, int]
"""Topic, partition, offset."""

TAGS = ("created", "paid", "refunded", "shipped", "returned", "probe", "test", "draft")
WANTED = TAGS[:5]
TWIN_OF = 20
"""One message in so many is produced a second time, with the same id, in the same partition."""
POISON = b"poison"
"""Begins the values of messages that are poison, and stands in no other."""
LARGE_BYTES = 1 << 20
TICKS = 200
"""How often a second a stream produces: much more often than the daemon commits, so that cuts fall between commits."""


def fingerprint(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]], tag: bytes | None, at_ms: int
) -> int:
    """64 bits that stand for a whole message."""
    return int(xxhash.xxh3_64_intdigest(repr((key, value, headers, tag, at_ms)).encode()))


@dataclass
class Expected:
    """What is known of the messages that were produced."""

    wanted: dict[Place, str | None] = field(default_factory=dict)
    """The hash of the value of each message that is wanted."""
    prints: dict[Place, int] = field(default_factory=dict)
    """The fingerprint of each message that is wanted."""
    ids: dict[Place, bytes] = field(default_factory=dict)
    """The id of each message that is wanted."""
    poison: set[Place] = field(default_factory=set)
    """Those among the wanted that are poison."""
    count: int = 0
    filtered: int = 0
    unframeable: dict[str, set[Place]] = field(default_factory=lambda: {"envelope": set(), "ndjson": set()})
    """By format, the wanted messages that it cannot hold."""

    def first_of_each_id(self) -> dict[Place, str | None]:
        """What is wanted when of several messages with one id in a partition only the first wanted one counts."""
        seen: set[tuple[str, int, bytes]] = set()
        kept = {}
        for place in sorted(self.wanted):
            twin = (place[0], place[1], self.ids[place])
            if twin not in seen:
                kept[place] = self.wanted[place]
                seen.add(twin)
        return kept


class Workload:
    """Messages for some new topics, spread over their partitions.

    Args:
        topics: Names; each new and empty, so that offsets are known beforehand.
        partitions: Of each topic.
        count: Messages in all, those produced twice included.
        seed: Of all that is random.
        tags: How many tags; the first five of eight are wanted, all where there are more.
        odd: Whether there are values that are empty, null, not UTF-8, with newlines or NUL, or of 1 MiB.
        poison_every: One message in so many is poison; none when 0.
    """

    def __init__(
        self,
        topics: Sequence[str],
        partitions: int,
        count: int,
        *,
        seed: int = 1,
        tags: Sequence[str] = TAGS,
        wanted: Sequence[str] = WANTED,
        odd: bool = True,
        poison_every: int = 0,
    ) -> None:
        self.expected = Expected()
        self._topics = topics
        self._partitions = partitions
        self._count = count
        self._random = random.Random(seed)
        self._tags = tags
        self._wanted = frozenset(wanted)
        self._odd = odd
        self._poison_every = poison_every
        self._ends: dict[tuple[str, int], int] = {}
        self._begun_ms = int(time.time() * 1000) - count
        self._large = set(self._random.sample(range(count), min(4 + count // 50_000, count))) if odd else set()
        self._made: Iterator[tuple[str, Outgoing]] = self._make()

    def produce(self, bootstrap: str) -> Expected:
        """Put everything into Kafka, and tell what is to be expected."""
        by_topic: dict[str, list[Outgoing]] = {topic: [] for topic in self._topics}
        for topic, message in self._made:
            by_topic[topic].append(message)
        for topic, messages in by_topic.items():
            produce(bootstrap, topic, messages)
        return self.expected

    def some(self, count: int) -> list[tuple[str, Outgoing]]:
        """The next so many messages with their topics, counted as produced; fewer at the end."""
        return [made for _, made in zip(range(count), self._made, strict=False)]

    def _make(self) -> Iterator[tuple[str, Outgoing]]:
        places = [(topic, partition) for topic in self._topics for partition in range(self._partitions)]
        i = 0
        while i < self._count:
            topic, partition = self._random.choice(places)
            number = b"%d" % i
            for _ in range(2 if i % TWIN_OF == 0 and i + 1 < self._count else 1):
                tag = self._tag()
                message = Outgoing(partition, self._value(i), self._key(i), self._headers(tag, number, i))
                message = message._replace(timestamp_ms=self._begun_ms + i)
                self._note(topic, message, tag, number)
                yield topic, message
                i += 1

    def _tag(self) -> str | None:
        return self._random.choice(self._tags) if self._random.random() < 0.98 or not self._odd else None

    def _key(self, i: int) -> bytes | None:
        return (b"key-%d" % i, None, b"", b"\xff\xfe%d" % i)[0 if i % 7 else i // 7 % 4]

    def _headers(self, tag: str | None, number: bytes, i: int) -> list[tuple[str, bytes | None]]:
        headers: list[tuple[str, bytes | None]] = [("id", number)]
        if tag is not None:
            headers.insert(0, ("tag", tag.encode()))
        if self._odd and i % 11 == 0:
            headers += [("trace", b"\x00\xff"), ("empty", b""), ("null", None), ("trace", b"again")]
        return headers

    def _value(self, i: int) -> bytes | None:
        if self._poison_every and i % self._poison_every == self._poison_every // 2:
            return b"%s %d" % (POISON, i)
        if i in self._large:
            return (b"%d " % i + self._random.randbytes(LARGE_BYTES).replace(b"\n", b" "))[:LARGE_BYTES]
        kind = i % 101 if self._odd else 100
        odd = {0: b"", 1: None, 2: b"two\nlines %d\n" % i, 3: b"NUL \x00 %d" % i, 4: b"\xc3\x28 %d" % i, 5: b"\r%d" % i}
        return odd.get(kind, b'{"number":%d,"text":"%s"}' % (i, b"x" * (i % 200)))

    def _note(self, topic: str, message: Outgoing, tag: str | None, number: bytes) -> None:
        offset = self._ends.get((topic, message.partition), 0)
        self._ends[topic, message.partition] = offset + 1
        expected, place = self.expected, (topic, message.partition, offset)
        expected.count += 1
        if tag not in self._wanted:
            expected.filtered += 1
            return
        value = message.value
        expected.wanted[place] = value_hash(value)
        headers = list(message.headers or ())
        raw = tag.encode() if tag is not None else None
        expected.prints[place] = fingerprint(message.key, value, headers, raw, message.timestamp_ms)
        expected.ids[place] = number
        if value is not None and value.startswith(POISON):
            expected.poison.add(place)
        if not value or b"\n" in value:
            expected.unframeable["ndjson"].add(place)


class Stream:
    """Produces a workload bit by bit on a thread of its own, until it is stopped or the workload ends.

    Args:
        bootstrap: `host:port` of the broker.
        workload: What to produce.
        rate: Messages a second.
        upto: So many at first; `go_on` lets it produce more.
    """

    def __init__(self, bootstrap: str, workload: Workload, rate: int, *, upto: int = sys.maxsize) -> None:
        self._bootstrap = bootstrap
        self._workload = workload
        self._each = max(1, rate // TICKS)
        self._upto = upto
        self._stop = threading.Event()
        self._refused: list[Any] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def go_on(self, count: int = sys.maxsize) -> None:
        """Produce so many more."""
        self._upto += count

    def stop(self) -> None:
        """Produce nothing more, and return when the broker has all."""
        self._stop.set()
        self.wait()

    def wait(self) -> None:
        """Return when the workload ends and the broker has all."""
        self._thread.join()
        assert not self._refused, f"{len(self._refused)} messages were refused, the first: {self._refused[0]}"

    def _run(self) -> None:
        producer = make_producer(
            self._bootstrap, self._refused, message_timeout_ms=120_000, reconnect_backoff_max_ms=500
        )
        while not self._stop.wait(1 / TICKS):
            room = self._upto - self._workload.expected.count
            some = self._workload.some(min(self._each, room))
            if not some and room:
                break
            for topic, (partition, value, key, headers, at_ms) in some:
                producer.produce(topic, value, key, partition, timestamp=at_ms, headers=list(headers or ()))
            producer.poll(0)
        if producer.flush(120):
            self._refused.append("not taken within 120 s")


def canonical(row: bytes) -> tuple[Place, int]:
    """Place and fingerprint of an `envelope` row, read as the contract says, without help of the daemon's code."""
    found = orjson.loads(row)
    headers = [(name, _header_value(value)) for name, value in found["headers"]]
    place = (found["topic"], found["partition"], found["offset"])
    tag = _field(found, "tag")
    return place, fingerprint(_field(found, "key"), _field(found, "value"), headers, tag, found["timestamp"])


def _field(row: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in row:
        assert name not in row, f"{name} stands twice"
        return _decoded(row[f"{name}_base64"])
    value = row[name]
    return None if value is None else str(value).encode()


def _header_value(value: Any) -> bytes | None:
    if isinstance(value, dict):
        return _decoded(value["base64"])
    return None if value is None else str(value).encode()


def _decoded(text: str) -> bytes:
    raw = base64.b64decode(text, validate=True)
    try:
        raw.decode()
    except UnicodeDecodeError:
        return raw
    raise AssertionError(f"UTF-8 stands as base64: {text[:80]}")
