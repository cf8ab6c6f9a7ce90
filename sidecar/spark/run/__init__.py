"""The pipeline on Spark, from the Kafka connector to the HTTP sink: for the command, `spark-submit` and notebooks.

The core decides about messages, as in the daemon.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["run"]


def run(config: Path | str, *, once: bool = False) -> None:
    """Run the pipeline of a configuration file in the present session or a new one.

    Args:
        config: The file; it sets `source.kafka`, `sink.http` and `spark.checkpoint`.
        once: Read the present messages, then return; otherwise it never returns.

    Raises:
        SidecarError: A problem that needs a person.
    """
    from sidecar.spark.run.job import SparkRun
    from sidecar.spark.run.supported import load_for_run

    SparkRun(load_for_run(config), lambda: False, once=once).run()
