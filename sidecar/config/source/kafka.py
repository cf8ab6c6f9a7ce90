"""Settings of the source on Kafka, and the properties that may not be set by hand. Imports no client."""

from __future__ import annotations

import re
import warnings
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from sidecar.config.base import Expanded, KeyKind, OnSpark, Text, hide_secrets, matching
from sidecar.config.source.base import SERVERS_SCHEMA, SourceSettings, Start, servers, unique_topics
from sidecar.config.units import Duration

_COMMITS = "an offset is committed only when every message below it is settled"
_BUDGET = "it is derived from memory.budget, which limits all held messages"
_GROUP = "Sidecar manages membership: dynamic members and the classic protocol, so that a restart resumes at once"
_SESSION = "the time of a takeover is promised: the session is 9 s, the heartbeat 500 ms"
_SCRIPT = "its value is a Python function, which a file cannot hold"

REFUSED = {
    "auto.offset.reset": "the start position comes from the committed state; see source.kafka.start",
    "enable.auto.commit": _COMMITS,
    "auto.commit.enable": _COMMITS,
    "enable.auto.offset.store": _COMMITS,
    "auto.commit.interval.ms": _COMMITS,
    "offset.store.*": _COMMITS,
    "group.id": "use source.kafka.group_id",
    "bootstrap.servers": "use source.kafka.bootstrap_servers",
    "metadata.broker.list": "use source.kafka.bootstrap_servers",
    "group.*": _GROUP,
    "partition.assignment.strategy": "it is cooperative-sticky, so that other members keep running during a rebalance",
    "session.timeout.ms": _SESSION,
    "heartbeat.interval.ms": _SESSION,
    "enable.partition.eof": "the end of a partition is not a message and would be counted as an error",
    "queued.max.messages.kbytes": _BUDGET,
    "queued.min.messages": _BUDGET,
    "fetch.max.bytes": _BUDGET,
    "allow.auto.create.topics": "a misspelled topic would be created and stay empty",
    "topic.metadata.refresh.interval.ms": "it is 5 s, so that new partitions and recreated topics are noticed",
    "fetch.queue.backoff.ms": "it is 10 ms: the client's default halves the rate",
    "plugin.library.paths": "it loads code into the daemon",
    "statistics.*": "nothing reads them; see /metrics",
    "default.topic.config": "it could hide a refused property",
    "on_commit": _SCRIPT,
    "on_delivery": _SCRIPT,
    "logger": _SCRIPT,
    "*_cb": _SCRIPT,
}


def refusal(name: str) -> str | None:
    """The reason why this property may not be set; None if it may."""
    if name in REFUSED:
        return REFUSED[name]
    return next((reason for pattern, reason in REFUSED.items() if fnmatchcase(name, pattern)), None)


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
    """librdkafka allocates blocks of this size all the time."""

    @property
    def takeover_ms(self) -> int:
        return SESSION_TIMEOUT_MS

    @property
    def consumer_group(self) -> str:
        return self.group_id

    @property
    def isolation(self) -> str:
        return self.properties.get("isolation.level", "read_committed")

    def entry_of(self, topic: str) -> str | None:
        """The entry of `topics` that matches this topic; None if it is not read."""
        matching = (name for name in self.topics if name == topic or (name[0] == "^" and re.match(name, topic)))
        return next(matching, None)

    def summary(self) -> str:
        return f"{', '.join(self.topics)} from {self.bootstrap_servers} as group {self.group_id}"
