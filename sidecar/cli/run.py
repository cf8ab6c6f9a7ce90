"""``sidecar run``: the daemon in the foreground."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "-c", "--config", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The configuration file."
)
def run(config: Path) -> None:
    """Take messages from the source and hand them to the sink, until SIGTERM."""
    from sidecar.config.loader import load
    from sidecar.daemon.lifecycle import Daemon, Signals
    from sidecar.ops.log import configure

    settings = load(config)
    configure(settings.log.format, settings.log.level)
    signals = Signals()
    signals.install()
    Daemon(settings, signals.stop_asked).run()
