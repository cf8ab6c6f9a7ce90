"""``sidecar demo``: the whole daemon at work on made-up messages, killed once, and the books at the end."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import click

from sidecar.errors import StateError

EXIT_UNBALANCED = 1
PIPE_COLUMNS = 100


@click.command()
@click.option(
    "--messages", type=click.IntRange(1_000, 200_000), default=100_000, show_default=True, help="How many are sent."
)
@click.option("--keep", is_flag=True, help="Keep the folder with configuration, logs, state and what was received.")
def demo(messages: int, keep: bool) -> int | None:
    """Show the whole thing at work, no broker needed."""
    from rich.console import Console

    from sidecar.demo.play import Play
    from sidecar.demo.show import Show, show_outcome
    from sidecar.demo.stream import wanted

    console = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    try:
        folder = Path(tempfile.mkdtemp(prefix="sidecar-demo-"))
    except OSError as error:
        raise StateError(
            f"no folder for the demo: {error}", hint="set TMPDIR to a folder that can be written"
        ) from error
    try:
        with Show(console, messages, wanted(messages)) as show:
            outcome = Play(messages, folder, show, keep=keep).run()
        show_outcome(console, outcome)
    finally:
        if keep:
            console.print(f"kept in {folder}", highlight=False, soft_wrap=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return None if outcome.books.balanced else EXIT_UNBALANCED
