"""The settings of the sources: which topics of which cluster, as which group. No client is imported here."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from sidecar.config.base import Expanded, Model, Text, hide_secrets, matching
from sidecar.config.kafka_properties import refusal
from sidecar.config.units import Duration

SERVER = r"(?:[A-Za-z_]+://)?(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?"
TOPIC = r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}"


def _is_server(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(SERVER, value.strip()) is not None


def _servers(value: Any) -> Any:
    servers = value.split(",") if isinstance(value, str) else value
    if not isinstance(servers, list) or not servers or not all(map(_is_server, servers)):
        raise ValueError("needs HOST:PORT, several as a list or separated by commas")
    if any(int(found[1]) not in range(1, 65_536) for server in servers if (found := re.search(r":(\d+)$", server))):
        raise ValueError("has a port that is not from 1 to 65535")
    return ",".join(server.strip() for server in servers)


def _topic(name: str) -> str:
    if name.startswith("^"):
        try:
            re.compile(name)
        except re.error as error:
            raise ValueError(f"is not a regular expression: {error}") from error
    elif not re.fullmatch(TOPIC, name):
        raise ValueError("is no topic name (letters, digits, . _ -, at most 249); a pattern starts with ^")
    return name


def _topics(names: list[str]) -> list[str]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"names {', '.join(twice)} twice")
    return names


def _start(value: Any) -> Any:
    if value in ("earliest", "latest"):
        return str(value)
    try:
        when = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError("needs earliest, latest or a timestamp such as 2026-01-31T12:00:00Z") from None
    if when.tzinfo is None:
        raise ValueError("needs a zone at the end of the timestamp, such as Z or +02:00")
    if when.timestamp() < 0:
        raise ValueError("must not be before 1970")
    return round(when.timestamp() * 1000)


def _start_text(start: str | int) -> str:
    return start if isinstance(start, str) else datetime.fromtimestamp(start / 1000, UTC).isoformat()


def _property_name(name: str) -> str:
    if reason := refusal(name):
        raise ValueError(f"cannot be set: {reason}")
    return name


def _property_value(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, Expanded | int | float) else value


PropertyName: TypeAlias = Annotated[str, AfterValidator(_property_name)]
PropertyValue: TypeAlias = Annotated[
    str, BeforeValidator(_property_value), WithJsonSchema({"type": ["string", "number", "boolean"]})
]


class KafkaSource(Model):
    """Which topics are read from which cluster, and as which consumer group."""

    bootstrap_servers: Annotated[
        str,
        BeforeValidator(_servers),
        WithJsonSchema({"type": ["string", "array"], "minLength": 1, "minItems": 1, "items": {"type": "string"}}),
    ] = Field(description="The brokers to ask first: `HOST:PORT`, several as a list or separated by commas.")
    group_id: Annotated[Text, AfterValidator(matching(r"[^\x00-\x1f\x7f]{1,255}", "has control characters"))] = Field(
        description="The consumer group; processes with the same one share the partitions."
    )
    topics: Annotated[list[Annotated[Text, AfterValidator(_topic)]], AfterValidator(_topics)] = Field(
        min_length=1, description="Topics by name; an entry that starts with `^` is a regular expression."
    )
    start: Annotated[
        Literal["earliest", "latest"] | int,
        BeforeValidator(_start),
        PlainSerializer(_start_text, return_type=str),
        WithJsonSchema({"type": "string"}),
    ] = Field(
        default="earliest",
        description="Where a new group starts: `earliest`, `latest` or a timestamp with a zone.",
    )
    start_timeout_ms: Annotated[int, Duration("100ms", "1d")] = Field(
        default=30_000,
        alias="start_timeout",
        description="Broker unreachable or topic unknown for so long at the start: exit 69; later it heals.",
    )
    properties: Annotated[dict[PropertyName, PropertyValue], PlainSerializer(hide_secrets)] = Field(
        default={},
        repr=False,
        description="Passed to the client (librdkafka), TLS and SASL for example; those that would break a promise are "
        "refused.",
    )


class Source(Model):
    """Where messages come from."""

    kafka: KafkaSource = Field(description="A Kafka cluster.")
