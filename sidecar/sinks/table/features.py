"""The features of a Delta table that deltalake writes: a commit to a table with another one fails each time."""

from __future__ import annotations

from typing import Final

from deltalake import DeltaTable

from sidecar.errors import ConfigError

WRITTEN: Final = frozenset(
    {
        "appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors", "generatedColumns",
        "invariants", "timestampNtz", "v2Checkpoint", "variantType", "variantType-preview",
    }
)  # fmt: skip
"""Writer features that deltalake 1.6 has."""
LISTING: Final = 7
"""The version of the protocol from which on a table lists its features; deltalake knows no later one."""
IDENTITY: Final = 6
"""The version with columns that number rows."""


def lacking(min_writer_version: int, writer_features: list[str] | None) -> list[str]:
    """The features that deltalake lacks to write a table of this protocol."""
    if min_writer_version > LISTING:
        return [f"version {min_writer_version} of the protocol"]
    features = writer_features or (["identityColumns"] if min_writer_version == IDENTITY else [])
    return sorted(set(features) - WRITTEN)


def refuse_features(table: DeltaTable, path: str, otherwise: str) -> None:
    """Refuse a table that deltalake cannot write.

    Args:
        path: The table's path, for the error.
        otherwise: The remedy if the features cannot be removed.

    Raises:
        ConfigError: It has features that deltalake lacks.
    """
    protocol = table.protocol()
    if missing := lacking(protocol.min_writer_version, protocol.writer_features):
        raise ConfigError(
            f"the Delta table {path} has {', '.join(missing)}, which deltalake does not write",
            hint=f"Remove it in Spark with ALTER TABLE delta.`{path}` DROP FEATURE {missing[-1]}, if Delta can; or "
            f"{otherwise}",
        )
