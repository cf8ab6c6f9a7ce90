"""A process with the source on remoting, in a simulated world: its clock and its network are the world's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from unittest.mock import patch

from sidecar.core.pipeline.pipeline import Pipeline
from sidecar.sources.base import Assignment
from sidecar.sources.context import SourceContext
from sidecar.sources.rocketmq.progress import QueueMark
from sidecar.sources.rocketmq.remoting import (
    cluster,
    commits,
    fetch,
    pulling,
    pulls,
    routes,
    source,
    start,
)
from sidecar.sources.rocketmq.remoting.columns import RocketMqColumns
from sidecar.sources.rocketmq.remoting.source import RocketMqSource
from sidecar.sources.rocketmq.wire.messages import StoredMessage, properties
from sidecar.state.interface import Rules
from tests.simulation.leased_broker import Inline
from tests.simulation.remoting_broker import (
    queue_of,
)
from tests.simulation.remoting_network import SimulatedNetwork
from tests.simulation.shell import Shell, batching_of, delivery_of, reading_of

if TYPE_CHECKING:
    from tests.simulation.remoting import RemotingWorld


class Process(Shell):
    """A daemon with the source on remoting.

    Args:
        world: Where it lives.
    """

    source: RocketMqSource
    wait_s = 0.05

    def __init__(self, world: RemotingWorld) -> None:
        chance = world.chance
        super().__init__(world.receiver, chance)
        self._world, self._clock = world, world.clock
        reading = reading_of(RocketMqColumns(), tag_of, world.form)
        batching = batching_of(chance, chance.random.choice([30_000, 1 << 20]))
        delivery = delivery_of(ordered=chance.ordered)
        self.pipeline = Pipeline(reading, batching, delivery, chance.random.random)
        room = chance.random.choice([10_000, 1 << 20])
        context = SourceContext(world.state, Rules(b"rule"), room, "me", expression=world.expression)
        self.source = RocketMqSource(world.settings, context)
        world.state.failing = ""
        self.source.open(self)
        self.source._commits._disk = Inline()  # type: ignore[assignment]

    @property
    def now_ms(self) -> float:
        """Monotonic time."""
        return self._clock.now_s * 1000

    def reads(self, number: int) -> bool:
        """Whether a queue is read by it."""
        return queue_of(number) in self.pipeline.partitions

    def is_told(self) -> bool:
        """Whether it was told of a reset of a queue that it could not take yet."""
        return bool(self.source._assignments._start_offsets.resets)

    def offsets(self) -> dict[int, int]:
        """Where it is in each queue."""
        return {tp.partition: one.next for tp, one in self.source._pulls._queues.items()}

    def mark(self, number: int) -> QueueMark | None:
        """The message that it read last of a queue."""
        one = self.source._pulls._queues.get(queue_of(number))
        return one.mark if one else None

    def assigned(self, found: Sequence[Assignment]) -> None:
        """Go on."""
        super().assigned(found)
        if any(one.read_from > 0 and not one.resumed for one in found):
            self._world.begin()

    def event(self, name: str, level: str, fields: Mapping[str, object]) -> None:
        """Note it; where a queue is to begin is decided then."""
        super().event(name, level, fields)
        if "log_start" in fields:
            self._world.begin()

    def die(self) -> None:
        """Killed."""
        self.source._cluster.network.die()  # type: ignore[attr-defined]


def tag_of(message: StoredMessage) -> bytes:
    """Its property TAGS."""
    return dict(properties(message.properties))["TAGS"]


@contextlib.contextmanager
def simulated(world: RemotingWorld) -> Iterator[None]:
    """With the world's clock and network in place of the real ones."""

    def network(_: object, __: object, told: object) -> SimulatedNetwork:
        return SimulatedNetwork(world.broker, world.clock, world.chance, world.happen, told)  # type: ignore[arg-type]

    modules = (
        cluster,
        commits,
        pulling,
        pulls,
        routes,
        source,
        start,
    )
    with contextlib.ExitStack() as stack:
        for module in modules:
            stack.enter_context(patch.object(module, "time", world.clock))
        for module in (cluster, fetch):
            stack.enter_context(patch.object(module, "Network", network))
        yield
