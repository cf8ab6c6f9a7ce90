"""The generated messages of the demo, the same at each call, with their expected outcomes. Sends nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import NamedTuple

TOPIC = "orders"
PARTITIONS = 4
WANTED_TAGS = ("created", "paid", "refunded")
OTHER_TAGS = ("viewed",)
REPEATED = 0.05
REPEAT_DISTANCE_MAX = 20_000
"""Wanted messages between the two sends of a twin: enough that some pairs are on both sides of the kill."""
POISON = "poison"
_SEED = 20


class Made(NamedTuple):
    """One message; `kind` is ``wanted``, ``repeated``, ``unwanted`` or ``poison``."""

    kind: str
    partition: int
    id: str
    tag: str
    value: str


def stream(total: int) -> Iterator[Made]:
    """The messages in the order of sending; in each partition the n-th has offset n."""
    rng = random.Random(_SEED)
    poison_every = total // poisonous(total)
    sent: list[Made] = []
    for number in range(total):
        if number % poison_every == poison_every // 2:
            yield _made("poison", number, rng.choice(WANTED_TAGS), f'{{"order": {number}, "note": "{POISON}"}}')
        elif sent and rng.random() < REPEATED:
            yield sent[rng.randrange(max(0, len(sent) - REPEAT_DISTANCE_MAX), len(sent))]._replace(kind="repeated")
        else:
            tag = rng.choice(WANTED_TAGS + OTHER_TAGS)
            made = _made("wanted" if tag in WANTED_TAGS else "unwanted", number, tag, f'{{"order": {number}}}')
            if made.kind == "wanted":
                sent.append(made)
            yield made


def delay_ms(number: int) -> int:
    """Time from sending to the due time of a message with this number in a demo of delayed messages; 0 for none."""
    return 1_000 + number * 37 % 8_000 if number % 4 else 0


def number_of(value: str) -> int:
    """The number of a message."""
    return int(json.loads(value)["order"])


def wanted(total: int) -> int:
    """Number of messages that must arrive."""
    return sum(made.kind == "wanted" for made in stream(total))


def poisonous(total: int) -> int:
    """Number of poison messages: few, so that finding them does not fill the demo."""
    return max(3, total // 20_000)


def _made(kind: str, number: int, tag: str, value: str) -> Made:
    return Made(kind, number % PARTITIONS, f"m{number}", tag, value)
