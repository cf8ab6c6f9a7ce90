"""``sidecar run``: the daemon in the foreground."""

from __future__ import annotations

import faulthandler

import click

from sidecar.cli import config_option


@click.command()
@config_option
def run(path: str) -> None:
    """Take messages from the source and hand them to the sink, until SIGTERM."""
    from sidecar.daemon.signals import Signals

    signals = Signals()
    signals.install()  # the imports that follow take the longest of a start: a stop during them is one in order, too

    from sidecar.config.loader import load
    from sidecar.daemon.lifecycle import Daemon
    from sidecar.daemon.usable import unusable
    from sidecar.ops.log import configure

    faulthandler.enable()  # a mapped file that was cut short, or cannot be read, ends us without another word
    settings = load(path, refusals=unusable)
    configure(settings.log.format, settings.log.level)
    Daemon(settings, signals.stop_asked).run()
