"""Flows of RocketMQ's messages through the whole daemon, whatever its client: what arrived against what was sent.

Each check takes a node and the source section without topic and group, so that `make prove-rocketmq` calls it with the
larger numbers. Messages are told by their bodies, since one that comes again stands at another place.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sidecar.sources.rocketmq.leased.recovery import GONE_AFTER_S
from sidecar.sources.rocketmq.leased.source import LASTS_S
from tests.support import rocketmq_senders as senders
from tests.support.audit import Finding, Tally, tally_counts
from tests.support.jars import native_folder
from tests.support.kafka import unique
from tests.support.process import Daemon, ended_after, wait_until
from tests.support.receiver import Receiver, value_hash
from tests.support.rocketmq import Message, Node, RocketMqNode
from tests.support.scene import BOOKS

QUEUES = 8
TAGS = ("created", "paid", "refunded", "shipped", "returned", "probe", "test", "draft")
WANTED = TAGS[:5]
PATIENCE_S = 120.0
GOES_ON_S = 10.0
"""After a node came back messages are delivered within, on a machine that is not busy with other things."""
CHUNK = 1_000
ODD = (b"\0", b"ab\0cd", b"\0xy", bytes(range(256)), b"\xff\xfe", "grün".encode(), b"\n\n", b"[1,2]", b" ")
LARGE = (1 << 20, (4 << 20) - 4096)
"""A broker takes 4 MB with what goes along."""


class Bodies:
    """What is sent to a topic, and what of it must arrive.

    Args:
        node: Takes it.
        seed: Of tags and sizes.
    """

    def __init__(self, node: Node, seed: int = 1) -> None:
        self.node = node
        self.topic = node.create_topic(unique("topic"), QUEUES)
        self.group = node.create_group(unique("group"))
        self.sent = 0
        self.wanted: Counter[str | None] = Counter()
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def send(self, count: int, *, odd: bool = False, by: Callable[[list[Message]], None] | None = None) -> None:
        """Send so many more; with bodies of all kinds among them; by another client than the tests' own."""
        bodies = [b"%d " % (self.sent + i) + self._random.randbytes(i % 100) for i in range(count)]
        if odd:
            bodies[: len(ODD)] = [b"%d " % i + body for i, body in enumerate(ODD)]
            bodies[len(ODD) : 2 * len(ODD)] = ODD
            bodies[-len(LARGE) :] = [bytes(size - 1) + b"%d" % (size % 10) for size in LARGE]
        for at in range(0, count, CHUNK):
            self.send_these([Message(body, tag=self._random.choice(TAGS)) for body in bodies[at : at + CHUNK]], by)

    def send_these(self, messages: list[Message], by: Callable[[list[Message]], None] | None = None) -> None:
        """Send messages."""
        (by or partial(self.node.send, self.topic, queues=QUEUES))(messages)
        with self._lock:
            self.wanted.update(value_hash(one.body) for one in messages if one.tag in WANTED)
            self.sent += len(messages)

    def has_arrived(self, receiver: Receiver) -> bool:
        """Whether all that is wanted is there."""
        if receiver.stats["rows"] < self.wanted.total():
            return False
        return not self.wanted - arrived(receiver)

    def lacks(self, receiver: Receiver) -> str:
        """For a failure message."""
        found = arrived(receiver)
        return f"{(self.wanted - found).total()} missing, {(found - self.wanted).total()} too many"

    def tally(self, receiver: Receiver) -> Tally:
        """What came, by body, against what is wanted."""
        return tally_counts(arrived(receiver), self.wanted)


def arrived(receiver: Receiver) -> Counter[str | None]:
    """How often each body was stored."""
    return Counter(row[3] for row in receiver.rows())


def source_of(client: str, node: RocketMqNode) -> dict[str, Any]:
    """The source section without topic and group, for a client on a node; over gRPC for one with a proxy."""
    where = {"endpoints": node.endpoints} if client == "grpc" else {"name_servers": node.name_server}
    return {"client": client, **where} | ({"native_path": str(native_folder())} if client == "native" else {})


def configuration(source: Mapping[str, Any], bodies: Bodies, url: str, **change: Any) -> dict[str, Any]:
    """Five tags of eight in small batches, to a receiver."""
    return {
        "source": {"rocketmq": {**source, "group": bodies.group, "topics": [bodies.topic]}},
        "tags": {"subscribe": " || ".join(WANTED)},
        "batch": {"max_messages": 200, "linger": "50ms"},
        "sink": {"http": {"url": url, "timeout": "20s"}},
        "retry": {"backoff": "50ms", "backoff_max": "500ms"},
        **change,
    }


