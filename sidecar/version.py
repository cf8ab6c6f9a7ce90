"""The version of the installed package. Nothing else may come in."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """As the package was installed, ``unknown`` where it was not; read once."""
    try:
        return metadata.version("consumer-sidecar")
    except metadata.PackageNotFoundError:
        return "unknown"
