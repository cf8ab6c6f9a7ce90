"""The interface of all destinations of batches, and the choice of the configured one. Contains no implementation."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from sidecar.config.model import Settings
from sidecar.config.sinks import SinkSettings
from sidecar.core.messages.fields import Raw
from sidecar.core.parts import Batch
from sidecar.core.records import Answer, Columns, Framer
from sidecar.errors import extra
from sidecar.sinks.formats import TagsOf


def build_sink(settings: Settings, columns: Columns, tags_of: TagsOf) -> Sink:
    """The sink of the settings; it connects to no receiver yet, but opens its file, table or landing zone.

    Raises:
        ConfigError: Certificates, a file, a landing zone or a table cannot be used, or a package is missing.
        StateError: Another process writes to the file, or as the same writer to the zone.
        ZoneError: The landing zone is damaged.
    """
    context = Context(columns, tags_of, settings.tags.filter().groups, settings.state.dir)
    return open_sink(settings.sink.name, settings.sink.chosen, context)


def open_sink(name: str, chosen: SinkSettings, context: Context) -> Sink:
    """The sink of this name; see `build_sink`."""
    with extra(chosen.extra, f"sink.{name}", *chosen.packages):
        module = importlib.import_module(f"sidecar.sinks.{name}")
    sink: Sink = module.build(chosen, context)
    return sink


class Context(NamedTuple):
    """Parameters of a sink in addition to its settings."""

    columns: Columns
    tags_of: TagsOf
    groups: Mapping[Raw, str | None]
    """The tag group by tags; None for messages that are not wanted."""
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
    """A sink that maintains its table."""

    @property
    def maintained(self) -> Mapping[tuple[str, str], int]:
        """Number of runs by operation and result; the keys do not change."""
        ...
