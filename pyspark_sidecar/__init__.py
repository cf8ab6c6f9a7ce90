"""Where Spark looks for the source of the name `sidecar` by itself. Nothing but that name may come in."""

from sidecar.spark.source.datasource import DefaultSource

__all__ = ["DefaultSource"]
