"""The messages that the demo generates, the rows that arrived, and whether the books balance. Prints nothing."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sidecar.ops.address import read_address
from sidecar.ops.client import NO_ANSWER, exchange
from sidecar.state.store import Store

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


TIMEOUT_S = 2.0
LETTERS_MAX = 100_000


class ReceiverDatabase:
    """The receiver's database, a file that the receiver must have created."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, timeout=30.0)
        self._seen = 0

    def delivered(self) -> int:
        """Number of rows so far; no row is ever deleted."""
        return int(self._db.execute("SELECT coalesce(max(rowid), 0) FROM rows").fetchone()[0])

    def batches(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM parts").fetchone()[0])

    def rows(self) -> Iterator[DeliveredRow]:
        for partition, offset, row in self._db.execute('SELECT "partition", "offset", row FROM rows'):
            yield DeliveredRow((partition, offset), json.loads(row)["value"])

    def new_rows(self) -> Iterator[tuple[str, int]]:
        """Value and timestamp of the rows that were added since the last call."""
        for number, row in self._db.execute("SELECT rowid, row FROM rows WHERE rowid > ? ORDER BY rowid", [self._seen]):
            self._seen = number
            found = json.loads(row)
            yield found["value"], found["timestamp"]

    def close(self) -> None:
        self._db.close()


def ask_status(state_dir: Path, pid: int) -> dict[str, Any] | None:
    """The status of the daemon with this process id; None while it does not answer."""
    address = read_address(state_dir)
    if address is None or address.pid != pid:
        return None
    with contextlib.suppress(*NO_ANSWER):
        status: dict[str, Any] = json.loads(exchange(address.url, "status", TIMEOUT_S)[1])
        return status if status.get("pid") == pid else None
    return None


def dead_letters(state_dir: Path) -> list[Position]:
    """Places of the dead letters in a state folder that no daemon uses."""
    with contextlib.closing(Store(state_dir)) as state:
        return [(letter.partition, letter.offset) for letter in state.letters.load(LETTERS_MAX)]


class Arrival(NamedTuple):
    """A delayed message, in milliseconds since 1970."""

    due_ms: float
    at_ms: float
    """Time at which it was seen at the receiver."""


class Lateness(NamedTuple):
    """Lateness of messages that were due while a daemon ran."""

    early: int
    """Messages that arrived before they were due, at any time."""
    half_ms: float
    """Lateness that half of the messages did not exceed."""
    most_ms: float
    """Lateness that 99 of 100 messages did not exceed."""
    waited: int
    """Messages that were due before another process delivered again, and did not arrive before the kill."""


def lateness(arrivals: Iterable[Arrival], killed_ms: float, resumed_ms: float) -> Lateness:
    """Sum up a run by all delayed messages that arrived, and the time of the first delivery by another process."""
    arrivals = list(arrivals)
    waited = [each for each in arrivals if each.due_ms <= resumed_ms and each.at_ms >= killed_ms]
    late = sorted(each.at_ms - each.due_ms for each in set(arrivals).difference(waited)) or [0.0]
    early = sum(each.at_ms < each.due_ms for each in arrivals)
    return Lateness(early, late[len(late) // 2], late[len(late) * 99 // 100], len(waited))


Position = tuple[int, int]
"""Partition and offset."""


class DeliveredRow(NamedTuple):
    """A row as the receiver stored it."""

    place: Position
    value: str


@dataclass(frozen=True, slots=True)
class DemoBooks:
    """The outcomes of all messages."""

    produced: int
    consumed: int
    delivered: int
    duplicate: int
    filtered: int
    dead_lettered: int
    lost: int
    twice: int
    wrong: int
    """Rows and dead letters that should not exist, or have another value than was sent."""

    @property
    def balanced(self) -> bool:
        """Whether each message has exactly its proper outcome."""
        ends = self.delivered + self.duplicate + self.filtered + self.dead_lettered
        return self.produced == self.consumed == ends and not (self.lost or self.twice or self.wrong)


def count(made: Iterable[Made], consumed: int, rows: Iterable[DeliveredRow], letters: Iterable[Position]) -> DemoBooks:
    """The books of a run: all messages in the order they were sent, and those below the committed offsets."""
    arrived: dict[Position, list[str]] = {}
    for row in rows:
        arrived.setdefault(row.place, []).append(row.value)
    dead = set(letters)
    ends: Counter[str] = Counter()
    for position, message in _placed(made):
        ends["produced"] += 1
        ends.update(_ends(message, arrived.pop(position, []), dead=position in dead))
        dead.discard(position)
    ends["wrong"] += sum(map(len, arrived.values())) + len(dead)
    names = ("produced", "delivered", "duplicate", "filtered", "dead_lettered", "lost", "twice", "wrong")
    return DemoBooks(consumed=consumed, **{name: ends[name] for name in names})


def _placed(made: Iterable[Made]) -> Iterator[tuple[Position, Made]]:
    following = [0] * PARTITIONS
    for message in made:
        yield (message.partition, following[message.partition]), message
        following[message.partition] += 1


def _ends(message: Made, values: list[str], *, dead: bool) -> dict[str, int]:
    """The outcome of one message, by the values that arrived from its place."""
    if message.kind == "poison":
        return {"dead_lettered" if dead else "lost": 1, "wrong": len(values)}
    if message.kind == "unwanted":
        return {"wrong": len(values) + dead} if values or dead else {"filtered": 1}
    if message.kind == "repeated":
        return {"twice": len(values), "wrong": int(dead)} if values or dead else {"duplicate": 1}
    changed = sum(value != message.value for value in values)
    outcome = "delivered" if values else "lost"
    return {outcome: 1, "twice": max(0, len(values) - 1), "wrong": changed + dead}
