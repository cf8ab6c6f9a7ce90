"""Settings of the sources: cluster, topics and group. Imports no client."""

from __future__ import annotations

import platform
import re
import sys
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from sidecar.config.address import address
from sidecar.config.base import Bool, Expanded, Model, OneOf, Secret, Text, TlsFiles, hide_secrets, matching, problem
from sidecar.config.kafka_properties import refusal
from sidecar.config.marks import Kind, NotOnSpark, OnSpark
from sidecar.config.units import Duration

TOPIC = r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}"


_GROUP_COMPLAINT = "has control characters, or more than 255 characters"


_SEVERAL = "; several as a list or separated by commas"


def _servers(value: Any, example: str, read: Callable[[str], str]) -> str:
    """The servers as one text; `read` returns the part of each server that must be an address."""
    servers = value.split(",") if isinstance(value, str) else value
    for server in servers if isinstance(servers, list) and servers else [None]:
        address(read(server) if isinstance(server, str) else None, example, _SEVERAL)
    return ",".join(server.strip() for server in servers)


def _kafka_servers(value: Any) -> str:
    """Servers of Kafka: librdkafka also takes a host without a port, and a protocol before it."""
    return _servers(value, "localhost:9092", _with_port)


def _with_port(server: str) -> str:
    bare = re.sub(r"^[A-Za-z_]+://", "", server.strip())
    return bare if re.search(r":\d+$", bare) else f"{bare}:9092"


def _topic(name: str) -> str:
    if name.startswith("^"):
        try:
            with warnings.catch_warnings(action="ignore"):  # about classes that Python reads otherwise than the client
                re.compile(name)
        except re.error as error:
            raise ValueError(f"is not a regular expression: {error}") from error
    elif not re.fullmatch(TOPIC, name):
        raise ValueError("is not a valid topic name (letters, digits, . _ -, at most 249); a pattern starts with ^")
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
        raise ValueError("needs a time zone at the end of the timestamp, such as Z or +02:00")
    if when.timestamp() < 0:
        raise ValueError("must not be before 1970")
    return round(when.timestamp() * 1000)


def _start_text(start: str | int) -> str:
    return start if isinstance(start, str) else datetime.fromtimestamp(start / 1000, UTC).isoformat()


_NAME = r"[%A-Za-z0-9_|-]{1,255}"
_NAME_COMPLAINT = "is not a valid RocketMQ name (letters, digits, % _ - |, at most 255)"


def _rocketmq_servers(value: Any, info: ValidationInfo) -> str:
    return _servers(value, "localhost:8081" if info.field_name == "endpoints" else "localhost:9876", str)


def _group(name: str) -> str:
    matching(_NAME, _NAME_COMPLAINT)(name)
    if name.startswith(("%", "CID_RMQ_SYS_")):
        raise ValueError("is reserved by RocketMQ")
    return name


def _rocketmq_topic(name: str) -> str:
    if not re.fullmatch(r"[%A-Za-z0-9_|-]{1,127}", name):
        raise ValueError("is not a valid topic name (letters, digits, % _ - |, at most 127); RocketMQ has no patterns")
    if name.startswith("%RETRY%"):
        raise ValueError("is always read: name the topics that its messages come from")
    return name


