"""``sidecar tap``: shows messages as they pass through the running daemon."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import click

from sidecar.cli import config_option, example
from sidecar.cli.shared.asking import request
from sidecar.cli.shared.output import say, say_json, shown
from sidecar.config.loader import load
from sidecar.ops.snapshot import TAP_OUTCOMES

EVERY_S = 0.3


def _step(value: str) -> int:
    """The share of messages as a number of which one is shown."""
    try:
        share = float(value.removesuffix("%"))
    except ValueError:
        share = 0
    if not 0.0001 <= share <= 100:
        raise click.BadParameter(f"{value!r} is no percentage from 0.0001% to 100%")
    return round(100 / share)


@click.command(
    epilog=example("sidecar tap -c sidecar.yaml", "sidecar tap -c sidecar.yaml --outcome filtered --sample 1% --json")
)
@config_option
@click.option(
    "--outcome", "outcomes", type=click.Choice(TAP_OUTCOMES), multiple=True, help="Only these; all by default."
)
@click.option("--group", help="Only those of this tag group.")
@click.option(
    "--sample",
    "step",
    type=_step,
    default="100%",
    show_default=True,
    metavar="PERCENT",
    help="Share of messages to show.",
)
@click.option("--count", type=click.IntRange(1), help="End after this number; by default at Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def tap(path: str, outcomes: tuple[str, ...], group: str | None, step: int, count: int | None, as_json: bool) -> None:
    """Show messages as they pass: delivered, filtered, duplicates, dead letters; their places, never their values.

    The daemon is not slowed down: messages that it cannot show at once are counted and left out.
    """
    settings, passed = load(path), 0
    opened = request(settings, "tap/open", {"outcomes": outcomes or TAP_OUTCOMES, "group": group, "step": step})
    with suppress(KeyboardInterrupt):
        while count is None or passed < count:
            answer = request(settings, "tap/read", opened)
            for row in answer["rows"][: None if count is None else count - passed]:
                if as_json:
                    say_json(row)
                else:
                    say(shown(_line(row)))
                passed += 1
            if answer["dropped"]:
                say(f"… {answer['dropped']:,} were left out", err=True)
            if count is None or passed < count:
                time.sleep(EVERY_S)
    request(settings, "tap/close", opened)


def _line(row: dict[str, Any]) -> str:
    place = ":".join(str(row[name]) for name in ("topic", "broker", "partition", "offset") if name in row)
    tags = f" tags {', '.join(row['tags'])}" if row.get("tags") else ""
    more = f" {row.get('part') or row.get('reason') or ''}".rstrip()
    return f"{row['outcome']:9} {place} {row['group'] if row['group'] is not None else '-'}{tags}{more}"
