"""The pipeline on Spark, from the Kafka connector to the HTTP sink: for the command, `spark-submit` and notebooks.

What decides about messages stays in the core.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["run"]


def run(config: Path | str, *, once: bool = False) -> None:
    """Run the pipeline of a configuration file in the session that is there or a new one.

    Args:
        config: The file; it names `source.kafka`, `sink.http` and `spark.checkpoint`.
        once: Take what is there, then come back; else it never does.

    Raises:
        SidecarError: Something that a person must act on.
    """
    from sidecar.spark.run.job import SparkRun
    from sidecar.spark.run.supported import load_for_run

    SparkRun(load_for_run(config), lambda: False, once=once).run()
