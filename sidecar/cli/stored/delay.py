"""``sidecar delay``: shows, cancels and releases delayed messages. `cli.shared.asking` gets the answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from sidecar.cli import config_option, example
from sidecar.cli.shared.asking import answered, counted, held_now, listed, owner_of
from sidecar.cli.shared.output import say, say_json
from sidecar.cli.shared.printing import FittedColumn, FittedTable, MessagePlace, numbers, place_argument, time_ms
from sidecar.cli.shared.printing import show as show_
from sidecar.config.loader import load
from sidecar.config.model import Settings
from sidecar.core.messages.instants import END_MS
from sidecar.core.records import TopicPartition
from sidecar.errors import NotFoundError, UnavailableError
from sidecar.ops.snapshot import DUE_WITHIN
from sidecar.runtime.usable import refused_by_client

SOUGHT = ("topic", "partition", "tag", "group", "first_ms", "end_ms")
"""The options that select messages."""
ALL = dict.fromkeys(SOUGHT) | {"first_ms": 0, "end_ms": END_MS}
due_option = click.option("--due", "due_ms", type=time_ms, required=True, metavar="TIME", help="Exact due time.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def delay() -> None:
    """List, cancel or release delayed messages.

    If no daemon runs on this host, count, list and show read the store themselves.
    """


def sought_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that select messages; they become one argument, `sought`."""

    @wraps(command)
    def gathered(**options: Any) -> None:
        sought = {name: options.pop(name) for name in SOUGHT}
        command(sought=sought, **options)

    for option in reversed(
        [
            click.option("--topic", help="Only messages of this topic."),
            click.option("--partition", type=int, help="Only messages of this partition or queue."),
            click.option("--tag", help="Only messages with this tag."),
            click.option("--group", help="Only messages of this tag group."),
            click.option(
                "--from", "first_ms", type=time_ms, default=0, metavar="TIME", help="Only messages due from then on."
            ),
            click.option(
                "--until", "end_ms", type=time_ms, default=END_MS, metavar="TIME",
                help="Only messages due before that time.",
            ),
        ]
    ):  # fmt: skip
        gathered = option(gathered)
    return gathered


@delay.command(epilog=example("sidecar delay count -c sidecar.yaml"))
@config_option
@sought_options
@json_option
def count(path: str, sought: dict[str, Any], as_json: bool) -> None:
    """Count the delayed messages, by the time when they are due."""
    settings = load(path, refusals=refused_by_client)
    is_all = sought == ALL
    if not is_all:
        _refuse_unknown(settings, sought)
    held = held_now(settings) if is_all else counted(settings, sought)
    if as_json:
        say_json(held)
        return
    counts = {**{text: held["due"][label] for label, text in DUE_WITHIN.items()}, "all": held["held"]}
    table = FittedTable(
        [FittedColumn("due"), *numbers("messages")], [(text, f"{number:,}") for text, number in counts.items()]
    )
    next_due = f"the next is due at {held['next_due']}, " if is_all and held["next_due"] else ""
    show_(table, *([f"{next_due}{held['disk_bytes']:,} bytes of disk"] if is_all else []))


@delay.command("list", epilog=example("sidecar delay list -c sidecar.yaml --from 2027-01-31T12:00:00Z --limit 10"))
@config_option
@sought_options
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Maximum number of messages."
)
@json_option
def list_(path: str, sought: dict[str, Any], limit: int, as_json: bool) -> None:
    """List the delayed messages, in the order in which they are due."""
    settings = load(path, refusals=refused_by_client)
    _refuse_unknown(settings, sought)
    answer = listed(settings, {**sought, "limit": limit})
    if as_json:
        say_json(answer)
        return
    columns = [FittedColumn("due"), FittedColumn("message"), *numbers("bytes")]
    show_(FittedTable(columns, ((row["due"], _place(row), f"{row['bytes']:,}") for row in answer["messages"])))
    if not answer["is_all"]:
        show_(f"there are more: use --from {answer['messages'][-1]['due']} for the next")


def _place(row: dict[str, Any]) -> MessagePlace:
    return MessagePlace(TopicPartition(row["topic"], row["partition"], row.get("broker", "")), row["offset"])


def _refuse_unknown(settings: Settings, sought: dict[str, Any]) -> None:
    """Refuse a tag if messages have none, and a group that is missing in a configuration that defines them all."""
    known, group = settings.tags.known_groups, sought["group"]
    if sought["tag"] is not None and settings.tags.field is None:
        raise click.UsageError("messages have no tags: tags.from does not say where to read them")
    if group not in (None, *known) and settings.tags.subscribe.strip() != "*":
        raise click.UsageError(f"there is no group {group!r}: tags has the groups {', '.join(known)}")


@delay.command(epilog=example("sidecar delay show -c sidecar.yaml orders:3:1207 --due 2027-01-31T12:00:00Z"))
@config_option
@place_argument
@click.option(
    "--due", "due_ms", type=time_ms, required=True, metavar="TIME", help="Due time, or a time in the same hour."
)
def show(path: str, place: MessagePlace, due_ms: int) -> None:
    """Print a message that is held, as one JSON object."""
    answer = _ask_one(path, "show", place, due_ms)
    say_json({"due": answer["due"], **answer["message"]})


@delay.command(epilog=example("sidecar delay cancel -c sidecar.yaml orders:3:1207 --due 2027-01-31T12:00:00Z"))
@config_option
@place_argument
@due_option
def cancel(path: str, place: MessagePlace, due_ms: int) -> None:
    """Cancel a message that is held: it is never delivered. Once this succeeds, no crash undoes it."""
    _change(path, "cancel", place, due_ms)


@delay.command(epilog=example("sidecar delay release -c sidecar.yaml orders:3:1207 --due 2027-01-31T12:00:00Z"))
@config_option
@place_argument
@due_option
def release(path: str, place: MessagePlace, due_ms: int) -> None:
    """Deliver a message now that is held. Once this succeeds, no crash undoes it."""
    _change(path, "release", place, due_ms)


def _change(path: str, name: str, place: MessagePlace, due_ms: int) -> None:
    answer = _ask_one(path, name, place, due_ms)
    say(f"{place} is {answer['outcome']}, it was due at {answer['due']}")


def _ask_one(path: str, name: str, place: MessagePlace, due_ms: int) -> dict[str, Any]:
    settings, tp = load(path, refusals=refused_by_client), place.tp
    fields = {"topic": tp.topic, "partition": tp.partition, "broker": tp.broker, "offset": place.offset}
    answer = answered(settings, name, {**fields, "due_ms": due_ms})
    match answer["outcome"]:
        case "not_held":
            raise NotFoundError(
                f"{place}, due in that hour, is not held",
                hint="it was sent, is being sent, was cancelled, or never existed; `sidecar delay list` shows the rest",
            )
        case "several":
            times = ", ".join(answer["due"])
            again = f"more than once, due at {times}: the topic was created again"
            what = again if answer["due"][1:] else f"but due at {times}"
            raise NotFoundError(f"{place} is held, {what}", hint="give the exact time with --due")
        case "not_owned":
            owner = owner_of(settings, place.tp)
            raise UnavailableError(
                f"this daemon does not own {tp.topic}:{tp.queue}{owner and f'; {owner} does'}",
                hint="ask the daemon that owns it",
            )
        case "lost":
            raise UnavailableError(
                f"the daemon lost {tp.topic}:{tp.queue} meanwhile: the request may have taken effect",
                hint="ask the daemon that owns it now",
            )
        case "failed":
            raise UnavailableError(f"the store cannot be used: {answer['reason']}", hint="look at `sidecar status`")
    return answer
