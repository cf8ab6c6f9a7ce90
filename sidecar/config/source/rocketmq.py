"""Settings of the source on RocketMQ. Imports no client."""

from __future__ import annotations

import platform
import re
import sys
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from sidecar.config.base import Bool, KeyKind, OnSpark, Secret, Text, TlsFiles, matching, refused
from sidecar.config.source.base import SERVERS_SCHEMA, SourceSettings, Start, servers, unique_topics
from sidecar.config.units import Duration

LOCK_MS = 60_000
"""Time for which a broker keeps a killed member's lock of a queue; over gRPC, leases are extended to as much."""
TOPIC = r"[%A-Za-z0-9_|-]{1,127}"
_NAME = r"[%A-Za-z0-9_|-]{1,255}"
_NAME_COMPLAINT = "is not a valid RocketMQ name (letters, digits, % _ - |, at most 255)"


def _rocketmq_servers(value: Any, info: ValidationInfo) -> str:
    return servers(value, "localhost:8081" if info.field_name == "endpoints" else "localhost:9876", str)


def _group(name: str) -> str:
    matching(_NAME, _NAME_COMPLAINT)(name)
    if name.startswith(("%", "CID_RMQ_SYS_")):
        raise ValueError("is reserved by RocketMQ")
    return name


def _rocketmq_topic(name: str) -> str:
    if not re.fullmatch(TOPIC, name):
        raise ValueError("is not a valid topic name (letters, digits, % _ - |, at most 127); RocketMQ has no patterns")
    if name.startswith("%RETRY%"):
        raise ValueError("is always read: name the topics that its messages come from")
    return name


def _client(value: Any) -> Any:
    if value == "native" and (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise ValueError("cannot be native here: librocketmq runs on Linux on x86_64 only")
    return value


_OF_OTHER_CLIENTS = OnSpark("refused, as its client is")
_SECRET = OnSpark("applies; the driver reads it, and it travels with the query")
_RocketMqServers: TypeAlias = Annotated[
    str, KeyKind("text or list"), BeforeValidator(_rocketmq_servers), SERVERS_SCHEMA
]


class RocketMqTls(TlsFiles):
    """TLS settings of the connections; the section alone turns encryption on."""

    section = "source.rocketmq.tls"

    verify: Bool = Field(default=True, description="Whether to verify the servers' certificates and names.")


class RocketMqSettings(SourceSettings):
    """Which topics are read from which cluster, and as which consumer group."""

    client: Annotated[
        Literal["remoting", "grpc", "native"],
        BeforeValidator(_client),
        OnSpark("`remoting` applies; the others are refused: their messages have no offsets that last"),
    ] = Field(
        default="remoting",
        description="Protocol to the brokers: `remoting` for 4.x and 5.x, `grpc` for 5.x behind a proxy, `native` "
        "through librocketmq.",
    )
    native_path: Annotated[Text | None, _OF_OTHER_CLIENTS] = Field(
        default=None,
        validate_default=True,
        description="With `native`: the folder that `sidecar native FOLDER` filled.",
    )
    name_servers: _RocketMqServers | None = Field(
        default=None,
        validate_default=True,
        description="Name servers as `HOST:PORT`, in a list or separated by commas. Not with `grpc`.",
    )
    endpoints: Annotated[_RocketMqServers | None, _OF_OTHER_CLIENTS] = Field(
        default=None,
        validate_default=True,
        description="With `grpc`: proxies as `HOST:PORT`, in a list or separated by commas.",
    )
    group: Annotated[Text, AfterValidator(_group), OnSpark("applies; it is in the names of parts; pinned")] = Field(
        description="Consumer group. Processes in the same group share the queues."
    )
    topics: Annotated[
        list[Annotated[Text, AfterValidator(_rocketmq_topic)]],
        AfterValidator(unique_topics),
        OnSpark("applies, with the group's retry topic"),
    ] = Field(min_length=1, description="Topic names. The group's retry topic is always read too.")
    sql: Annotated[Text | None, OnSpark("applies; pinned")] = Field(
        default=None,
        description="SQL92 expression over properties. Brokers filter by it instead of by `tags.subscribe`.",
    )
    start: Annotated[Start, OnSpark("applies, for a new checkpoint whose group never committed")] = Field(
        default="earliest",
        description="Start position of a new group: `earliest`, `latest`, or a timestamp with a time zone or in "
        "milliseconds.",
    )
    start_timeout_ms: Annotated[int, Duration("100ms", "1d"), OnSpark("applies, on the driver")] = Field(
        default=30_000,
        alias="start_timeout",
        description="How long startup waits for unreachable servers or a missing topic before it exits with 69. "
        "Later outages are waited out.",
    )
    share: Annotated[
        Literal["average", "consistent_hash"], OnSpark("ignored: each queue is read by a task of its own")
    ] = Field(
        default="average", description="How the members of the group share the queues. All members need the same value."
    )
    namespace: Annotated[Text, AfterValidator(matching(_NAME, _NAME_COMPLAINT))] | None = Field(
        default=None, description="Prefix of topic and group names, as `NAMESPACE%NAME`."
    )
    access_key: Text | None = Field(default=None, description="User that signs the requests (ACL 1.0 and 2.0).")
    secret_key: Annotated[Secret | None, _SECRET] = Field(
        default=None,
        validate_default=True,
        description="Key that signs the requests; `file:PATH` reads it from a file.",
    )
    security_token: Annotated[Secret | None, _SECRET] = Field(
        default=None, description="Token that belongs to temporary keys; `file:PATH` reads it from a file."
    )
    tls: Annotated[RocketMqTls | None, OnSpark("applies; the files must be on every executor")] = Field(
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
            raise refused("cannot be false with client: grpc: name the certificate in ca", tls, "verify")
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
    def takeover_ms(self) -> int:
        return LOCK_MS

    @property
    def consumer_group(self) -> str:
        return self.group

    @property
    def pushed_filter(self) -> str:
        return self.sql or ""

    @property
    def numbers_messages(self) -> bool:
        return self.client != "remoting"

    def summary(self) -> str:
        servers = self.endpoints if self.client == "grpc" else self.name_servers
        return f"{', '.join(self.topics)} from {servers} as group {self.group}"
