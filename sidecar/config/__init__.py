"""The settings model, its loader and its schema."""

from sidecar.config.file.loader import InvalidConfigError, load
from sidecar.config.model import Settings
from sidecar.config.schema import schema

__all__ = ["InvalidConfigError", "Settings", "load", "schema"]
