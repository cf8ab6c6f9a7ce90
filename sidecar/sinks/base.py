"""The interface of all destinations of batches. It contains no implementation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from sidecar.core.messages.fields import Raw
from sidecar.core.parts import Batch
from sidecar.core.records import Answer, Columns, Framer
from sidecar.sinks.formats import TagsOf


class Context(NamedTuple):
    """Parameters of a sink in addition to its settings."""

    columns: Columns
    """Reads the source's messages."""
    tags_of: TagsOf
    """The tags of each message."""
    groups: Mapping[Raw, str | None]
    """The tag group by tags, None for messages that are not wanted."""
    state_dir: Path


class Sink(Protocol):
    """A destination of batches. Several threads call `deliver` at once."""

    @property
    def framer(self) -> Framer:
        """The framer that turns messages into rows of this sink's format."""
        ...

    def deliver(self, batch: Batch) -> Answer:
        """Send a batch once and wait for the answer; an outage is an answer, never an exception."""
        ...

    def close(self) -> None:
        """Close connections and files; a delivery under way ends at once with a retry. Harmless when repeated."""
        ...


@runtime_checkable
class Maintains(Protocol):
    """The interface of a sink that maintains its table."""

    @property
    def maintained(self) -> Mapping[tuple[str, str], int]:
        """Number of runs by operation and result; the keys do not change."""
        ...
