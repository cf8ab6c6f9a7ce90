"""Creates the sink in the settings, by `build` of the module of its name; only that module is imported."""

from __future__ import annotations

import importlib

from sidecar.config.model import Settings
from sidecar.config.sinks import SinkSettings
from sidecar.core.records import Columns
from sidecar.errors import extra
from sidecar.sinks.base import Context, Sink
from sidecar.sinks.formats import TagsOf


def build_sink(settings: Settings, columns: Columns, tags_of: TagsOf) -> Sink:
    """The sink of the settings; it connects to no receiver yet, but opens its file, table or landing zone.

    Args:
        settings: Exactly one sink is set.
        tags_of: The tags of each message, for `envelope`.

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
