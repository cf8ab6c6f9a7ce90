"""The job that fills a table from a landing zone, for the command, for `spark-submit` and for notebooks."""

from __future__ import annotations

from pathlib import Path

__all__ = ["ingest"]


def ingest(config: Path | str, *, once: bool = False) -> None:
    """Fill the table of a configuration file from its landing zone, in the present session or a new one.

    Args:
        config: The file; it sets `sink.spark.landing`, `spark.checkpoint` and `spark.table`.
        once: Read the present data, then return; otherwise it never returns.

    Raises:
        SidecarError: A problem that needs a person.
    """
    from sidecar.spark.ingest.job import SparkIngest, load_for_ingest

    SparkIngest(load_for_ingest(config), lambda: False, once=once).run()
