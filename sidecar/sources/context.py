"""Context that a source is built from, beside its own settings. Values only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from sidecar.core.claims import Exchanged
from sidecar.core.records import Columns, Message, TopicPartition
from sidecar.sources.base import Tell
from sidecar.state.interface import State
from sidecar.state.rules import Rules

GroupsOf: TypeAlias = Callable[[TopicPartition, Sequence[Message]], Iterable[str | None]]
"""Returns the group of each message, None for a message that no group wants."""


class ExchangeTable(Protocol):
    """Table through which members of a group exchange messages."""

    problem: str
    """The reason why it is unavailable; empty if it is available."""

    def exchange(self, group: str, missed: Sequence[bytes], given: Mapping[bytes, bytes]) -> None:
        """Begin to look for missed messages, and to offer those that other members miss."""
        ...

    def exchanged(self) -> Exchanged | None:
        """The result, once; None while the request is pending, and if it failed."""
        ...


@dataclass(frozen=True, slots=True)
class SourceContext:
    """Everything that a source is built from, beside its own settings.

    Args:
        state: Storage that survives a crash.
        place: Id of this place only, see `place_id`.
        queue_bytes: Maximum size of messages that a client holds and has not handed on.
        held_max_bytes: Maximum size of held messages of a source that owns messages until they are acknowledged.
        expression: Tags by which the broker may filter, ``*`` for none.
        groups_of: Creates a function that returns the groups of messages.
        keeps_order: Whether the sink must get messages in order.
        remembers_ids: Whether message ids identify duplicates.
        lane_refusal: Why Kafka's messages cannot be sorted in the fast lane; empty if they can.
        exchange: Table through which members of the group exchange messages; None if there is none.
    """

    state: State
    folder: Path
    place: str
    rules: Rules
    queue_bytes: int
    held_max_bytes: int
    expression: str
    groups_of: Callable[[Columns], GroupsOf]
    keeps_order: bool
    remembers_ids: bool
    lane_refusal: str
    exchange: ExchangeTable | None
    tell: Tell
