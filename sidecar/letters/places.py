"""Where dead letters are: in the state folder, or in a topic of Kafka. Decides which of them a command sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Literal, TypeAlias

from sidecar.config.failures import DeadLetters
from sidecar.config.model import Settings
from sidecar.core.batching import Limits
from sidecar.errors import ConfigError
from sidecar.letters.plan import LeftOver, Plan, StatePlan, left_over
from sidecar.letters.topic import LetterTopic, TopicPlan
from sidecar.state.beside import ALL, Chosen, LettersBeside, Totals
from sidecar.state.interface import Damage, StoredLetter
from sidecar.state.replays import STATE, Replays, Target

PlaceName: TypeAlias = Literal["state", "topic"]


def topic_of(settings: Settings) -> str | None:
    """The topic in which the daemon stores dead letters; None if it is not in Kafka."""
    chosen = settings.dead_letters
    return chosen.kafka.topic if isinstance(chosen, DeadLetters) and chosen.kafka_ is not None else None


class Place:
    """The dead letters of one place, which a daemon may be adding to.

    Args:
        settings: The configuration.
        name: The place; None for that in which the daemon stores them.
        tell: Called with a line for the operator.
        stack: Closes the state file.

    Raises:
        ConfigError: The configuration names no topic.
        NoStateError: There is no state file.
        StateError: It cannot be used.
        UnavailableError: The topic cannot be read.
    """

    def __init__(
        self, settings: Settings, name: PlaceName | None, tell: Callable[[str], None], stack: ExitStack
    ) -> None:
        topic = topic_of(settings)
        if name == "topic" and topic is None:
            raise ConfigError("dead_letters names no topic of Kafka", hint="leave --in topic out")
        self._tell = tell
        self.file = LettersBeside(settings.state.dir, self._damaged)
        stack.callback(self.file.close)
        self._topic = LetterTopic(settings, topic) if topic is not None and name != "state" else None
        self._listing = None if self._topic is None else TopicPlan(self._topic, self.file, "receiver", Limits(1, 1))
        if self._topic is None and isinstance(settings.dead_letters, DeadLetters):
            tell(f"dead letters go to {topic or 'RocketMQ'}; this command sees those in the state folder only")

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

    def plan(self, target: Target, limits: Limits) -> Plan:
        """A plan to replay letters of this place."""
        if self._topic is None:
            return StatePlan(self.file, target, limits)
        return TopicPlan(self._topic, self.file, target, limits)

    def token(self) -> str:
        """See `Replays.token`."""
        return Replays(self.file).token()
