"""``sidecar top``: the status of the running daemon in a terminal, updated repeatedly, with rates."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from sidecar.cli import config_option, example
from sidecar.cli.daemon.status import ask, lines
from sidecar.cli.shared.printing import line, show_again
from sidecar.config.loader import load
from sidecar.config.model import Settings
from sidecar.errors import UnavailableError

if TYPE_CHECKING:
    from rich.console import RenderableType

RATES = ("consumed", "delivered", "duplicate", "filtered", "dead_lettered")


@click.command(epilog=example("sidecar top -c sidecar.yaml", "sidecar top -c sidecar.yaml --interval 10 --count 6"))
@config_option
@click.option(
    "--interval", type=click.FloatRange(0.2, 3_600), default=2.0, show_default=True, help="Interval in seconds."
)
@click.option("--count", type=click.IntRange(1), help="End after this number; by default at Ctrl-C.")
def top(path: str, interval: float, count: int | None) -> None:
    """Show the status of the running daemon continuously, with rates.

    If the daemon stops, wait for the next one.
    """
    settings = load(path)
    with suppress(KeyboardInterrupt):
        show_again(islice(_frames(settings, interval), count))


def _frames(settings: Settings, interval_s: float) -> Iterator[list[RenderableType]]:
    """The frames to show, without an end; raises `UnavailableError` if no daemon runs at the beginning."""
    now, at_s = ask(settings), time.monotonic()
    yield lines(now)
    while True:
        time.sleep(interval_s)
        before, before_s = now, at_s
        try:
            now, at_s = ask(settings), time.monotonic()
        except UnavailableError as error:
            yield [line(str(error))]
            continue
        yield [*lines(now), line(_rates(before, now, at_s - before_s))]


def _rates(before: dict[str, Any], now: dict[str, Any], seconds: float) -> str:
    if before["started_at"] != now["started_at"]:
        return "the daemon was restarted"
    rates = (f"{(now[name] - before[name]) / seconds:,.0f} {name}" for name in RATES)
    return f"a second: {', '.join(rates)}"
