"""The one interface to every destination of batches. No implementation may come in."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

from sidecar.core.parts import Batch
from sidecar.core.records import Answer, Columns, Framer
from sidecar.sinks.formats import TagsOf


class Context(NamedTuple):
    """What a sink is made with, beside its settings."""

    columns: Columns
    """Reads the source's messages."""
    tags_of: TagsOf
    """The tags of each message."""
    state_dir: Path


class Sink(Protocol):
    """Where batches go. `deliver` is called by several threads at once."""

    @property
    def framer(self) -> Framer:
        """How this sink's format turns messages into rows."""
        ...

    def deliver(self, batch: Batch) -> Answer:
        """Send a batch once and wait for the answer; an outage is an answer, never an exception."""
        ...

    def close(self) -> None:
        """Let go of connections and files; a delivery under way ends at once with a retry. Harmless when repeated."""
        ...