def await_arrival(bodies: Bodies, receiver: Receiver, *daemons: Daemon, timeout_s: float = PATIENCE_S) -> None:
    """Wait until all has arrived."""
    wait_until(
        lambda: bodies.has_arrived(receiver), timeout_s, "all has arrived",
        detail=lambda: (bodies.lacks(receiver), [(one.status(), one.log_tail()) for one in daemons]),
    )  # fmt: skip


def await_all(daemon: Daemon, bodies: Bodies, receiver: Receiver, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
    """Wait until all has arrived and nothing is under way; the books balance."""
    await_arrival(bodies, receiver, daemon, timeout_s=timeout_s)
    return rest(daemon, timeout_s)


def rest(daemon: Daemon, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
    """Wait until nothing is under way; the books balance."""

    def resting() -> dict[str, Any] | None:
        status = daemon.status()
        assert status["consumed"] == sum(status[name] for name in BOOKS), f"the books do not balance: {status}"
        return None if status["in_flight"] or status["held_bytes"] else status

    return wait_until(resting, timeout_s, "the daemon is at rest", detail=daemon.status) or {}


def flow(node: Node, source: Mapping[str, Any], folder: Path, messages: int, share: int = 0) -> Finding:
    """Messages of all kinds, wanted ones and others: each wanted one once, byte for byte, and the books balance.

    Args:
        node: Takes them.
        source: Reads them.
        folder: Of this check.
        messages: How many are sent by the tests' own client.
        share: How many more are sent by each producer that reaches the node, of all kinds too.
    """
    begun, bodies = time.monotonic(), Bodies(node)
    others = senders.addresses(node) if share else {}
    with (
        Receiver() as receiver,
        Daemon(folder, configuration(source, bodies, receiver.url), name=unique("flow")) as daemon,
    ):
        daemon.wait_ready()
        bodies.send(messages, odd=True)
        for kind, address in others.items():
            bodies.send(share, odd=True, by=partial(senders.send, kind, address, bodies.topic, home=folder))
        wanted = bodies.wanted.total()
        wait_until(lambda: daemon.status()["delivered"] >= wanted, PATIENCE_S, "all is settled", detail=daemon.status)
        status = await_all(daemon, bodies, receiver)
        assert status["delivered"] == wanted
        assert bodies.topic in {one["topic"] for one in status["partitions"]}
        daemon.stop()
        found = bodies.tally(receiver)
    notes = f"{share:,} each by {' and '.join(senders.NAMES[kind] for kind in others)}" if others else ""
    return Finding(f"flow over {_name(source)}", 1, bodies.sent, found, time.monotonic() - begun, notes)


def kills(node: Node, source: Mapping[str, Any], folder: Path, messages: int, times: int) -> Finding:
    """Killed at random instants of one flow, its state kept: lost 0, twice 0, and new messages flow at once."""
    begun, bodies, chance = time.monotonic(), Bodies(node), random.Random(times)
    waits: list[float] = []
    with (
        Receiver() as receiver,
        Daemon(folder, configuration(source, bodies, receiver.url), name=unique("killed")) as daemon,
    ):
        receiver.fail("slow", delay_ms=15)
        for _ in range(times):
            bodies.send(messages // (times + 1))
            rows = receiver.stats["rows"] + chance.randrange(50, 1_000)
            wait_until(
                lambda rows=rows: receiver.stats["rows"] >= min(rows, bodies.wanted.total()),  # type: ignore[misc]
                PATIENCE_S, "it delivers", detail=daemon.log_tail,
            )  # fmt: skip
            daemon.kill9()
            daemon.start()
            waits.append(_fresh(bodies, receiver))
        bodies.send(messages - bodies.sent if bodies.sent < messages else 0)
        await_all(daemon, bodies, receiver)
        daemon.stop()
        found = bodies.tally(receiver)
    notes = f"a new row after {max(waits):.1f} s at most"
    return Finding(f"`kill -9` over {_name(source)}", times, bodies.sent, found, time.monotonic() - begun, notes)


def _fresh(bodies: Bodies, receiver: Receiver) -> float:
    """How long a message takes that is sent now, in seconds."""
    begun, body = time.monotonic(), b"fresh %d" % bodies.sent
    bodies.send_these([Message(body, tag=WANTED[0])])
    mark = value_hash(body)
    wait_until(lambda: any(row[3] == mark for row in receiver.rows()), PATIENCE_S, "a fresh message is delivered")
    return time.monotonic() - begun


def outages(
    node: RocketMqNode, source: Mapping[str, Any], folder: Path, messages: int, times: int,
    within_s: float = GOES_ON_S,
) -> Finding:  # fmt: skip
    """Broker and proxy are killed in mid-flow and come back: lost 0, twice 0, and it goes on soon."""
    begun, bodies = time.monotonic(), Bodies(node)
    waits: list[float] = []
    fresh: list[float] = []
    with (
        Receiver() as receiver,
        Daemon(folder, configuration(source, bodies, receiver.url), name=unique("outage")) as daemon,
    ):
        receiver.fail("slow", delay_ms=15)
        for _ in range(times):
            bodies.send(messages // times)
            rows = min(receiver.stats["rows"] + 100, bodies.wanted.total())
            wait_until(lambda rows=rows: receiver.stats["rows"] >= rows, PATIENCE_S, "it delivers")  # type: ignore[misc]
            node.kill()
            node.start()
            back_s, rows = time.monotonic(), receiver.stats["rows"]
            bodies.send(len(WANTED) * len(TAGS))
            wait_until(lambda rows=rows: receiver.stats["rows"] > rows, PATIENCE_S, "it goes on")  # type: ignore[misc]
            waits.append(time.monotonic() - back_s)
            fresh.append(_fresh(bodies, receiver))
            assert waits[-1] < within_s, f"went on after {waits[-1]:.1f} s\n{daemon.log_tail()}"
        await_all(daemon, bodies, receiver)
        # A broker that is killed may forget acknowledgements: messages that come again are a problem for some time.
        wait_until(
            lambda: all("messages came again" in text for text in daemon.status()["problems"]),
            PATIENCE_S, "it is well again but for these", detail=daemon.log_tail,
        )  # fmt: skip
        wait_until(
            lambda: not daemon.status()["problems"], LASTS_S + GOES_ON_S, "it is well again", detail=daemon.log_tail
        )
        daemon.stop()
        assert not daemon.events("library.logged"), "a library complained"
        found = bodies.tally(receiver)
    notes = f"goes on after {max(waits):.1f} s at most, then a fresh message after {max(fresh):.1f} s"
    return Finding(
        f"node killed over {_name(source)}", times, bodies.sent, found, time.monotonic() - begun, notes
    )  # fmt: skip


def members(
    node: Node, source: Mapping[str, Any], folder: Path, count: int, seconds: float, every_s: float = 5.0
) -> Finding:
    """Members join, leave and are killed, each with its own folder: lost 0; a killed one's messages may come twice."""
    begun, bodies, chance = time.monotonic(), Bodies(node), random.Random(count)
    with Receiver() as receiver:
        config = configuration(source, bodies, receiver.url)
        group = [Daemon(folder, config, name=f"member-{number}-{unique('of')}") for number in range(count)]
        events: list[str] = []
        with ended_after(group):
            for member in group:
                member.start()
            for member in group:
                member.wait_ready(PATIENCE_S)
            until_s = time.monotonic() + seconds
            while time.monotonic() < until_s:
                next_s = time.monotonic() + every_s
                while time.monotonic() < next_s:
                    bodies.send(100)
                    time.sleep(0.1)
                running = [member for member in group if member.running]
                gone = [member for member in group if not member.running]
                if gone and (len(running) == 1 or chance.random() < 0.5):
                    member = chance.choice(gone)
                    member.start()
                    member.wait_ready(PATIENCE_S)
                    events.append("join")
                elif len(running) > 1:
                    member = chance.choice(running)
                    events.append(chance.choice(["kill", "leave"]))
                    member.kill9() if events[-1] == "kill" else member.stop()
            wait_until(
                lambda: bodies.has_arrived(receiver), GONE_AFTER_S + 2 * PATIENCE_S, "all has arrived",
                detail=lambda: (bodies.lacks(receiver), [one.log_tail() for one in group if one.running]),
            )  # fmt: skip
            for member in group:
                if member.running:
                    member.stop()
        found = bodies.tally(receiver)
    notes = f"{events.count('kill')} killed, {events.count('leave')} left"
    name = f"{count} members over {_name(source)}"
    repeated = len(found.twice)
    found.twice.clear()
    return Finding(name, len(events), bodies.sent, found, time.monotonic() - begun, notes, repeated)


def _name(source: Mapping[str, Any]) -> str:
    return f"`client: {source.get('client', 'remoting')}`"
