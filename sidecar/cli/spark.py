"""``sidecar spark``: the jobs that run on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sidecar.cli import config_option
from sidecar.errors import extra

if TYPE_CHECKING:
    from sidecar.config.model import Settings
    from sidecar.daemon.signals import Signals
    from sidecar.spark.ingest.job import SparkIngest
    from sidecar.spark.run.job import SparkRun

once_option = click.option("--once", is_flag=True, help="Take what is there, then end.")


@click.group()
def spark() -> None:
    """Run on Spark: the pipeline itself, or what fills a table from a landing zone."""


@spark.command()
@config_option
@once_option
def run(path: str, once: bool) -> None:
    """Take messages from the source and hand them to the sink, on Spark."""
    signals = _signals()
    from sidecar.spark.run.job import SparkRun
    from sidecar.spark.run.support import load_for_run

    _run(SparkRun, load_for_run(path), signals, once=once)


@spark.command()
@config_option
@once_option
def ingest(path: str, once: bool) -> None:
    """Fill a table from the landing zone of the same file."""
    signals = _signals()
    with extra("spark", "sidecar spark", "pyarrow"):
        from sidecar.spark.ingest.job import SparkIngest
        from sidecar.spark.ingest.support import load_for_ingest

    _run(SparkIngest, load_for_ingest(path), signals, once=once)


def _signals() -> Signals:
    """Taken over before the imports, which take the longest of a start: a stop during them is one in order, too."""
    from sidecar.daemon.signals import Signals

    signals = Signals()
    signals.install()
    return signals


def _run(job: type[SparkRun | SparkIngest], settings: Settings, signals: Signals, *, once: bool) -> None:
    from sidecar.ops.log import configure

    configure(settings.log.format, settings.log.level)
    job(settings, signals.stop_asked, once=once).run()
