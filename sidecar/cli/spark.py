"""``sidecar spark``: the jobs that run on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sidecar.cli import config_option, example
from sidecar.errors import extra

if TYPE_CHECKING:
    from sidecar.config.model import Settings
    from sidecar.daemon.signals import Signals
    from sidecar.spark.ingest.job import SparkIngest
    from sidecar.spark.run.job import SparkRun

once_option = click.option("--once", is_flag=True, help="Process what is available, then exit.")


@click.group()
def spark() -> None:
    """Run the pipeline on Spark, or fill a table from a landing zone."""


@spark.command(epilog=example("sidecar spark run -c sidecar.yaml --once"))
@config_option
@once_option
def run(path: str, once: bool) -> None:
    """Run the pipeline on Spark: consume messages, and deliver them in batches or fill a table."""
    signals = _signals()
    from sidecar.spark.run.supported import load_for_run
    from sidecar.spark.run.table_job import job_of

    settings = load_for_run(path)
    _run(job_of(settings), settings, signals, once=once)


@spark.command(epilog=example("sidecar spark ingest -c sidecar.yaml --once"))
@config_option
@once_option
def ingest(path: str, once: bool) -> None:
    """Fill the table from the landing zone that the same file configures."""
    signals = _signals()
    with extra("spark", "sidecar spark", "pyarrow"):
        from sidecar.spark.ingest.job import SparkIngest, load_for_ingest

    _run(SparkIngest, load_for_ingest(path), signals, once=once)


def _signals() -> Signals:
    """Install handlers before the imports, the longest part of startup: a stop during them must be orderly too."""
    from sidecar.daemon.signals import Signals

    signals = Signals()
    signals.install()
    return signals


def _run(job: type[SparkRun | SparkIngest], settings: Settings, signals: Signals, *, once: bool) -> None:
    from sidecar.ops.log import configure

    configure(settings.log.format, settings.log.level)
    job(settings, signals.stop_asked, once=once).run()
