"""What surrounds a process with a leased source: a broker that hands over again, its client, a receiver, a disk."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import orjson

from sidecar.core.claims import ClaimEnd, Exchanged, Want
from sidecar.core.parts import Batch
from sidecar.core.records import Place
from sidecar.sources.rocketmq.leased.client import HandedMessage
from sidecar.state.interface import ProgressKey
from tests.support.memory_ledger import MemoryLedger
from tests.support.memory_state import MemoryState

TOPIC = "orders"
TAGS = [b"a", b"b", b"c", b"no"]


class CrashError(Exception):
    """The process is gone from here on."""


class Inline(Executor):
    """Does at once what it is given."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do it."""
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except CrashError:
            raise
        except Exception as error:  # noqa: BLE001
            done.set_exception(error)
        return done


class Chance:
    """What goes wrong, and when.

    Args:
        seed: Of all of it.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.faulty = True
        self.crash_rate = self.random.choice([0.0, 0.002, 0.01])
        self.ordered = random.Random(~seed).random() < 0.3
        """In all lives; with a ledger alone."""

    def __call__(self, rate: float) -> bool:
        return self.faulty and self.random.random() < rate

    def crash(self) -> None:
        """Perhaps."""
        if self(self.crash_rate):
            raise CrashError


class FragileState(MemoryState):
    """A state whose process may end before a write and after it."""

    chance: Chance
    is_sound = False
    """Whether each write succeeds at present."""

    def save_progress(self, rows: Mapping[ProgressKey, str], *, durable: bool = True) -> None:
        """See `State.save_progress`."""
        self.chance.crash()
        self.failing = "full" if not self.is_sound and self.chance(0.02) else ""
        super().save_progress(rows, durable=durable)
        self.chance.crash()


class SimulatedBroker:
    """Keeps messages, and hands over again what is not acknowledged.

    Args:
        chance: What goes wrong.
        count: How many different messages there are.
        copies: How many of them are sent twice, under another id; all have their number as the property `order` then,
            but for each 7th.
    """

    def __init__(self, chance: Chance, count: int, copies: int = 0) -> None:
        self._chance = chance
        pick = chance.random.choice
        # Producers draw ids that are not unique.
        self.messages = [(b"%d" % i, pick(TAGS), f"id{i // 2 if i % 10 == 0 else i}") for i in range(count)]
        self._has_orders = bool(copies)
        for i in (pick([i for i in range(count) if i % 7]) for _ in range(copies)):
            at = chance.random.randrange(count)
            self.messages.insert(at, (b"%d again %d" % (i, at), self._tag_of(b"%d" % i), f"again{i} {at}"))
        self.leases: dict[int, int] = {}
        """Message by handle."""
        self.ready = list(range(len(self.messages)))
        self.acked: list[int] = []
        self._times: Counter[int] = Counter()
        self._handles = 0
        self._first = 0
        """Of the messages of the topic as it is."""

    def _tag_of(self, body: bytes) -> bytes:
        return next(tag for one, tag, _ in self.messages if one == body)

    def hand(self, most: int) -> list[HandedMessage]:
        """Hand over some messages, in about their order."""
        found = []
        for _ in range(min(most, len(self.ready))):
            at = min(self._chance.random.randrange(4), len(self.ready) - 1) if self._chance.faulty else 0
            found.append(self._handed(self.ready.pop(at)))
        return found

    def _handed(self, number: int) -> HandedMessage:
        body, tag, drawn = self.messages[number]
        self._handles += 1
        self._times[number] += 1
        self.leases[self._handles] = number
        times = self._times[number] - 1
        at, order = self._handles, body.split()[0]
        place = Place(f"%RETRY%{TOPIC}" if times else TOPIC, "b", 0, at)
        properties = [("TAGS", tag), *([("order", order)] if self._has_orders and int(order) % 7 else [])]
        properties += [("RETRY_TOPIC", TOPIC.encode())] if times else []
        return HandedMessage(at, TOPIC, place, body, 1, 1, drawn, f"{at:032x}", tag, (), properties, times)

    def ack(self, handle: int) -> None:
        """A lost one leaves the message where it is."""
        number = self.leases.get(handle)
        if number is not None and not self._chance(0.05):
            del self.leases[handle]
            self.acked.append(number)

    def expire(self, handles: Collection[int]) -> None:
        """These are handed over again."""
        for handle in handles:
            number = self.leases.pop(handle, None)
            if number is not None:
                self.ready.insert(self._chance.random.randrange(len(self.ready) + 1), number)

    def die(self) -> None:
        """Killed: it forgets some acknowledgements."""
        forgotten = [number for number in self.acked[-20:] if self._chance(0.5)]
        self.acked = [number for number in self.acked if number not in forgotten]
        self.ready = forgotten + self.ready

    def remake(self) -> None:
        """The topic is deleted and made again: other messages stand there, and some that are like old ones."""
        self._first = len(self.messages)
        old = self._chance.random.sample(self.messages, 3)
        new = [(b"%d" % i, self._chance.random.choice(TAGS), f"id{i}") for i in range(self._first, self._first + 40)]
        self.messages += [*new, *old]
        self.leases, self.acked = {}, []
        self.ready = list(range(self._first, len(self.messages)))

    def current(self) -> list[tuple[bytes, bytes]]:
        """Bodies and tags of the topic as it is."""
        return [(body, tag) for body, tag, _ in self.messages[self._first :]]

    def left(self) -> str:
        """What is not acknowledged."""
        return f"{len(self.ready)} ready, {len(self.leases)} out"

    @property
    def is_empty(self) -> bool:
        """Whether all is acknowledged."""
        return not self.ready and not self.leases


class SimulatedClient:
    """An `LeasedClient` of the simulated broker."""

    moves = True

    def __init__(self, broker: SimulatedBroker, chance: Chance) -> None:
        self._broker = broker
        self._chance = chance
        self._full = False

    def open(self) -> None:
        """Nothing to do."""

    def receive(self, timeout_s: float) -> Sequence[HandedMessage]:
        """Some of what is there."""
        return [] if self._full else self._broker.hand(self._chance.random.randrange(8))

    def ack(self, handles: Collection[Hashable]) -> None:
        """Any of it may be lost, and the process may end in between."""
        for handle in handles:
            self._chance.crash()
            self._broker.ack(int(str(handle)))

    def extend(self, handles: Collection[Hashable]) -> None:
        """Nothing expires by itself here."""

    def is_leased(self, handle: Hashable) -> bool:
        """False: the broker is killed at will, so that a message may come at any time."""
        return False

    def release(self, handles: Collection[Hashable]) -> None:
        """Give back."""
        self._broker.expire([int(str(handle)) for handle in handles])

    def receipt(self, handle: Hashable) -> str:
        """As text."""
        return str(handle)

    def adopt(self, topic: str, message_id: str, receipt: str) -> Hashable:
        """Good for an acknowledgement still."""
        return int(receipt)

    def pause(self, full: bool) -> None:
        """Take nothing in."""
        self._full = full

    def problems(self) -> Mapping[str, str]:
        """None."""
        return {}

    def close(self) -> None:
        """Nothing to do."""


class SimulatedReceiver:
    """Stores parts, and remembers their names.

    Attributes:
        rows: What it stored.
        keys: The same by the first word of each body.
        differing: Names under which other bytes came again.
    """

    def __init__(self) -> None:
        self.rows: Counter[bytes] = Counter()
        self.keys: Counter[bytes] = Counter()
        self.order: list[bytes] = []
        self.differing: list[str] = []
        self._known: dict[tuple[str, str], list[bytes]] = {}

    def store(self, batch: Batch) -> None:
        """Parts whose name is known are not stored again."""
        for part in batch.parts:
            rows = [row for one in part.fragments for row in bytes(one.data).split(b"\n") if one.offsets]
            known = self._known.setdefault((part.group, part.name), rows)
            if known is rows:
                self.rows.update(rows)
                found = [key_of(row) for row in rows]
                self.keys.update(found)
                self.order += found
            elif known != rows:
                self.differing.append(part.name)


def key_of(row: bytes) -> bytes:
    """The message that a row has, by the first word of its body."""
    body = str(orjson.loads(row)["value"]).encode() if row.startswith(b"{") else row
    return body.split()[0]


class SimulatedLedger:
    """A ledger as one process sees it: a question may be lost, or its answer.

    Args:
        ledger: Shared by all.
        claim_ms: How long a claim holds.
        chance: What goes wrong.
    """

    problem = ""

    def __init__(self, ledger: MemoryLedger, claim_ms: int, chance: Chance) -> None:
        self._ledger = ledger
        self._claim_ms = claim_ms
        self._chance = chance
        self._exchanged: Exchanged | None = None

    def claim(self, wants: Sequence[Want]) -> list[list[int]] | None:
        """The verdicts, if they arrive."""
        self._chance.crash()
        verdicts = None if self._chance(0.05) else self._ledger.claim(wants, self._claim_ms)
        self._chance.crash()
        return None if self._chance(0.05) else verdicts

    def settle(self, marks: Sequence[ClaimEnd]) -> bool:
        """Whether these marks are."""
        self._chance.crash()
        if self._chance(0.05):
            return False
        self._ledger.settle(marks)
        self._chance.crash()
        return True

    def exchange(self, group: str, missed: Sequence[bytes], given: Mapping[bytes, bytes]) -> None:
        """See `exchange.Place`."""
        self._exchanged = None if self._chance(0.05) else self._ledger.exchange(group, missed, given)
        self._exchanged = None if self._chance(0.05) else self._exchanged

    def exchanged(self) -> Exchanged | None:
        """See `exchange.Place`."""
        found, self._exchanged = self._exchanged, None
        return found
