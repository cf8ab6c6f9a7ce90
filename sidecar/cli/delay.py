"""``sidecar delay``: shows, cancels and releases what the running daemon holds until it is due.

Does not open the state folder. Asks the broker only for the member that owns a partition.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import click
import urllib3
from rich.console import Console
from rich.table import Table

from sidecar.cli import config_option
from sidecar.cli.status import ANSWER_BYTES_MAX, PIPE_COLUMNS, ask
from sidecar.config.file.loader import load
from sidecar.config.model import Settings
from sidecar.core.messages.instants import END_MS, parse_instant
from sidecar.core.records import TopicPartition
from sidecar.errors import EXIT_NO_INPUT, ConfigError, SidecarError, UnavailableError
from sidecar.ops.admin import REQUESTS_PATH, read_address
from sidecar.ops.snapshot import DUE_WITHIN

TIMEOUT_S = 15.0
"""Longer than the daemon takes to say that it does not know."""
_PLACE = re.compile(r"([^:]+):(?:([^:]+):)?(\d+):(\d+)")


class NotHeldError(SidecarError):
    """The message is not held, or several are held at this place, and the due time does not tell which is meant."""

    exit_code = EXIT_NO_INPUT


class Place(NamedTuple):
    """A message at the source."""

    tp: TopicPartition
    offset: int

    def __str__(self) -> str:
        return f"{self.tp.topic}:{self.tp.queue}:{self.offset}"


class _PlaceType(click.ParamType[Place]):
    name = "PLACE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        match = _PLACE.fullmatch(value)
        if not match:
            self.fail(f"{value!r} is not TOPIC:PARTITION:OFFSET, as `sidecar delay list` shows it", param, ctx)
        topic, broker, partition, offset = match.groups(default="")
        return Place(TopicPartition(topic, int(partition), unquote(broker)), int(offset))


class _TimeType(click.ParamType[int]):
    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        at_ms = value if isinstance(value, int) else parse_instant(value.encode())
        if at_ms is None:
            self.fail(f"{value!r} is neither milliseconds since 1970 nor like 2027-01-31T12:00:00Z", param, ctx)
        return at_ms


place_argument = click.argument("place", type=_PlaceType(), metavar="TOPIC:PARTITION:OFFSET")
due_option = click.option(
    "--due", "due_ms", type=_TimeType(), required=True, metavar="TIME", help="When it is due; a time in the same hour."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def delay() -> None:
    """Show what the running daemon holds until it is due, cancel it, or release it now."""


@delay.command()
@config_option
@json_option
def count(path: str, as_json: bool) -> None:
    """Count the delayed messages that this daemon holds, by the time when they are due.

    For example: sidecar delay count -c /etc/sidecar/orders.yaml
    """
    held = ask(load(path)).get("delay")
    if held is None:
        raise _no_section()
    if as_json:
        click.echo(json.dumps(held))
        return
    table = Table("due", box=None)
    table.add_column("messages", justify="right")
    for label, text in DUE_WITHIN.items():
        table.add_row(text, f"{held['due'][label]:,}")
    table.add_row("all", f"{held['held']:,}")
    console = _console()
    console.print(table)
    console.print(f"the next is due at {held['next_due'] or '?'}, {held['disk_bytes']:,} bytes of disk")


@delay.command("list")
@config_option
@click.option("--topic", help="Only messages of this topic.")
@click.option("--partition", type=int, help="Only messages of this partition or queue.")
@click.option("--from", "first_ms", type=_TimeType(), default=0, metavar="TIME", help="Only messages due from then on.")
@click.option(
    "--until", "end_ms", type=_TimeType(), default=END_MS, metavar="TIME", help="Only messages due before that time."
)
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="The most messages.")
@json_option
def list_(
    path: str, topic: str | None, partition: int | None, first_ms: int, end_ms: int, limit: int, as_json: bool
) -> None:
    """List the delayed messages that this daemon holds, in the order in which they are due.

    For example: sidecar delay list -c /etc/sidecar/orders.yaml --from 2027-01-31T12:00:00Z --limit 10
    """
    fields = {"topic": topic, "partition": partition, "first_ms": first_ms, "end_ms": end_ms, "limit": limit}
    answer = _ask(load(path), "list", fields)
    if as_json:
        click.echo(json.dumps(answer))
        return
    table = Table("due", "message", box=None)
    table.add_column("bytes", justify="right")
    for row in answer["messages"]:
        tp = TopicPartition(row["topic"], row["partition"], row.get("broker", ""))
        table.add_row(row["due"], str(Place(tp, row["offset"])), f"{row['bytes']:,}")
    console = _console()
    console.print(table)
    if not answer["is_all"]:
        console.print(f"there are more: use --from {answer['messages'][-1]['due']} for the next")


@delay.command()
@config_option
@place_argument
@due_option
def show(path: str, place: Place, due_ms: int) -> None:
    """Print a message that is held, as one JSON object.

    For example: sidecar delay show -c /etc/sidecar/orders.yaml orders:3:1207 --due 2027-01-31T12:00:00Z
    """
    answer = _ask_one(path, "show", place, due_ms)
    click.echo(json.dumps({"due": answer["due"], **answer["message"]}))


@delay.command()
@config_option
@place_argument
@due_option
def cancel(path: str, place: Place, due_ms: int) -> None:
    """Cancel a message that is held: it is never delivered. Once this succeeds, no crash undoes it.

    For example: sidecar delay cancel -c /etc/sidecar/orders.yaml orders:3:1207 --due 2027-01-31T12:00:00Z
    """
    _change(path, "cancel", place, due_ms)


@delay.command()
@config_option
@place_argument
@due_option
def release(path: str, place: Place, due_ms: int) -> None:
    """Deliver a message now that is held. Once this succeeds, no crash undoes it.

    For example: sidecar delay release -c /etc/sidecar/orders.yaml orders:3:1207 --due 2027-01-31T12:00:00Z
    """
    _change(path, "release", place, due_ms)


def _change(path: str, name: str, place: Place, due_ms: int) -> None:
    answer = _ask_one(path, name, place, due_ms)
    click.echo(f"{place} is {answer['outcome']}, it was due at {answer['due']}")


def _ask_one(path: str, name: str, place: Place, due_ms: int) -> dict[str, Any]:
    settings, tp = load(path), place.tp
    fields = {"topic": tp.topic, "partition": tp.partition, "broker": tp.broker, "offset": place.offset}
    answer = _ask(settings, name, {**fields, "due_ms": due_ms})
    match answer["outcome"]:
        case "not_held":
            raise NotHeldError(
                f"{place}, due in that hour, is not held",
                hint="it was sent, is on the way, was cancelled, or never came; `sidecar delay list` shows the rest",
            )
        case "several":
            raise NotHeldError(
                f"{place} is held more than once, due at {', '.join(answer['due'])}: the topic was created again",
                hint="give the exact time with --due",
            )
        case "not_owned":
            owner = _owner(settings, place.tp)
            raise UnavailableError(
                f"this daemon does not own {tp.topic}:{tp.queue}{owner and f'; {owner} does'}",
                hint="ask the daemon that owns it",
            )
        case "lost":
            raise UnavailableError(
                f"the daemon lost {tp.topic}:{tp.queue} meanwhile: it is not known whether that was done",
                hint="ask the daemon that owns it now",
            )
        case "failed":
            raise UnavailableError(f"the store cannot be used: {answer['reason']}", hint="look at `sidecar status`")
    return answer


def _ask(settings: Settings, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The answer of the daemon that runs with these settings.

    Raises:
        UnavailableError: None runs, or it cannot answer.
        ConfigError: It holds no delayed messages.
    """
    if ask(settings).get("delay") is None:  # which tells if no daemon runs, too
        raise _no_section()
    address = read_address(Path(settings.state.dir))
    if address is None or not address.token:
        raise UnavailableError(
            f"the token of the daemon in {settings.state.dir} cannot be read",
            hint="run this command as the user of the daemon, on its host",
        )
    try:
        with urllib3.PoolManager(timeout=TIMEOUT_S, retries=False) as pool:
            answer = pool.request(
                "POST", address.url + REQUESTS_PATH + name, json=fields,
                headers={"Authorization": f"Bearer {address.token}"}, preload_content=False,
            )  # fmt: skip
            body = answer.read(ANSWER_BYTES_MAX)
            answer.close()
        if answer.status == 200:
            found: dict[str, Any] = json.loads(body)
            return found
    except (urllib3.exceptions.HTTPError, ValueError) as error:
        raise UnavailableError(
            f"the daemon at {address.url} gave no answer, and it is not known whether that was done: {error}",
            hint="look at `sidecar status`, and ask again",
        ) from error
    raise UnavailableError(
        f"the daemon at {address.url} refused: {body.decode(errors='replace').strip()}",
        hint="look at `sidecar status`, and ask again",
    )


def _owner(settings: Settings, tp: TopicPartition) -> str:
    """Client id and host of the member that owns a partition; empty if there is none, or if the broker does not say."""
    if settings.source.kafka is None:
        return ""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from sidecar.sources.kafka.config import client_config

    client = AdminClient(client_config(settings.source.kafka))  # kept until the answer: a future does not keep it
    group = settings.source.group_id
    try:
        members = client.describe_consumer_groups([group], request_timeout=TIMEOUT_S)[group].result(TIMEOUT_S).members
    except (KafkaException, TimeoutError):
        return ""
    for member in members:
        owned = member.assignment.topic_partitions if member.assignment is not None else []
        if any((each.topic, each.partition) == (tp.topic, tp.partition) for each in owned):
            return f"{member.client_id} on {member.host.lstrip('/')}"
    return ""


def _no_section() -> ConfigError:
    return ConfigError(
        "the running daemon holds no delayed messages: its configuration has no section delay",
        hint="add the section delay, and start the daemon again",
    )


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS, highlight=False)
