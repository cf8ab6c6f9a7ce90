"""Where dead letters are: in the state folder, or in a topic. Decides which of them a command sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Literal, TypeAlias

from sidecar.config.failures import DeadLetterSettings
from sidecar.config.model import Settings
from sidecar.core.batching import Limits
from sidecar.errors import ConfigError
from sidecar.letters.dlq import DeadLetterQueues
from sidecar.letters.plan import LeftOver, ReplayPlan, StatePlan, left_over
from sidecar.letters.topic import KafkaLetterTopic, LetterTopic, TopicPlan
from sidecar.state.beside import ALL, Chosen, LettersBeside, Totals
from sidecar.state.interface import Damage, StoredLetter
from sidecar.state.replays import STATE, Replays, Target

PlaceName: TypeAlias = Literal["state", "topic"]


def _topic_of(settings: Settings, name: PlaceName | None, stack: ExitStack) -> LetterTopic | None:
    """The topic with the dead letters, None for the state folder: by its name, or where the daemon stores them."""
    chosen = settings.dead_letters if isinstance(settings.dead_letters, DeadLetterSettings) else None
    if name == "state" or (name is None and chosen is None):
        return None
    if settings.source.rocketmq is not None:
        return DeadLetterQueues(settings, settings.source.rocketmq, stack)
    if chosen is None:
        raise ConfigError("dead_letters names no topic of Kafka", hint="leave --in topic out")
    return KafkaLetterTopic(settings, chosen.kafka.topic)


class LetterPlace:
    """The dead letters of one place, which a daemon may be adding to.

    Args:
        name: The place; None for that in which the daemon stores them.
        tell: Called with a line for the operator.
        stack: Closes the state file and the topic.

    Raises:
        ConfigError: The configuration names no topic.
        NoStateError: There is no state file.
        StateError: It cannot be used.
        UnavailableError: The topic cannot be read.
    """

    def __init__(
        self, settings: Settings, name: PlaceName | None, tell: Callable[[str], None], stack: ExitStack
    ) -> None:
        self._tell = tell
        self.file = LettersBeside(settings.state.dir, self._damaged)
        stack.callback(self.file.close)
        self._topic = _topic_of(settings, name, stack)
        self._listing = None if self._topic is None else TopicPlan(self._topic, self.file, "receiver", Limits(1, 1))
        if self._topic is None and isinstance(settings.dead_letters, DeadLetterSettings):
            tell("this command sees the dead letters in the state folder only")
        elif self._topic is not None and (others := self.file.totals(Chosen()).letters):
            tell(f"{others:,} more are in the state folder: --in state")

    def _damaged(self, damage: Damage) -> None:
        self._tell(f"dead letter {damage.where} is damaged and left out")

    @property
    def source(self) -> str:
        """See `ReplayPart.source`."""
        return STATE if self._listing is None else self._listing.source

    @property
    def can_delete(self) -> bool:
        """Whether letters can be deleted one by one."""
        return self._topic is None

    @property
    def deleted_by(self) -> str:
        """What deletes the records of a topic."""
        if isinstance(self._topic, DeadLetterQueues):
            return "a broker of RocketMQ deletes them after its fileReservedTime"
        return "Kafka deletes them by the topic's retention"

    @property
    def foreign(self) -> int:
        """Records that are no dead letters, of those that were read."""
        return 0 if self._topic is None else self._topic.foreign

    def each(self, chosen: Chosen, after: int = 0, limit: int = ALL) -> Iterator[StoredLetter]:
        """The chosen letters after this id; in a topic, those of which no copy was replayed."""
        return (self.file if self._listing is None else self._listing).each(chosen, after, limit)

    def totals(self, chosen: Chosen) -> Totals:
        """How many letters are chosen."""
        return (self.file if self._listing is None else self._listing).totals(chosen)

    def one(self, id_: int) -> StoredLetter | None:
        """The letter of this id."""
        if self._topic is None:
            return next(iter(self.file.page(Chosen(ids=(id_,)), 1)), None)
        return next((record.letter for record in self._topic.within((id_,))), None)

    def left_over(self) -> LeftOver:
        """See `plan.left_over`."""
        return left_over(self.file)

    def among(self, chosen: Chosen, ids: tuple[int, ...]) -> int:
        """How many of these letters are chosen."""
        both = tuple(set(chosen.ids) & set(ids)) if chosen.ids else ids
        return self.totals(chosen._replace(ids=both)).letters if both else 0

    def plan(self, target: Target, limits: Limits) -> ReplayPlan:
        """A plan to replay letters of this place."""
        if self._topic is None:
            return StatePlan(self.file, target, limits)
        return TopicPlan(self._topic, self.file, target, limits)

    def token(self) -> str:
        """See `Replays.token`."""
        return Replays(self.file).token()
