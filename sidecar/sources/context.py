"""Context that a source is built from, beside its own settings, and its creation. Connects nowhere."""

from __future__ import annotations

import hashlib
import importlib
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from sidecar.config.source.section import SourceSection as Settings
from sidecar.core.claims import Exchanged
from sidecar.core.records import Columns, Message, TopicPartition
from sidecar.sources.base import Source, Tell
from sidecar.state.interface import Rules, State


def place_id(state_dir: Path, machine_id: Path = Path("/etc/machine-id")) -> str:
    """Client id that identifies this place only: the machine, the host name and the state folder.

    The folder is locked, so another member with this id is a predecessor that died, even if the folder was deleted with
    it. If two places have the same id, each evicts the other's member at a start; that joins again and loses nothing.
    """
    host = socket.gethostname()
    try:
        machine = machine_id.read_text().strip()
    except (OSError, ValueError):
        machine = ""
    place = "\0".join((machine, host, str(state_dir.resolve())))
    digits = hashlib.blake2b(place.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    return f"sidecar-{re.sub(r'[^A-Za-z0-9._-]', '_', host)[:64]}-{digits}"


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
        place: Id of this place only, see `place_id`; empty if there is no daemon.
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
    rules: Rules
    queue_bytes: int
    place: str = ""
    folder: Path = Path()
    held_max_bytes: int = 0
    expression: str = "*"
    groups_of: Callable[[Columns], GroupsOf] = lambda _: lambda tp, messages: [None] * len(messages)
    keeps_order: bool = False
    remembers_ids: bool = False
    lane_refusal: str = ""
    exchange: ExchangeTable | None = None
    tell: Tell = lambda *_: None


def build_source(settings: Settings, context: SourceContext) -> Source:
    """Create the source that the settings name; makes no connection yet.

    Raises:
        ConfigError: Its certificates cannot be used, or a package is missing.
    """
    module = importlib.import_module(f"sidecar.sources.{settings.name}.build")
    source: Source = module.build(settings.chosen, context)
    return source
