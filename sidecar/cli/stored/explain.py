"""``sidecar explain``: the outcome of a single message, from the records of it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click

from sidecar.cli import config_option, example
from sidecar.cli.daemon.status import ask
from sidecar.cli.shared.asking import answered
from sidecar.cli.shared.output import say, say_json
from sidecar.cli.shared.printing import MessagePlace, place_argument
from sidecar.config.loader import load
from sidecar.config.model import Settings
from sidecar.errors import SidecarError, UnavailableError
from sidecar.inquiries.explain import Explained
from sidecar.runtime.usable import refused_by_client


@click.command(epilog=example("sidecar explain -c sidecar.yaml orders:3:1207"))
@config_option
@place_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def explain(path: str, place: MessagePlace, as_json: bool) -> None:
    """Explain what happened to a message: filtered, open, being sent, parked, held, a dead letter, or settled.

    With RocketMQ the place is TOPIC:BROKER:QUEUE:OFFSET, or without the broker if there is only one.

    It looks at the topic, at what the group has committed a moment ago, at the dead letters in the state folder,
    and, of a group that fails, at the running daemon. If the outcome is not recorded, it says so.
    """
    from sidecar.inquiries.explain import explain as explained

    settings = load(path, refusals=refused_by_client)
    tp, found = explained(settings, place.tp, place.offset)
    place = MessagePlace(tp, place.offset)
    found = _parked(settings, place, _delayed(settings, place, found))
    failing = _failing(settings, found)
    if as_json:
        fields = found._asdict()
        del fields["may_be_parked"]
        say_json({**place.tp.fields(), "offset": place.offset, **fields, "failing": failing})
        return
    told = f", tags {', '.join(found.tags)}" if found.tags else ""
    say(f"{place}: {found.outcome}{told}" + (f", group {found.group}" if found.group else ""))
    say(f"  {found.why}")
    if failing:
        say(f"  the group fails since {failing['since']}: {failing['reason']}; next try {failing['next_try']}")
    if found.letter is not None:
        say(f"  sidecar dead-letters show -c {path} {found.letter}")


def _delayed(settings: Settings, place: MessagePlace, found: Explained) -> Explained:
    """The outcome completed by the store of delayed messages, which is queried or read."""
    if found.due_ms is None:
        return found
    try:
        answer = answered(settings, "show", _asked(place, found.due_ms))
    except SidecarError as error:
        return found._replace(why=f"{found.why}; whether it is still held cannot be determined here: {error}")
    if "message" in answer:
        return found._replace(outcome="held")
    if answer["outcome"] == "not_held":
        gone = "it is no longer held: it was sent, is being sent, or was cancelled"
        return found._replace(why=f"{found.why}; {gone}", may_be_parked=True)
    return found._replace(why=f"{found.why}; whether it is still held cannot be determined here ({answer['outcome']})")


def _parked(settings: Settings, place: MessagePlace, found: Explained) -> Explained:
    """The outcome completed by the message's parked part, for which the store is queried or read."""
    if not found.may_be_parked:
        return found
    try:
        answer = answered(settings, "parked", _asked(place, 0))
    except SidecarError as error:
        return found._replace(why=f"{found.why}; or it is parked, which cannot be determined here: {error}")
    if answer["outcome"] == "parked":
        first, last, attempts = answer["first"], answer["last"], answer["attempts"]
        # The part of a delayed message has other numbers: those of its partition in the store.
        part, name = (None, "its part") if answer["is_delayed"] else ((first, last), f"its part {first}-{last}")
        why = f"{name} is parked in the store of delayed messages until its group recovers, and has failed"
        why = f"{why} {attempts} times in {answer['seconds']} s"
        return found._replace(outcome="parked", why=why, part=part, attempts=attempts, due_ms=None)
    if answer["outcome"] != "not_held":
        return found._replace(
            why=f"{found.why}; or it is parked, which cannot be determined here ({answer['outcome']})"
        )
    return found


def _asked(place: MessagePlace, due_ms: int) -> dict[str, Any]:
    return {**place.tp.fields(), "broker": place.tp.broker, "offset": place.offset, "due_ms": due_ms}


def _failing(settings: Settings, found: Explained) -> dict[str, str] | None:
    """The running daemon's report on its group, if the group fails."""
    if found.outcome not in ("fixed", "parked"):
        return None
    with suppress(UnavailableError):
        for waiting in ask(settings)["retrying"]:
            if settings.sink.chosen.joins_groups or waiting["group"] == found.group:
                return dict(waiting)
    return None
