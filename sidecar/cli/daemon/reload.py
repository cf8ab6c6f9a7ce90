"""``sidecar reload``: makes the running daemon read its configuration file again."""

from __future__ import annotations

from typing import Any

import click

from sidecar.cli import config_option, example
from sidecar.cli.daemon.status import ask
from sidecar.cli.shared.asking import request
from sidecar.cli.shared.output import say
from sidecar.config.loader import load
from sidecar.errors import EXIT_CONFIG, EXIT_OK
from sidecar.runtime.usable import refused_by_daemon

WHEN = {
    "changed": "apply now",
    "waiting": "apply as soon as nothing is open or being sent",
    "restart": "apply after a restart",
}


@click.command(epilog=example("sidecar reload -c sidecar.yaml"))
@config_option
def reload(path: str) -> int:
    """Reload the configuration of the running daemon, and report which keys apply when.

    An invalid file changes nothing.
    """
    settings = load(path, refusals=refused_by_daemon)
    ask(settings)
    answer = request(settings, "config/reload", {})
    for line in told(answer):
        say(line)
    return EXIT_CONFIG if answer["outcome"] == "refused" else EXIT_OK


def told(answer: dict[str, Any]) -> list[str]:
    """The lines to print for an answer."""
    if answer["outcome"] == "refused":
        return [f"refused; the previous settings stay in force: {answer['reason']}"]
    lines = [f"{when}: {', '.join(answer[key])}" for key, when in WHEN.items() if answer[key]]
    return lines or ["nothing changed"]
