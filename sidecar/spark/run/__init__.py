"""The pipeline on Spark, from Kafka or RocketMQ to receivers or tables: for the command, `spark-submit` and notebooks.

The core decides about messages, as in the daemon.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["run"]


def run(config: Path | str, *, once: bool = False) -> None:
    """Run the pipeline of a configuration file in the present session or a new one.

    Args:
        config: The file; it sets a source, a sink and `spark.checkpoint`.
        once: Read the present messages, then return; otherwise it never returns.

    Raises:
        SidecarError: A problem that needs a person.
    """
    from sidecar.spark.run.supported import load_for_run
    from sidecar.spark.run.table_job import job_of

    settings = load_for_run(config)
    job_of(settings)(settings, lambda: False, once=once).run()
