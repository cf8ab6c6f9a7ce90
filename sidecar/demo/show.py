"""Output of the demo: lines and live bars on a terminal, only lines elsewhere. Decides and counts nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from sidecar.demo.books import DemoBooks

if TYPE_CHECKING:
    from sidecar.demo.books import Lateness
    from sidecar.demo.http_act import HttpOutcome
    from sidecar.demo.spark_act import SparkOutcome

WHO_WIDTH = 10
LINE_EVERY_S = 2.0
REMARK_AT = 31
WIDE = 70
"""Width from which remarks are beside their numbers; on narrower screens they have their own lines."""

_Arrived = tuple[str, int, str]


class Show:
    """The screen, as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_line_s = LINE_EVERY_S
        self._last: Mapping[str, tuple[int, int]] = {}
        self._bars = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,} of {task.total:,}"),
            console=console,
            auto_refresh=False,  # no thread: the demo forks
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Show:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_bars()

    def head(self, text: str) -> None:
        """Print a headline, which ends the part before it."""
        self._end_bars()
        self._next_line_s = LINE_EVERY_S
        self._console.print(f"\n{text}", style="bold", highlight=False)

    def say(self, who: str, text: str) -> None:
        """Print one line; its continuation, on a narrow screen, is below the text."""
        self._line(who, text)

    def progress(self, counts: Mapping[str, tuple[int, int]], seconds: float) -> None:
        """Move the bars, or write a line, every two seconds and only when something moved."""
        if self._console.is_terminal:
            self._bars.start()
            for name, (count, total) in counts.items():
                if name not in self._tasks:
                    self._tasks[name] = self._bars.add_task(name, total=total)
                self._bars.update(self._tasks[name], completed=count)
            self._bars.refresh()
        elif seconds >= self._next_line_s and self._last != counts:
            self._last = counts
            self._next_line_s = seconds + LINE_EVERY_S
            self.say(f"{seconds:.0f} s", ", ".join(f"{name} {count:,}" for name, (count, _) in counts.items()))

    def http_outcome(self, outcome: HttpOutcome) -> None:
        books = outcome.books
        self._books(
            "at the receiver",
            books,
            [("delivered", books.delivered, f"in {outcome.batches:,} batches")],
            [("dead-lettered", books.dead_lettered, "poison: the receiver answered 400")],
        )
        self._line("rates", _rates(outcome))
        if outcome.lateness is not None:
            self._line("lateness", _lateness(outcome.lateness))
        self._verdict(books, "delivered twice", f"The daemon's log ends with:\n{outcome.log_tail}")

    def spark_outcome(self, outcome: SparkOutcome) -> None:
        books = outcome.books
        self._books(
            "by Spark in the table",
            books,
            [
                ("rows", outcome.rows, f"wanted: {outcome.wanted:,}, including poison: a table refuses no row"),
                ("distinct", outcome.distinct, "by partition and offset"),
            ],
            [],
        )
        self._verdict(books, "twice", f"The query's log ends with:\n{outcome.log_tail}")

    def _end_bars(self) -> None:
        if self._console.is_terminal:
            self._bars.stop()
        for task in self._tasks.values():
            self._bars.remove_task(task)
        self._tasks.clear()

    def _books(self, where: str, books: DemoBooks, arrived: Sequence[_Arrived], more: Sequence[_Arrived]) -> None:
        rows = [
            ("produced", books.produced, ""),
            ("consumed", books.consumed, "below the offsets that were committed"),
            *arrived,
            ("duplicates dropped", books.duplicate, "a repeated id"),
            ("filtered", books.filtered, "a tag that is not subscribed"),
            *more,
        ]
        self.head(f"The books, counted {where}")
        for name, number, remark in rows:
            self._row(name, number, remark)

    def _verdict(self, books: DemoBooks, twice: str, log_tail: str) -> None:
        verdict = f"lost {books.lost}, {twice} {books.twice}"
        if books.wrong:
            verdict += f", wrong {books.wrong}"
        said = "the books balance" if books.balanced else "THE BOOKS DO NOT BALANCE"
        style = "bold green" if books.balanced else "bold red"
        self._console.print(f"{verdict}: {said}", style=style, highlight=False)
        if not books.balanced:
            self._console.print(log_tail, markup=False, highlight=False)

    def _row(self, name: str, number: int, remark: str) -> None:
        if self._console.width >= WIDE:
            self._line(f"{name:<18}{number:>9,}", remark, REMARK_AT)
            return
        self._line(f"{name:<18}{number:>9,}", "")
        if remark:
            self._line("", remark, 2)

    def _line(self, head: str, text: str, width: int = WHO_WIDTH) -> None:
        """Print a bold head and its text from column `width` on, wrapped there."""
        for part in Text(text).wrap(self._console, max(20, self._console.width - width)) or [Text()]:
            line = Text.assemble((f"{head:<{width}}", "bold"), part)
            line.rstrip()
            self._console.print(line, highlight=False, soft_wrap=True)
            head = ""


def _lateness(late: Lateness) -> str:
    early = f"{late.early:,} early; " if late.early else "none early; "
    waited = f"; {late.waited:,} more were due while no daemon delivered" if late.waited else ""
    return f"{early}half at most {late.half_ms:.0f} ms late, 99 of 100 at most {late.most_ms:,.0f} ms{waited}"


def _rates(outcome: HttpOutcome) -> str:
    books, seconds = outcome.books, outcome.seconds - outcome.waited_seconds
    rates = f"{books.consumed / seconds:,.0f} consumed/s and {books.delivered / seconds:,.0f} delivered/s"
    best = f"{outcome.fastest:,} in the best second"
    return f"{rates} in {seconds:.1f} s, without the {outcome.waited_seconds:.1f} s after the kill; {best}"
