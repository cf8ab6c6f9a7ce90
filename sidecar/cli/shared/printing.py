"""What several commands share: times as options, tables for a terminal or a pipe, and a question before an act."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console

from sidecar.core.messages.instants import parse_instant

PIPE_COLUMNS = 200


class TimeType(click.ParamType[int]):
    """A time in milliseconds since 1970."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The time of a text."""
        at_ms = value if isinstance(value, int) else parse_instant(value.encode())
        if at_ms is None:
            self.fail(f"{value!r} is neither milliseconds since 1970 nor like 2027-01-31T12:00:00Z", param, ctx)
        return at_ms


def console() -> Console:
    """A console that is as wide as the terminal, or wide enough for a pipe."""
    return Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS, highlight=False)


@contextmanager
def progress(label: str, length: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, which the result moves on; without a terminal, only its label."""
    with click.progressbar(range(length), label=label, file=sys.stderr, show_pos=True) as bar:
        yield bar.update


def agreed(question: str, *, yes: bool) -> bool:
    """Whether the user wants it.

    Args:
        question: Without a question mark.
        yes: Whether `--yes` has answered it.

    Raises:
        UsageError: Nobody can answer.
    """
    if yes:
        return True
    try:
        is_agreed = click.confirm(question + "?", err=True)
    except click.Abort as error:
        if sys.stdin.isatty():
            raise
        raise click.UsageError("nobody answers the question: give --yes") from error
    if not is_agreed:
        click.echo("nothing was done", err=True)
    return is_agreed
