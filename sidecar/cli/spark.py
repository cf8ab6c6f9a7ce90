"""``sidecar spark``: the jobs that run on Spark."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def spark() -> None:
    """Run on Spark: the pipeline itself, or what fills a table from a landing zone."""


@spark.command()
@click.option(
    "-c", "--config", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The configuration file."
)
@click.option("--once", is_flag=True, help="Take what is there, then end.")
def run(config: Path, once: bool) -> None:
    """Take messages from the source and hand them to the sink, on Spark."""
    from sidecar.daemon.lifecycle import Signals
    from sidecar.ops.log import configure
    from sidecar.spark.run.job import SparkRun
    from sidecar.spark.run.support import load_for_run

    settings = load_for_run(config)
    configure(settings.log.format, settings.log.level)
    signals = Signals()
    signals.install()
    SparkRun(settings, signals.stop_asked, once=once).run()


@spark.command()
@click.option(
    "-c", "--config", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The configuration file."
)
@click.option("--once", is_flag=True, help="Take what is there, then end.")
def ingest(config: Path, once: bool) -> None:
    """Fill a table from the landing zone of the same file."""
    from sidecar.daemon.lifecycle import Signals
    from sidecar.ops.log import configure
    from sidecar.spark.ingest.job import SparkIngest
    from sidecar.spark.ingest.support import load_for_ingest

    settings = load_for_ingest(config)
    configure(settings.log.format, settings.log.level)
    signals = Signals()
    signals.install()
    SparkIngest(settings, signals.stop_asked, once=once).run()
