"""``sidecar delay``: shows what the running daemon holds until it is due. Opens neither state folder nor broker."""

from __future__ import annotations

import json
import sys

import click
from rich.console import Console
from rich.table import Table

from sidecar.cli import config_option
from sidecar.cli.status import PIPE_COLUMNS, ask
from sidecar.config.file.loader import load
from sidecar.errors import ConfigError
from sidecar.ops.snapshot import DUE_WITHIN


@click.group()
def delay() -> None:
    """Show what the running daemon holds until it is due."""


@delay.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def count(path: str, as_json: bool) -> None:
    """Count the delayed messages that this daemon holds, by the time when they are due.

    For example: sidecar delay count -c /etc/sidecar/orders.yaml
    """
    held = ask(load(path)).get("delay")
    if held is None:
        raise ConfigError(
            "the running daemon holds no delayed messages: its configuration has no section delay",
            hint="add the section delay, and start the daemon again",
        )
    if as_json:
        click.echo(json.dumps(held))
        return
    table = Table("due", box=None)
    table.add_column("messages", justify="right")
    for label, text in DUE_WITHIN.items():
        table.add_row(text, f"{held['due'][label]:,}")
    table.add_row("all", f"{held['held']:,}")
    console = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS, highlight=False)
    console.print(table)
    console.print(f"the next is due at {held['next_due'] or '?'}, {held['disk_bytes']:,} bytes of disk")
