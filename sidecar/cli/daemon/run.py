"""``sidecar run``: the daemon in the foreground."""

from __future__ import annotations

import faulthandler
import gc
import sys
from functools import partial
from pathlib import Path

import click

from sidecar.cli import config_option, example


@click.command(epilog=example("sidecar run -c sidecar.yaml"))
@config_option
def run(path: str) -> None:
    """Run the daemon in the foreground until SIGTERM; SIGHUP makes it read the file again."""
    from sidecar.daemon.signals import Signals

    signals = Signals()
    signals.install()  # before the imports, the longest part of startup: a stop during them must be orderly too
    gc.set_threshold(100_000, 20, 100)  # imported objects are never garbage
    if "rich" not in sys.modules:
        sys.modules["rich"] = None  # type: ignore[assignment]  # structlog's tracebacks would use it: 0.04 s for nothing
        import structlog  # noqa: F401

        del sys.modules["rich"]

    from sidecar.config.loader import load
    from sidecar.daemon.lifecycle import Daemon
    from sidecar.ops.log import configure
    from sidecar.runtime.usable import refused_by_daemon

    faulthandler.enable()  # otherwise a truncated or unreadable mapped file ends the process without a message
    read = partial(load, path, refusals=refused_by_daemon)
    settings = read()
    configure(settings.log.format, settings.log.level)
    Daemon(settings, signals.stop_asked, load=read, reload_asked=signals.reload_asked, path=Path(path)).run()
