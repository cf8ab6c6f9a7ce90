"""Strange messages and random configurations for the comparison of the fast lane with Python. Reads nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from kafka import KafkaProducer
from pydantic import ValidationError

from sidecar.config.model import Settings
from tests.support.kafka import Outgoing

TEXTS = [*'a"\\\n\r\t\b\f\0\x1b\x1f\x7f/,', "é", "€", "😀", "\u2028", "tag", " b ", "0123456789abcdef" * 3]
TAGS = [b"a", b"b", b"c", b"a,b", b"x,a", b"", None, b" b ", b"nope", b"\xff\xfe", b'"q"', b"t" * 70, "é".encode()]
NAMES = ["tag", "tag", "tag", "id", "id", "other", "né", "TAG", "", "tag2", "\N{REPLACEMENT CHARACTER}", 'q"\n']
ODD_NAMES = [b"\xff\xfe", b"tag\0x", b"\0tag", b"ta\xedg", b"\xc3", b"id\0", b"\xed\xa0\x80", b"n" * 300]
ODD_SHARE = 0.02
PLACES: list[Any] = [{"header": "tag"}, {"header": "tag"}, {"header": "né"}, "key", "topic", None]
IDS: list[Any] = ["position", "position", "key", {"header": "id"}, {"header": "tag"}]
SPLITS = [None, ",", ",", "é", "a"]
WANTED = ["a", "b", "c", "x", "nope", "é", "k1", "k2", "k17", "t" * 70]


class OddName(str):
    """A header name that the client writes as other bytes than UTF-8."""

    __slots__ = ()

    def encode(self, *_: Any) -> bytes:
        """The character of each byte stands for it."""
        return super().encode("latin-1")


def blob(chance: random.Random, most: int = 40) -> bytes | None:
    """Nothing, text with all that JSON escapes, bytes, and what is nearly UTF-8."""
    kind = chance.random()
    if kind < 0.1:
        return None if kind < 0.05 else b""
    if kind < 0.75:
        return "".join(chance.choices(TEXTS, k=chance.randrange(most))).encode()
    if kind < 0.85:
        return chance.randbytes(chance.randrange(most))
    if kind < 0.92:
        text = bytearray(("x" * chance.randrange(80) + "é€😀").encode())
        text[chance.randrange(len(text))] = chance.choice(b"\x80\xc0\xc1\xe0\xed\xf0\xf4\xf5\xff\xa0")
        return bytes(text)
    return bytes([chance.choice(b"\xed\xe0\xf0\xf4\xc2"), chance.choice(b"\x80\x8f\x90\x9f\xa0\xbf"), 0x80, 0x80])


def strange(chance: random.Random, count: int, partitions: int = 1) -> Iterator[Outgoing]:
    """Messages of every kind that `produce` sends."""
    for _ in range(count):
        headers = [
            (chance.choice(NAMES), chance.choice(TAGS) if chance.random() < 0.7 else blob(chance, 10))
            for _ in range(chance.choice([0, 1, 1, 1, 2, 3, 5]))
        ]
        key = chance.choice([None, b"", b"k%d" % chance.randrange(300), blob(chance, 6)])
        value = blob(chance) if chance.random() < 0.998 else blob(chance, 30_000)
        timestamp_ms = chance.choice([0, 0, 1, 1 << 40])
        yield Outgoing(chance.randrange(partitions), value, key, headers, timestamp_ms)


def produce_odd(bootstrap: str, topic: str, messages: Sequence[Outgoing], chance: random.Random) -> None:
    """Send messages with header names that only another client sends: with NUL, and not UTF-8."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=20, max_in_flight_requests_per_connection=1)
    for one in messages:
        headers = [(name, value or b"") for name, value in one.headers or ()]  # this client knows no null
        odd = OddName(chance.choice(ODD_NAMES).decode("latin-1")), blob(chance, 10) or b""
        headers.insert(chance.randrange(len(headers) + 1), odd)
        producer.send(topic, one.value or b"", one.key, headers, one.partition, one.timestamp_ms or None)
    producer.flush(60)
    producer.close()


def random_settings(chance: random.Random, bootstrap: str, topic: str, by: Any) -> Settings:
    """A configuration by chance that the lane does not refuse; a change of rules leaves the ids as they are."""
    while True:
        try:
            return Settings.model_validate(
                {
                    "source": {"kafka": {"bootstrap_servers": bootstrap, "group_id": "g", "topics": [topic]}},
                    "tags": _tags(chance, topic),
                    "dedup": {"by": by},
                    "sink": {"http": {"url": "http://localhost:1/", "format": chance.choice(["ndjson", "envelope"])}},
                    "state": {"dir": "/nowhere"},
                }
            )
        except ValidationError:  # such as a group of a tag that is not subscribed
            continue


def _tags(chance: random.Random, topic: str) -> dict[str, Any]:
    tags: dict[str, Any] = {}
    place = chance.choice(PLACES)
    if place is None:
        return tags
    tags["from"] = place
    known = [topic, "other"] if place == "topic" else WANTED
    some = chance.sample(known, chance.randint(1, len(known)))
    if chance.random() < 0.5:
        tags["subscribe"] = " || ".join(some)
    if chance.random() < 0.3:
        tags["exclude"] = " || ".join(chance.sample(known, 1))
    if chance.random() < 0.5:
        half = chance.randint(1, len(some))
        tags["groups"] = {"g": " || ".join(some[:half])} | ({"rest": "*"} if chance.random() < 0.5 else {})
    if split := chance.choice(SPLITS):
        tags["split"] = split
    return tags
