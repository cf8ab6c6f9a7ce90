"""How the demo looks: lines and a live bar on a terminal, lines alone elsewhere. Decides and counts nothing."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from sidecar.demo.play import Outcome

WHO_WIDTH = 10
LINE_EVERY_S = 2.0
REMARK_AT = 31
WIDE = 70
"""Columns from which on remarks stand beside their numbers; below that they have lines of their own."""


class Show:
    """The screen, as a context manager.

    Args:
        console: Where to.
        total: Messages.
        wanted: Messages that should arrive.
    """

    def __init__(self, console: Console, total: int, wanted: int) -> None:
        self._console = console
        self._next_line_s = LINE_EVERY_S
        self._last = (0, 0)
        self._bars = Progress(
            TextColumn("{task.description:<9}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,} of {task.total:,}"),
            console=console,
            auto_refresh=False,  # no thread: the demo forks
            transient=True,
        )
        self._produced = self._bars.add_task("produced", total=total, visible=False)
        self._delivered = self._bars.add_task("delivered", total=wanted, visible=False)

    def __enter__(self) -> Show:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    def say(self, who: str, text: str) -> None:
        """One line; its continuation, on a narrow screen, stands below the text."""
        _line(self._console, who, text)

    def progress(self, produced: int, delivered: int, seconds: float) -> None:
        """Move the bars, or write a line, every two seconds and only when something moved."""
        if self._console.is_terminal:
            self._bars.update(self._produced, completed=produced, visible=True)
            self._bars.update(self._delivered, completed=delivered, visible=True)
            self._bars.refresh()
        elif seconds >= self._next_line_s and self._last != (produced, delivered):
            self._last = (produced, delivered)
            self._next_line_s = seconds + LINE_EVERY_S
            self.say(f"{seconds:.0f} s", f"produced {produced:,}, delivered {delivered:,}")


def show_outcome(console: Console, outcome: Outcome) -> None:
    """The books, the rates and the verdict."""
    books = outcome.books
    rows = [
        ("produced", books.produced, ""),
        ("consumed", books.consumed, "below the offsets that were committed"),
        ("delivered", books.delivered, f"in {outcome.batches:,} batches"),
        ("duplicates dropped", books.duplicate, "an id that came before"),
        ("filtered", books.filtered, "a tag that is not subscribed"),
        ("dead-lettered", books.dead_lettered, "poison: the receiver answered 400"),
    ]
    console.print("\nThe books, counted at the receiver", style="bold", highlight=False)
    for name, number, remark in rows:
        _row(console, name, number, remark)
    _line(console, "rates", _rates(outcome))
    verdict = f"lost {books.lost}, delivered twice {books.twice}"
    if books.wrong:
        verdict += f", wrong {books.wrong}"
    said = "the books balance" if books.balanced else "THE BOOKS DO NOT BALANCE"
    console.print(f"{verdict}: {said}", style="bold green" if books.balanced else "bold red", highlight=False)
    if not books.balanced:
        console.print(f"The daemon's log ends with:\n{outcome.log_tail}", markup=False, highlight=False)


def _rates(outcome: Outcome) -> str:
    books, seconds = outcome.books, outcome.seconds - outcome.waited_seconds
    rates = f"{books.consumed / seconds:,.0f} consumed and {books.delivered / seconds:,.0f} delivered a second"
    best = f"{outcome.fastest:,} in the best second"
    return f"{rates} in {seconds:.1f} s, without the {outcome.waited_seconds:.1f} s after the kill; {best}"


def _row(console: Console, name: str, number: int, remark: str) -> None:
    if console.width >= WIDE:
        _line(console, f"{name:<18}{number:>9,}", remark, REMARK_AT)
        return
    _line(console, f"{name:<18}{number:>9,}", "")
    if remark:
        _line(console, "", remark, 2)


def _line(console: Console, head: str, text: str, width: int = WHO_WIDTH) -> None:
    """A bold head and its text from column `width` on, wrapped there."""
    for part in Text(text).wrap(console, max(20, console.width - width)) or [Text()]:
        line = Text.assemble((f"{head:<{width}}", "bold"), part)
        line.rstrip()
        console.print(line, highlight=False, soft_wrap=True)
        head = ""
