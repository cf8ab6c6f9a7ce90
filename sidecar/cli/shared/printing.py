"""What commands share: times and places as options, listings for a terminal or a pipe, and a question before an act."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import unquote

import click
from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from sidecar.cli.shared.output import say, shown
from sidecar.core.messages.instants import parse_instant
from sidecar.core.records import TopicPartition

PIPE_COLUMNS = 1_000_000
"""Width for a pipe: a program reads a row as one line, however long it is."""
PROSE_COLUMNS = 24
"""Width down to which prose is wrapped in a table."""
FACT_COLUMNS = 30
"""Width of a value with its name, up to which several share a line."""


def time_ms(value: str | int) -> int:
    """Parse a time of the command line, in milliseconds since 1970."""
    at_ms = value if isinstance(value, int) else parse_instant(value.encode())
    if at_ms is None:
        raise click.BadParameter(f"{value!r} is neither milliseconds since 1970 nor like 2027-01-31T12:00:00Z")
    return at_ms


_PLACE = re.compile(r"([^:]+):(?:([^:]+):)?(\d+):(\d+)")


class MessagePlace(NamedTuple):
    """A message at the source."""

    tp: TopicPartition
    offset: int

    def __str__(self) -> str:
        return f"{self.tp.topic}:{self.tp.queue}:{self.offset}"


def _place(value: str) -> MessagePlace:
    match = _PLACE.fullmatch(value)
    if not match:
        raise click.BadParameter(f"{value!r} is not TOPIC:PARTITION:OFFSET, as in `sidecar delay list` and in rows")
    topic, broker, partition, offset = match.groups(default="")
    return MessagePlace(TopicPartition(topic, int(partition), unquote(broker)), int(offset))


place_argument = click.argument("place", type=_place, metavar="TOPIC:PARTITION:OFFSET")


class FittedColumn(NamedTuple):
    """A column of a listing, which is never cut; in a table, one with prose may be wrapped."""

    name: str
    number: bool = False
    prose: bool = False


def numbers(*names: str) -> list[FittedColumn]:
    """Columns of numbers."""
    return [FittedColumn(name, number=True) for name in names]


class FittedTable:
    """Rows as a table if the screen is wide enough for numbers, times and places; otherwise each on its own lines.

    Args:
        columns: The columns; the first one is the head of a row.
        rows: A value for each column; None is a `-`.
    """

    def __init__(self, columns: Sequence[FittedColumn], rows: Iterable[Sequence[object]]) -> None:
        self._columns = columns
        self._rows = [["-" if value is None else shown(str(value)) for value in row] for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich for the layout."""
        widths = [max(map(cell_len, cells)) for cells in zip(*self._with_head(), strict=True)]
        least = (
            min(width, PROSE_COLUMNS) if each.prose else width
            for each, width in zip(self._columns, widths, strict=True)
        )
        if sum(least) + 2 * len(widths) <= options.max_width:
            yield self._table()
        else:
            for row in self._rows:
                yield from self._stacked(row)

    def _with_head(self) -> list[list[str]]:
        return [[each.name for each in self._columns], *self._rows]

    def _table(self) -> Table:
        table = Table(box=None)
        for each in self._columns:
            table.add_column(
                line(each.name), justify="right" if each.number else "left", no_wrap=not each.prose, overflow="fold"
            )
        for row in self._rows:
            table.add_row(*map(line, row))
        return table

    def _stacked(self, row: list[str]) -> Iterator[RenderableType]:
        """The head of the row, short values side by side, and each long one on its own lines."""
        head, *others = zip(self._columns, row, strict=True)
        yield line(f"{head[0].name} {head[1]}" if head[0].number else head[1], "bold")
        facts = [f"{column.name} {value}" for column, value in others if value]
        short = [each for each in facts if cell_len(each) <= FACT_COLUMNS]
        yield Padding(Columns(map(line, short), padding=(0, 2, 0, 0)), (0, 0, 0, 2))
        for each in facts:
            if each not in short:
                yield Padding(line(each), (0, 0, 0, 2))


def line(text: str, style: str = "") -> Text:
    """A line that is wrapped, also within a word, and never cut."""
    return Text(shown(text), style, overflow="fold")


def show(*parts: str | RenderableType) -> None:
    """Print lines and listings, laid out for the terminal, or for a pipe."""
    out = _console()
    for part in parts:
        out.print(line(part) if isinstance(part, str) else part)


def show_again(frames: Iterable[Sequence[RenderableType]]) -> None:
    """Show one frame after the other in the place of the one before; in a pipe, below it."""
    out = _console()
    if not out.is_terminal:
        for frame in frames:
            out.print(*frame, sep="\n")
        return
    with Live(console=out, screen=True, auto_refresh=False) as live:
        for frame in frames:
            live.update(_Frame(frame), refresh=True)


class _Frame:
    """The lines that fit on the screen; the last one has the number of those that do not."""

    def __init__(self, parts: Sequence[RenderableType]) -> None:
        self._parts = parts

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(Group(*self._parts), options.update(height=None), pad=False)
        if len(lines) > options.size.height:
            left = len(lines) - options.size.height + 1
            lines[options.size.height - 1 :] = [[Segment(f"… {left:,} more lines: `sidecar status` has all")]]
        for each in lines:
            yield from each
            yield Segment.line()


def _console() -> Console:
    """A console that is as wide as the terminal, or wide enough for a pipe."""
    return Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS, highlight=False)


@contextmanager
def progress(label: str, length: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, which the result moves on; without a terminal, only its label."""
    with click.progressbar(range(length), label=label, file=sys.stderr, show_pos=True) as bar:
        yield bar.update


def agreed(question: str, *, yes: bool) -> bool:
    """Whether the user agrees, or `--yes` has; raises `UsageError` if there is no terminal to ask on."""
    if yes:
        return True
    try:
        is_agreed = click.confirm(shown(question) + "?", err=True)
    except click.Abort as error:
        if sys.stdin.isatty():
            raise
        raise click.UsageError("no terminal to ask on: give --yes") from error
    if not is_agreed:
        say("nothing was done", err=True)
    return is_agreed
