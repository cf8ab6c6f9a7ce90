"""The version of the installed package."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """The installed version, ``unknown`` without an installation; read once."""
    try:
        return metadata.version("consumer-sidecar")
    except metadata.PackageNotFoundError:
        return "unknown"
