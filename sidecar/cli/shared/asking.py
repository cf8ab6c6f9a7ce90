"""Requests to the running daemon; if none runs, delayed messages are read from the store itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sidecar.cli.daemon.status import ask
from sidecar.cli.shared.output import say
from sidecar.config.model import Settings
from sidecar.core.json_text import loads
from sidecar.core.records import TopicPartition
from sidecar.errors import ConfigError, UnavailableError, extra
from sidecar.ops.address import read_address
from sidecar.ops.client import NO_ANSWER, exchange

if TYPE_CHECKING:
    from sidecar.daemon.delays.offline import Offline

TIMEOUT_S = 15.0
"""Longer than the daemon takes to report that it cannot answer."""
CHANGES = ("cancel", "release")


def held_now(settings: Settings) -> dict[str, Any]:
    """The number of held messages, by due time; raises `ConfigError` if there is no section `delay`."""
    status = _status(settings)
    if status is not None:
        return {**status["delay"], "read": 0}  # without messages read for delivery
    with _offline(settings, lambda _: True) as held:
        return held.count()


def answered(settings: Settings, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request; raises `ConfigError` without a section `delay`, `UnavailableError` without an answer."""
    if _status(settings, is_needed=name in CHANGES) is not None:
        return request(settings, f"delay/{name}", fields)
    from sidecar.daemon.delays.questions import Listing, asked_of

    try:
        asked = asked_of(name, fields)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    is_wanted: Callable[[TopicPartition], bool] = asked.takes if isinstance(asked, Listing) else asked.tp.__eq__
    with _offline(settings, is_wanted) as held:
        return held.answer(asked)


@contextmanager
def _offline(settings: Settings, is_wanted: Callable[[TopicPartition], bool]) -> Iterator[Offline]:
    """What is held while no daemon runs, of the wanted partitions."""
    with extra("delay", "the section delay", "rocksdict"):
        from sidecar.daemon.delays.offline import open_offline
    with ExitStack() as stack:
        yield open_offline(stack, settings, is_wanted, _tell)


def listed(settings: Settings, fields: dict[str, Any]) -> dict[str, Any]:
    """The answer to a listing, which may take many requests: a daemon answers a long search in pieces."""
    answer = answered(settings, "list", fields)
    messages, read = answer["messages"], answer["read"]
    while "at" in answer and len(messages) < fields["limit"]:
        left = fields["limit"] - len(messages)
        answer = answered(settings, "list", {**fields, "limit": left, "at": answer["at"]})
        messages += answer["messages"]
        read += answer["read"]
    return {"outcome": "listed", "messages": messages, "is_all": answer["is_all"], "read": read}


def counted(settings: Settings, fields: dict[str, Any]) -> dict[str, Any]:
    """The number of matching messages that are held, by due time; see `listed`."""
    asked = {**fields, "limit": 0}
    answer = answered(settings, "count", asked)
    held = {"held": answer["held"], "due": answer["due"], "read": answer["read"]}
    while "at" in answer:
        answer = answered(settings, "count", {**asked, "at": answer["at"]})
        held["held"] += answer["held"]
        held["read"] += answer["read"]
        held["due"] = {within: number + answer["due"][within] for within, number in held["due"].items()}
    return held


def _status(settings: Settings, *, is_needed: bool = False) -> dict[str, Any] | None:
    """The status of the running daemon, which holds delayed messages; None if none runs."""
    try:
        status = ask(settings)
    except UnavailableError as error:
        if is_needed:
            raise UnavailableError(
                f"{error}; only a running daemon that owns the partition can change its messages", hint=error.hint
            ) from error
        if settings.delay is None:
            raise ConfigError(
                "the configuration has no section delay: nothing is held", hint="add the section delay"
            ) from error
        return None
    if status.get("delay") is None:
        raise ConfigError(
            "the running daemon holds no delayed messages: its configuration has no section delay",
            hint="add the section delay, and start the daemon again",
        )
    return status


def _tell(line: str) -> None:
    say(line, err=True)


def request(settings: Settings, path: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The answer of the daemon that runs with these settings; raises `UnavailableError` if it cannot answer."""
    address = read_address(Path(settings.state.dir))
    if address is None or not address.token:
        raise UnavailableError(
            f"the token of the daemon in {settings.state.dir} cannot be read",
            hint="run this command as the user of the daemon, on its host",
        )
    try:
        status, body = exchange(address.url, path, TIMEOUT_S, fields, address.token)
        if status == 200:
            found: dict[str, Any] = loads(body)
            return found
    except NO_ANSWER as error:
        raise UnavailableError(
            f"the daemon at {address.url} did not answer, and the request may have taken effect: {error}",
            hint="run `sidecar status`, and try again",
        ) from error
    raise UnavailableError(
        f"the daemon at {address.url} refused: {body.decode(errors='replace').strip()}",
        hint="run `sidecar status`, and try again",
    )


def owner_of(settings: Settings, tp: TopicPartition) -> str:
    """Client id and host of the member that owns a partition; empty if there is none, or the broker reports none."""
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
