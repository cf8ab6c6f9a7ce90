"""A daemon without the section `delay`: holds nothing, and notices messages left by others. Imports no store.

`Delays` and `Takeovers` are the same with a store, so the main loop never asks whether there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import TypeAlias

import structlog

from sidecar.config.model import Settings
from sidecar.core.effects import CancelHeld, CommitItem, Fetch, HoldUntilDue, Park, Unpark
from sidecar.core.records import DeadLetter, TopicPartition
from sidecar.daemon.record import STORE
from sidecar.daemon.taken import Give, TakenPartition
from sidecar.errors import extra
from sidecar.ops.admin import Ask
from sidecar.ops.health import Problem, first_of, problem
from sidecar.ops.snapshot import DelayStatus
from sidecar.runtime.worker import Inbox
from sidecar.sources.base import Assignment
from sidecar.state.interface import PartitionSnapshot

DelayEffect: TypeAlias = HoldUntilDue | CancelHeld | Park | Fetch | Unpark

log = structlog.get_logger()


class NoTakeovers:
    """No other host has this process's store: the core gets each partition at once."""

    loading: Mapping[TopicPartition, TakenPartition] = {}
    """The partitions that the core does not have yet, or may not read."""
    outdated: Collection[TopicPartition] = ()
    """Partitions that another member took over from the commit before the one in the state folder."""
    step = STORE
    """Name of a commit's step in the store, for problems."""

    def __init__(self) -> None:
        self._elsewhere: set[TopicPartition] = set()
        """Partitions of which the last owner held messages in a store that hosts share."""

    @property
    def is_adopting(self) -> bool:
        """Whether messages come one after another: the threads that read them wait for the main thread."""
        return False

    @property
    def problem(self) -> str:
        """Why a partition has waited too long; empty if none has."""
        return ""

    def assigned(self, assignments: Iterable[Assignment]) -> None:
        """Notice messages that are held elsewhere: they are not delivered."""
        for assignment in assignments:
            if assignment.state.stores.epoch:
                log.error("delay.elsewhere", **assignment.tp.fields())
                self._elsewhere.add(assignment.tp)

    def problems(self) -> list[Problem]:
        """The partitions whose messages are elsewhere."""
        if not self._elsewhere:
            return []
        reason = f"the changelog of {first_of(self._elsewhere)} may hold messages: set delay.store to changelog again"
        return [problem("delay", reason=f"{reason}, or to postgresql")]

    def begin_takeover(
        self,
        assignment: Assignment,  # noqa: ARG002
        known: PartitionSnapshot | None,  # noqa: ARG002
        then: Give,  # noqa: ARG002
    ) -> TakenPartition | None:
        """Begin to take a partition over, which `then` gets later; None if the core gets it at once."""
        return None

    def proved(self) -> list[TakenPartition]:
        """Remove and return the partitions that may be read from now on."""
        return []

    def stale(self) -> Mapping[TopicPartition, str]:
        """The partitions that the source must assign again, with the reason."""
        return {}

    def forget_partitions(self, tps: Collection[TopicPartition]) -> None:
        """Drop partitions that are no longer owned."""
        self._elsewhere.difference_update(tps)

    def tend(self) -> None:
        """Retry failed takeovers."""


class NoOwnedStores:
    """No partition has delayed messages."""

    missing: Mapping[TopicPartition, str] = {}
    """What the store of an owned partition lacks of what the last commit says."""

    def take_partition(self, assignment: Assignment) -> None:
        """Take the delayed messages of a partition that the core has just been given."""

    def with_stores(self, tps: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """These partitions, and the delayed messages of each."""
        return tps

    def stamped(self, items: list[CommitItem]) -> list[CommitItem]:
        """These states, with what the store has: a start compares."""
        return items

    def reload(self, tp: TopicPartition) -> None:
        """Take again the delayed messages that the core gave up, from the kept state."""

    def committed(self, results: Mapping[TopicPartition, bool]) -> None:
        """Forget messages below the watermarks of committed partitions."""

    def traced(self, letters: Iterable[DeadLetter]) -> list[DeadLetter]:
        """Dead letters with the places that their messages had at the source, where the messages may be gone."""
        return list(letters)

    def origin(self, tp: TopicPartition, position: int) -> int | None:  # noqa: ARG002
        """The offset that a delayed message had at the source; None if the message has ended."""
        return None


class NoDelays:
    """No delayed messages; only for the main thread."""

    def __init__(self, takeovers: NoTakeovers) -> None:
        self.takeovers = takeovers
        """Restore messages that other owners put."""
        self.owned = NoOwnedStores()

    @property
    def problem(self) -> str:
        """Why delayed messages wait, or cannot be held; empty if nothing is wrong."""
        return ""

    def asks(self, inbox: Inbox, settings: Callable[[], Settings]) -> Mapping[str, Ask]:  # noqa: ARG002
        """Functions that answer an operator, by the name in the address."""
        return {}

    def problems(self) -> list[Problem]:
        """The present problems."""
        return self.takeovers.problems()

    def status(self) -> DelayStatus | None:
        """Counts and due times of the held messages."""
        return None

    # Partitions

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        """Note assigned partitions; the core does not have them yet."""
        self.takeovers.assigned(assignments)

    def forget_partitions(self, tps: Collection[TopicPartition]) -> None:
        """Drop partitions that are no longer owned."""
        self.takeovers.forget_partitions(tps)

    # Holding and delivering

    def perform(self, effect: DelayEffect) -> None:
        """Perform an effect on the store: without one, the core requests none."""
        raise NotImplementedError(effect)

    def poll(self, now_ms: float, wall_ms: int) -> float:  # noqa: ARG002
        """Hand messages to the core that are due; return seconds until the next may be due."""
        return inf

    def take_ends(self) -> None:
        """Report changes that became durable meanwhile: a broker's acknowledgements do not come to the inbox."""

    def tend(self, now_ms: float) -> None:
        """Begin to make changes since the last write durable."""

    # Committing

    def keep(self, items: Sequence[CommitItem], then: Callable[[bool], None]) -> None:  # noqa: ARG002
        """Keep the states of delayed messages; call `then` with whether they and all messages they need are durable."""
        then(True)  # noqa: FBT003

    def keep_now(self, items: Sequence[CommitItem]) -> bool:  # noqa: ARG002
        """Keep these states, and wait; return whether they, and all messages that are on the way, are durable."""
        return True


def refuse_stranded(settings: Settings) -> None:
    """Refuse to start while this host's store holds messages and is not configured: they would never be delivered.

    Raises:
        ConfigError: It does.
        StateError: The folder cannot be used.
    """
    path, delay = Path(settings.state.dir) / "delay", settings.delay
    if path.exists() and (delay is None or delay.store != "local"):
        with extra("delay", f"to look into {path}", "rocksdict"):
            from sidecar.daemon.delays.left import refuse_held
        refuse_held(path, "the section delay is missing" if delay is None else "delay.store is not local")
