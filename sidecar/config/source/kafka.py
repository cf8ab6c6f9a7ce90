"""Settings of the source on Kafka. Imports no client."""

from __future__ import annotations

import re
import warnings
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    WithJsonSchema,
)

from sidecar.config.base import Expanded, Text, hide_secrets, matching
from sidecar.config.marks import KeyKind, OnSpark
from sidecar.config.source.base import SERVERS_SCHEMA, SourceSettings, Start, servers, unique_topics
from sidecar.config.source.kafka_properties import refusal
from sidecar.config.units import Duration

SESSION_TIMEOUT_MS = 9_000
"""Time after which a coordinator gives a silent member's partitions to others."""
TOPIC = r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}"

_GROUP_COMPLAINT = "has control characters, or more than 255 characters"


def _kafka_servers(value: Any) -> str:
    """Kafka servers; librdkafka also accepts a host without a port, and a protocol in front of it."""
    return servers(value, "localhost:9092", _with_port)


def _with_port(server: str) -> str:
    bare = re.sub(r"^[A-Za-z_]+://", "", server.strip())
    return bare if re.search(r":\d+$", bare) else f"{bare}:9092"


def _topic(name: str) -> str:
    if name.startswith("^"):
        try:
            with warnings.catch_warnings(action="ignore"):  # character classes that the client reads differently
                re.compile(name)
        except re.error as error:
            raise ValueError(f"is not a regular expression: {error}") from error
    elif not re.fullmatch(TOPIC, name):
        raise ValueError("is not a valid topic name (letters, digits, . _ -, at most 249); a pattern starts with ^")
    return name


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


class KafkaSettings(SourceSettings):
    """Which topics are read from which cluster, and as which consumer group."""

    bootstrap_servers: Annotated[str, KeyKind("text or list"), BeforeValidator(_kafka_servers), SERVERS_SCHEMA] = Field(
        description="Initial brokers as `HOST:PORT`, in a list or separated by commas."
    )
    group_id: Annotated[
        Text,
        AfterValidator(matching(r"[^\x00-\x1f\x7f]{1,255}", _GROUP_COMPLAINT)),
        OnSpark("applies; it is in the names of parts and in the prefix of Spark's own groups; pinned"),
    ] = Field(description="Consumer group. Processes in the same group share the partitions.")
    topics: Annotated[
        list[Annotated[Text, AfterValidator(_topic)]],
        AfterValidator(unique_topics),
        OnSpark("applies; with the connector, a pattern follows Java's rules"),
    ] = Field(min_length=1, description="Topic names; an entry that starts with `^` is a regular expression.")
    start: Annotated[Start, OnSpark("applies, for a new checkpoint whose consumer group never committed")] = Field(
        default="earliest",
        description="Start position of a new group: `earliest`, `latest`, or a timestamp with a time zone or in "
        "milliseconds.",
    )
    start_timeout_ms: Annotated[int, Duration("100ms", "1d"), OnSpark("applies, on the driver")] = Field(
        default=30_000,
        alias="start_timeout",
        description="How long startup waits for an unreachable broker or a missing topic before it exits with 69. "
        "Later outages are waited out.",
    )
    lane: Annotated[
        Literal["auto", "on", "off"], OnSpark("applies with `spark.reader: client`; `on` is refused with the connector")
    ] = Field(
        default="auto",
        description="Whether messages are read and sorted in C: with `auto`, if the package "
        "`consumer-sidecar-fastlane` is installed and can do what these settings need; with `on`, it is an error if it "
        "cannot.",
    )
    properties: Annotated[
        dict[PropertyName, PropertyValue],
        PlainSerializer(hide_secrets),
        OnSpark(
            "applies with `spark.reader: client`; otherwise mapped to the names of the Java client, and refused if it "
            "has no such property. `isolation.level` is pinned. Files must be on every executor"
        ),
    ] = Field(
        default={},
        repr=False,
        description="Passed to librdkafka, for example TLS and SASL settings. Properties that would break a "
        "promise are refused.",
    )

    holds_large_blocks: ClassVar[bool] = False
    """librdkafka takes blocks of this size all the time."""

    @property
    def takeover_ms(self) -> int:
        """See `SourceSettings`."""
        return SESSION_TIMEOUT_MS

    @property
    def consumer_group(self) -> str:
        """See `SourceSettings`."""
        return self.group_id

    @property
    def isolation(self) -> str:
        """See `SourceSettings`."""
        return self.properties.get("isolation.level", "read_committed")

    def entry_of(self, topic: str) -> str | None:
        """The entry of `topics` by which this topic is read; None if it is not read."""
        matching = (name for name in self.topics if name == topic or (name[0] == "^" and re.match(name, topic)))
        return next(matching, None)

    def summary(self) -> str:
        """See `SourceSettings`."""
        return f"{', '.join(self.topics)} from {self.bootstrap_servers} as group {self.group_id}"