def _client(value: Any) -> Any:
    if value == "native" and (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise ValueError("cannot be native here: librocketmq runs on Linux on x86_64 only")
    return value


def _property_name(name: str) -> str:
    if reason := refusal(name):
        raise ValueError(f"cannot be set: {reason}")
    return name


def _property_value(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, Expanded | int | float) else value


_SERVERS_SCHEMA = WithJsonSchema(
    {"type": ["string", "array"], "minLength": 1, "minItems": 1, "items": {"type": "string"}}
)
_RocketMqServers: TypeAlias = Annotated[str, Kind("text or list"), BeforeValidator(_rocketmq_servers), _SERVERS_SCHEMA]
Start: TypeAlias = Annotated[
    Literal["earliest", "latest"] | int,
    Kind("text"),
    BeforeValidator(_start),
    PlainSerializer(_start_text, return_type=str),
    WithJsonSchema({"type": "string"}),
]
PropertyName: TypeAlias = Annotated[str, AfterValidator(_property_name)]
PropertyValue: TypeAlias = Annotated[
    str, BeforeValidator(_property_value), WithJsonSchema({"type": ["string", "number", "boolean"]})
]


class SourceSettings(Model):
    """Settings of one source, with what the program asks of every source; `sidecar.sources.KEY.build` makes it."""

    holds_large_blocks: ClassVar[bool] = True
    """Whether its client frees large blocks seldom, so that the allocator had better give them back."""

    @property
    def consumer_group(self) -> str:
        """The consumer group."""
        raise NotImplementedError

    @property
    def isolation(self) -> str:
        """Which messages of transactions are read, where that is a setting."""
        return ""

    @property
    def pushed_filter(self) -> str:
        """Expression of the broker's own by which messages are left out, beside tags."""
        return ""

    @property
    def numbers_messages(self) -> bool:
        """Whether offsets are the source's own, and not the broker's."""
        return False

    def summary(self) -> str:
        """What is read from where, for `sidecar validate`; without secrets."""
        raise NotImplementedError


class KafkaSource(SourceSettings):
    """Which topics are read from which cluster, and as which consumer group."""

    bootstrap_servers: Annotated[str, Kind("text or list"), BeforeValidator(_kafka_servers), _SERVERS_SCHEMA] = Field(
        description="Initial brokers as `HOST:PORT`, in a list or separated by commas."
    )
    group_id: Annotated[
        Text,
        AfterValidator(matching(r"[^\x00-\x1f\x7f]{1,255}", _GROUP_COMPLAINT)),
        OnSpark("applies; it is in the names of parts and in the prefix of Spark's own groups; pinned"),
    ] = Field(description="Consumer group. Processes in the same group share the partitions.")
    topics: Annotated[
        list[Annotated[Text, AfterValidator(_topic)]],
        AfterValidator(_topics),
        OnSpark("applies; with the connector, a pattern follows Java's rules"),
    ] = Field(min_length=1, description="Topic names; an entry that starts with `^` is a regular expression.")
    start: Annotated[Start, OnSpark("applies, for a new checkpoint whose consumer group never committed")] = Field(
        default="earliest",
        description="Start position of a new group: `earliest`, `latest` or a timestamp with a time zone.",
    )
    start_timeout_ms: Annotated[int, Duration("100ms", "1d"), OnSpark("applies, on the driver")] = Field(
        default=30_000,
        alias="start_timeout",
        description="How long startup waits for an unreachable broker or a missing topic before it exits with 69. "
        "Later outages are waited out.",
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
    def consumer_group(self) -> str:
        """See `SourceSettings`."""
        return self.group_id

    @property
    def isolation(self) -> str:
        """See `SourceSettings`."""
        return self.properties.get("isolation.level", "read_committed")

    def summary(self) -> str:
        """See `SourceSettings`."""
        return f"{', '.join(self.topics)} from {self.bootstrap_servers} as group {self.group_id}"


class RocketMqTls(TlsFiles):
    """TLS settings of the connections; the section alone turns encryption on."""

    section = "source.rocketmq.tls"

    verify: Bool = Field(default=True, description="Whether to verify the servers' certificates and names.")


class RocketMqSource(SourceSettings):
    """Which topics are read from which cluster, and as which consumer group."""

    client: Annotated[Literal["remoting", "grpc", "native"], BeforeValidator(_client)] = Field(
        default="remoting",
        description="Protocol to the brokers: `remoting` for 4.x and 5.x, `grpc` for 5.x behind a proxy, `native` "
        "through librocketmq.",
    )
    native_path: Text | None = Field(
        default=None,
        validate_default=True,
        description="With `native`: the folder that `sidecar native FOLDER` filled.",
    )
    name_servers: _RocketMqServers | None = Field(
        default=None,
        validate_default=True,
        description="Name servers as `HOST:PORT`, in a list or separated by commas. Not with `grpc`.",
    )
    endpoints: _RocketMqServers | None = Field(
        default=None,
        validate_default=True,
        description="With `grpc`: proxies as `HOST:PORT`, in a list or separated by commas.",
    )
    group: Annotated[Text, AfterValidator(_group)] = Field(
        description="Consumer group. Processes in the same group share the queues."
    )
    topics: Annotated[list[Annotated[Text, AfterValidator(_rocketmq_topic)]], AfterValidator(_topics)] = Field(
        min_length=1, description="Topic names. The group's retry topic is always read too."
    )
    sql: Text | None = Field(
        default=None,
        description="SQL92 expression over properties. Brokers filter by it instead of by `tags.subscribe`.",
    )
    start: Start = Field(
        default="earliest",
        description="Start position of a new group: `earliest`, `latest` or a timestamp with a time zone.",
    )
    start_timeout_ms: Annotated[int, Duration("100ms", "1d")] = Field(
        default=30_000,
        alias="start_timeout",
        description="How long startup waits for unreachable servers or a missing topic before it exits with 69. "
        "Later outages are waited out.",
    )
    share: Literal["average", "consistent_hash"] = Field(
        default="average", description="How the members of the group share the queues. All members need the same value."
    )
    namespace: Annotated[Text, AfterValidator(matching(_NAME, _NAME_COMPLAINT))] | None = Field(
        default=None, description="Prefix of topic and group names, as `NAMESPACE%NAME`."
    )
    access_key: Text | None = Field(default=None, description="User that signs the requests (ACL 1.0 and 2.0).")
    secret_key: Secret | None = Field(
        default=None,
        validate_default=True,
        description="Key that signs the requests; `file:PATH` reads it from a file.",
    )
    security_token: Secret | None = Field(
        default=None, description="Token that belongs to temporary keys; `file:PATH` reads it from a file."
    )
    tls: RocketMqTls | None = Field(
        default=None, description="Encrypts all connections; `{}` trusts the system's certificates."
    )

    @field_validator("name_servers", "endpoints")
    @classmethod
    def _of_the_client(cls, servers: Any, info: ValidationInfo) -> Any:
        client = info.data.get("client")
        if client is None:
            return servers
        ours, other = ("endpoints", "name_servers") if client == "grpc" else ("name_servers", "endpoints")
        if info.field_name == ours and servers is None:
            raise ValueError(f"needs {ours} with client: {client}")
        if info.field_name == other and servers is not None:
            raise ValueError(f"cannot be used with client: {client}, which needs {ours}")
        return servers

    @field_validator("native_path")
    @classmethod
    def _where_it_is_used(cls, path: Any, info: ValidationInfo) -> Any:
        client = info.data.get("client")
        if client == "native" and path is None:
            raise ValueError("needs native_path with client: native: a folder that `sidecar native FOLDER` fills")
        if client not in ("native", None) and path is not None:
            raise ValueError(f"cannot be used with client: {client}")
        return path

    @field_validator("sql", "share", "security_token", "tls")
    @classmethod
    def _not_with_native(cls, value: Any, info: ValidationInfo) -> Any:
        if info.data.get("client") == "native" and value is not None:
            raise ValueError("is not supported by librocketmq: remove it, or use client: remoting")
        return value

    @field_validator("start", "share")
    @classmethod
    def _not_with_grpc(cls, value: Any, info: ValidationInfo) -> Any:
        if info.data.get("client") == "grpc":
            raise ValueError("is set by the broker with client: grpc: remove it")
        return value

    @field_validator("tls")
    @classmethod
    def _verifies(cls, tls: RocketMqTls | None, info: ValidationInfo) -> RocketMqTls | None:
        if tls is not None and not tls.verify and info.data.get("client") == "grpc":
            raise ValidationError.from_exception_data(
                "tls", [problem("cannot be false with client: grpc: name the certificate in ca", tls, "verify")]
            )
        return tls

    @field_validator("secret_key")
    @classmethod
    def _both_keys(cls, secret_key: Any, info: ValidationInfo) -> Any:
        if (secret_key is None) != (info.data.get("access_key", secret_key) is None):
            raise ValueError("access_key and secret_key need each other")
        return secret_key

    @field_validator("security_token")
    @classmethod
    def _token_has_keys(cls, token: Any, info: ValidationInfo) -> Any:
        if token is not None and info.data.get("access_key", "") is None:
            raise ValueError("needs access_key and secret_key")
        return token

    @property
    def consumer_group(self) -> str:
        """See `SourceSettings`."""
        return self.group

    @property
    def pushed_filter(self) -> str:
        """See `SourceSettings`."""
        return self.sql or ""

    @property
    def numbers_messages(self) -> bool:
        """See `SourceSettings`."""
        return self.client != "remoting"

    def summary(self) -> str:
        """See `SourceSettings`."""
        servers = self.endpoints if self.client == "grpc" else self.name_servers
        return f"{', '.join(self.topics)} from {servers} as group {self.group}"


class Source(OneOf):
    """Where messages come from."""

    kafka_: KafkaSource | None = Field(default=None, alias="kafka", description="A Kafka cluster.")
    rocketmq: Annotated[RocketMqSource | None, NotOnSpark("Spark has no connector for it")] = Field(
        default=None, description="A RocketMQ cluster, 4.x or 5.x."
    )

    @property
    def kafka(self) -> KafkaSource:
        """The Kafka section, for parts that serve no other source."""
        assert self.kafka_ is not None
        return self.kafka_

    @property
    def group_id(self) -> str:
        """The consumer group."""
        return self.chosen.consumer_group

    @property
    def chosen(self) -> SourceSettings:
        """Settings of the chosen source."""
        chosen: SourceSettings = self.only_one
        return chosen
