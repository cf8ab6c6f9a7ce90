"""One topic, one receiver, and the daemons that a test puts between them; it knows what must arrive. No faults here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.audit import Tally, tally_counts
from tests.support.kafka import Broker, Outgoing, produce, unique
from tests.support.process import Daemon, wait_until
from tests.support.receiver import Receiver, Row, value_hash

BOOKS = (
    "delivered", "duplicate", "filtered", "dead_lettered", "cancelled", "released", "in_flight", "delayed", "parked",
)  # fmt: skip
SHORT = {"timeout": "1s"}
RETRY = {"backoff": "50ms", "backoff_max": "500ms"}


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with what `change` says otherwise, mapping by mapping."""
    both = {key: merged(base[key], change[key]) for key in base.keys() & change.keys() if isinstance(base[key], dict)}
    return {**base, **change, **both}


def values(word: str, count: int) -> list[bytes]:
    """Different values."""
    return [f"{word} {i}".encode() for i in range(count)]


def rss_bytes(pid: int, field: str = "VmHWM") -> int:
    """The most memory that a process had so far; with `VmRSS`, what it has now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{field}:"))) << 10


class Scene:
    """What one test works with.

    Args:
        broker: The broker.
        folder: Of configurations, logs and state folders.
        receiver: Where batches go.
        topic: The topic that is read unless a configuration says otherwise.
        group: The consumer group.

    Attributes:
        expected: What must arrive, filled by `send`.
    """

    def __init__(self, broker: Broker, folder: Path, receiver: Receiver, topic: str, group: str) -> None:
        self.broker = broker
        self.receiver = receiver
        self.topic = topic
        self.group = group
        self.expected: list[Row] = []
        self._folder = folder

    def config(self, **change: Any) -> dict[str, Any]:
        """The configuration: quick retries, one group a tag; `change` goes into its sections."""
        base = {
            "source": {
                "kafka": {
                    "bootstrap_servers": self.broker.bootstrap,
                    "group_id": self.group,
                    "topics": [self.topic],
                    "start_timeout": "10s",
                }
            },
            "tags": {"from": {"header": "tag"}},
            "batch": {"linger": "20ms"},
            "sink": {"http": {"url": self.receiver.url, **SHORT}},
            "retry": RETRY,
        }
        return merged(base, change)

    def daemon(self, name: str = "sidecar", **change: Any) -> Daemon:
        """A daemon, not started; daemons of one name share their state folder and log."""
        return Daemon(self._folder, self.config(**change), name=name)

    def send(self, values: Iterable[bytes | None], *, partition: int = 0, tag: str = "a", topic: str = "") -> list[Row]:
        """Produce messages that must arrive; gives them as rows. Nobody else may produce there meanwhile."""
        topic = topic or self.topic
        at = self.broker.end_offsets(topic)[partition]
        values = list(values)
        produce(self.broker.bootstrap, topic, (Outgoing(partition, v, None, [("tag", tag.encode())]) for v in values))
        rows: list[Row] = [(topic, partition, at + i, value_hash(value)) for i, value in enumerate(values)]
        self.expected += rows
        return rows

    def tally(self) -> Tally:
        """What arrived, against what must arrive."""
        return tally_counts(Counter(self.receiver.rows()), Counter(self.expected))

    def await_all(self, daemon: Daemon, timeout_s: float = 45.0) -> dict[str, Any]:
        """Wait until the daemon is ready, and all that is expected arrived and is committed.

        Each message has come once, nothing else has, and the books balance.

        Raises:
            AssertionError: It did not come in time, or anything came twice or unexpectedly.
        """
        wanted = Counter(self.expected)
        daemon.wait_ready()

        def arrived() -> bool:
            return not wanted - Counter(self.receiver.rows())

        def missing() -> object:
            rest = sorted(wanted - Counter(self.receiver.rows()))
            return f"{len(rest)} missing, the first: {rest[:3]}\n{daemon.log_tail()}"

        wait_until(arrived, timeout_s, f"{len(self.expected)} rows at the receiver", detail=missing)
        ends = {(t, p): end for t in {row[0] for row in wanted} for p, end in self.broker.end_offsets(t).items()}
        status = await_rest(daemon, timeout_s, ends)
        twice_or_odd = Counter(self.receiver.rows()) - wanted
        assert not twice_or_odd, f"{len(twice_or_odd)} rows too many, the first: {sorted(twice_or_odd)[:3]}"
        return status


@contextmanager
def new_scene(broker: Broker, folder: Path, partitions: int = 1) -> Iterator[Scene]:
    """A new topic and group, and a receiver that remembers names."""
    topic = broker.create_topic(unique("topic"), partitions)
    with Receiver() as receiver:
        yield Scene(broker, folder, receiver, topic, unique("group"))


def await_rest(
    daemon: Daemon, timeout_s: float = 45.0, ends: Mapping[tuple[str, int], int] | None = None
) -> dict[str, Any]:
    """Wait until nothing is under way, behind or held, and give that status; its books balance.

    Args:
        daemon: Who is asked.
        timeout_s: Seconds of patience.
        ends: By topic and partition what must be settled: a status may be from before the last messages came.
    """

    def resting() -> dict[str, Any] | None:
        status = daemon.status()
        assert status["consumed"] == sum(status[name] for name in BOOKS), f"the books do not balance: {status}"
        at = {(one["topic"], one["partition"]): one["watermark"] for one in status["partitions"]}
        at_rest = status["lag"] == 0 and not status["in_flight"] and not status["held_bytes"]
        return status if at_rest and all(at.get(tp, 0) >= end for tp, end in (ends or {}).items()) else None

    status = wait_until(
        resting, timeout_s, "the daemon is at rest", detail=lambda: (daemon.status(), daemon.log_tail())
    )
    assert status is not None
    return status
