"""``sidecar explain``: what became of a single message, from what is kept of it."""

from __future__ import annotations

import json
from contextlib import suppress

import click

from sidecar.cli import config_option, example
from sidecar.cli.daemon.status import ask
from sidecar.cli.shared.places import Place, place_argument
from sidecar.config.file.loader import load
from sidecar.config.model import Settings
from sidecar.errors import UnavailableError
from sidecar.runtime.explaining import Explained


@click.command(epilog=example("sidecar explain -c sidecar.yaml orders:3:1207"))
@config_option
@place_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def explain(path: str, place: Place, as_json: bool) -> None:
    """Tell what became of a message of Kafka: filtered, open, being sent, held, a dead letter, or settled.

    It looks at the topic, at what the group has committed a moment ago, at the dead letters in the state folder,
    and, of a group that fails, at the running daemon. Where nothing keeps the outcome, it says so.

    """
    from sidecar.runtime.explaining import explain as explained

    settings = load(path)
    found = explained(settings, place.tp, place.offset)
    failing = _failing(settings, found)
    if as_json:
        click.echo(json.dumps({**place.tp.fields(), "offset": place.offset, **found._asdict(), "failing": failing}))
        return
    told = f", tags {', '.join(found.tags)}" if found.tags else ""
    click.echo(f"{place}: {found.outcome}{told}" + (f", group {found.group}" if found.group else ""))
    click.echo(f"  {found.why}")
    if failing:
        click.echo(f"  the group fails since {failing['since']}: {failing['reason']}; next try {failing['next_try']}")
    if found.letter is not None:
        click.echo(f"  sidecar dead-letters show -c {path} {found.letter}")


def _failing(settings: Settings, found: Explained) -> dict[str, str] | None:
    """What the running daemon tells of its group, if that fails."""
    if found.outcome != "fixed":
        return None
    with suppress(UnavailableError):
        for waiting in ask(settings)["retrying"]:
            if waiting["group"] == found.group:
                return dict(waiting)
    return None
