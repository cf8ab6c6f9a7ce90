"""A source over a client that a test speaks for."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from sidecar.core.effects import CommitItem
from sidecar.core.partition_state import PartitionState, lane_key
from sidecar.core.records import Place, Run, TopicPartition
from sidecar.sources.base import Assignment
from sidecar.sources.context import ExchangeTable, SourceContext
from sidecar.sources.rocketmq.leased.client import HandedMessage
from sidecar.sources.rocketmq.leased.source import LeasedSource
from sidecar.state.interface import Rules
from tests.simulation.leased_broker import Inline
from tests.support.memory_state import MemoryState

A, B = lane_key("a"), lane_key("b")


def handed(handle: int, body: bytes = b"body", *, unique: str = "id", times: int = 0) -> HandedMessage:
    """A message of the topic t; a body that begins with b is of the group b."""
    place = Place("%RETRY%g" if times else "t", "broker-a", 3, handle)
    return HandedMessage(handle, "t", place, body, 1, 2, unique, "0A", b"", (b"k",), (), times)


class Client:
    """Hands over what a test puts into `coming`, and notes what it is told."""

    moves = True

    def __init__(self) -> None:
        self.coming: list[HandedMessage] = []
        self.acked: list[Hashable] = []
        self.released: list[Hashable] = []
        self.extended: list[Hashable] = []
        self.full = False
        self.lost: set[Hashable] = set()
        """Handles whose lease has ended."""

    def open(self) -> None:
        """Nothing to do."""

    def receive(self, timeout_s: float) -> Sequence[HandedMessage]:
        """All that is there."""
        coming, self.coming = self.coming, []
        return coming

    def ack(self, handles: Collection[Hashable]) -> None:
        """Note them."""
        self.acked += handles

    def extend(self, handles: Collection[Hashable]) -> None:
        """Note them."""
        self.extended += handles

    def is_leased(self, handle: Hashable) -> bool:
        """Those that are neither acknowledged nor lost."""
        return handle not in self.lost and handle not in self.acked

    def release(self, handles: Collection[Hashable]) -> None:
        """Note them."""
        self.released += handles

    def receipt(self, handle: Hashable) -> str:
        """As text."""
        return str(handle)

    def adopt(self, topic: str, message_id: str, receipt: str) -> Hashable:
        """Tells that it was another's."""
        return f"adopted {receipt}"

    def pause(self, full: bool) -> None:
        """Note it."""
        self.full = full

    def problems(self) -> Mapping[str, str]:
        """None."""
        return {}

    def close(self) -> None:
        """Nothing to do."""


class Scene:
    """A source, its client, and a core that does as the test says.

    Args:
        state: Goes on from it.
        held_max_bytes: How much may be held.
        disk: Writes.
        rules: As of `LeasedSource`.
        exchange: As of `LeasedSource`.
        keep_rows: As of `LeasedSource`.
        clock: As of `LeasedSource`.
    """

    def __init__(
        self, state: MemoryState | None = None, *, held_max_bytes: int = 1 << 20, disk: Executor | None = None,
        rules: bytes = b"rule", exchange: ExchangeTable | None = None, keep_rows: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.state = state or MemoryState()
        self.client = Client()
        self.found: list[Assignment] = []
        self.results: list[Mapping[TopicPartition, bool]] = []
        self.events: list[str] = []
        context = SourceContext(
            self.state, Rules(rules), 0, held_max_bytes=held_max_bytes,
            groups_of=lambda _: lambda tp, ms: ["b" if m.handed.body.startswith(b"b") else "a" for m in ms],
        )  # fmt: skip
        self.source = LeasedSource(
            self.client, ["t"], "g", context,
            disk=disk or Inline(), exchange=exchange, keep_rows=keep_rows, clock=clock,
        )  # fmt: skip
        self.source.open(self)
        self.first = self.poll()

    def poll(self, *coming: HandedMessage) -> list[Any]:
        """What the core gets."""
        self.client.coming += coming
        return list(self.source.poll(0.0))

    def commit(self, state: PartitionState, at: int = 0) -> None:
        """The core's state is to be durable."""
        self.source.commit([CommitItem(self.found[at].tp, self.found[at].scope, state)])

    def settle(self, count: int) -> None:
        """So many messages are done with."""
        begin = self.found[0].state.seen
        self.commit(PartitionState(begin + count, begin + count))
        self.poll()

    # The listener

    def assigned(self, found: Sequence[Assignment]) -> None:
        """Note them."""
        self.found = list(found)

    def handing_over(self, tps: Collection[TopicPartition]) -> bool:
        """Nothing is held."""
        return True

    def revoking(self, tps: Collection[TopicPartition]) -> None:
        """Nothing to do."""

    lost = revoking

    def reloading(self, tp: TopicPartition) -> None:
        """Nothing to do."""

    def committed(self, results: Mapping[TopicPartition, bool], elapsed_s: float) -> None:
        """Note it."""
        self.results.append(results)

    def waiting(self, what: str) -> None:
        pass

    def event(self, name: str, level: str, fields: Mapping[str, object]) -> None:
        """Note it."""
        self.events.append(name)


def runs(found: list[Any]) -> list[tuple[int, list[bytes]]]:
    """First number and bodies of each run."""
    return [(run.first, [m.handed.body for m in run.messages]) for run in found if isinstance(run, Run)]
