"""What a source is built from beside its own settings. Values only."""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from sidecar.core.claims import Exchanged
from sidecar.core.records import Columns, Message, TopicPartition
from sidecar.sources.base import Tell
from sidecar.state.interface import State

GroupsOf: TypeAlias = Callable[[TopicPartition, Sequence[Message]], Iterable[str | None]]
"""The groups of many messages, None for each that nobody wants."""


class Table(Protocol):
    """Where members of a group exchange messages."""

    problem: str
    """Why it is unavailable, or an empty text."""

    def exchange(self, group: str, missed: Sequence[bytes], given: Mapping[bytes, bytes]) -> None:
        """Begin to look for missed messages, and to give those that others miss."""
        ...

    def exchanged(self) -> Exchanged | None:
        """The result, once; None while the request is pending, and if it failed."""
        ...


@dataclass(frozen=True, slots=True)
class SourceContext:
    """What a source is built from beside its own settings.

    Args:
        state: Keeps what must outlive a crash.
        folder: The state folder.
        place: Stands for this place alone, see `place_id`.
        rules: 4 bytes, a hash of what decides where a message goes.
        queue_bytes: What a client may hold that was not handed on.
        held_max_bytes: What a source may hold whose messages are its own until they are acknowledged.
        expression: Tags by which the broker may filter, ``*`` for none.
        groups_of: Makes a function that tells the groups of messages.
        keeps_order: Whether the sink is to get messages in order.
        remembers_ids: Whether duplicates are told by message ids.
        exchange: Where members of the group exchange messages, if anywhere.
        tell: Writes a log event.
    """

    state: State
    folder: Path
    place: str
    rules: bytes
    queue_bytes: int
    held_max_bytes: int
    expression: str
    groups_of: Callable[[Columns], GroupsOf]
    keeps_order: bool
    remembers_ids: bool
    exchange: Table | None
    tell: Tell


def place_id(state_dir: Path, machine_id: Path = Path("/etc/machine-id")) -> str:
    """A client id that stands for this place alone: the machine, the host's name and the state folder.

    That folder is locked, so whoever else has this id in the group is a predecessor that died, also when the folder was
    deleted with it. Two places that look alike evict each other's member at a start: it joins again and loses nothing.
    """
    host = socket.gethostname()
    try:
        machine = machine_id.read_text().strip()
    except (OSError, ValueError):
        machine = ""
    place = "\0".join((machine, host, str(state_dir.resolve())))
    digits = hashlib.blake2b(place.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    return f"sidecar-{re.sub(r'[^A-Za-z0-9._-]', '_', host)[:64]}-{digits}"
