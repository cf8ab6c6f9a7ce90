"""Creates the source that the settings name, by `build` of the package of that name; no other package is imported."""

from __future__ import annotations

import importlib

from sidecar.config.source.section import Source as Settings
from sidecar.sources.base import Source
from sidecar.sources.context import SourceContext


def build_source(settings: Settings, context: SourceContext) -> Source:
    """Create the source that the settings name; makes no connection yet.

    Raises:
        ConfigError: Its certificates cannot be used, or a package is missing.
    """
    module = importlib.import_module(f"sidecar.sources.{settings.name}.build")
    source: Source = module.build(settings.chosen, context)
    return source
