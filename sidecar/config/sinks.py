"""The settings of the sinks: where batches go and how. No connection is made here."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, PlainSerializer, ValidationInfo, field_validator

from sidecar.config.base import HIDDEN, Bool, FilePath, Int, Location, Model, OneOf, Secret, Text, TlsFiles, matching
from sidecar.config.units import Duration, Size

Format: TypeAlias = Literal["envelope", "ndjson", "json_array"]
DELTA_CONCURRENCY = 32
"""Batches that may wait for one commit."""
FORMAT = "A row: `envelope` (JSON with origin, key, tag, headers), or the value alone as `ndjson` or `json_array`."
OWN_HEADERS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "idempotency-key",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""What a request's framing and contract need; all that begin with ``sidecar-`` belong to them too."""


def is_own_header(name: str) -> bool:
    """Whether a header of this name is written by the sink itself."""
    return name.lower() in OWN_HEADERS or name.lower().startswith("sidecar-")


def _header_name(name: str) -> str:
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}", name):
        raise ValueError("is no header name")
    if is_own_header(name):
        raise ValueError("is a header that Sidecar sets")
    return name


def _extra_header_name(name: str) -> str:
    if name.lower() == "authorization":
        raise ValueError("belongs under sink.http.auth")
    return _header_name(name)


def _distinct(headers: dict[str, str]) -> dict[str, str]:
    names = [name.lower() for name in headers]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"has {', '.join(twice)} twice: upper and lower case are the same header")
    return headers


HeaderName: TypeAlias = Annotated[Text, AfterValidator(_header_name)]
HeaderValue: TypeAlias = Annotated[
    str, Field(max_length=4096), AfterValidator(matching(r"[\x20-\x7e]*", "has characters that a header cannot carry"))
]


def _url(url: str) -> str:
    if not re.fullmatch(r"[\x21-\x7e]+", url):
        raise ValueError("has spaces or characters outside ASCII: percent-encode them")
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError:
        raise ValueError("has a host or port that cannot be read") from None
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise ValueError("needs http://HOST:PORT/PATH or https://HOST:PORT/PATH")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not carry credentials: put them under sink.http.auth")
    if parts.fragment:
        raise ValueError("must not have a #fragment: it is never sent")
    return url


def hide_query(url: str) -> str:
    """The URL without its query and credentials, which may carry secrets."""
    shown, query, _ = url.partition("?")
    return re.sub(r"//[^/]*@", f"//{HIDDEN}@", shown) + (f"?{HIDDEN}" if query else "")


class BasicAuth(Model):
    """A user name and a password."""

    username: Annotated[Text, AfterValidator(matching(r"[^:\x00-\x1f]+", "must not have a colon"))] = Field(
        description="The user name."
    )
    password: Secret = Field(description="The password; `file:PATH` reads it from a file.")


class HeaderAuth(Model):
    """A secret in a header of its own."""

    name: HeaderName = Field(description="The header that carries the secret.")
    value: Secret = Field(description="The secret; `file:PATH` reads it from a file.")


class Auth(OneOf):
    """How Sidecar shows who it is."""

    basic: BasicAuth | None = Field(default=None, description="A user name and a password.")
    bearer: Secret | None = Field(default=None, description="A bearer token; `file:PATH` reads it from a file.")
    header: HeaderAuth | None = Field(default=None, description="A secret in a header of its own.")

    @field_validator("bearer")
    @classmethod
    def _token(cls, token: Any) -> Any:
        if not re.fullmatch(r"[\x21-\x7e]+", token.get_secret_value()):
            raise ValueError("has spaces or characters that a header cannot carry")
        return token


class Tls(TlsFiles):
    """Whom an https receiver must be signed by, and as whom Sidecar appears."""

    section = "sink.http.tls"

    verify: Bool = Field(default=True, description="Whether the receiver's certificate is checked.")


class HttpSink(Model):
    """Batches are posted to a URL."""

    url: Annotated[Text, AfterValidator(_url), PlainSerializer(hide_query)] = Field(
        description="The receiver; `http` or `https`, without credentials."
    )
    format: Format = Field(default="envelope", description=FORMAT)
    compression: Literal["none", "gzip", "zstd"] = Field(default="none", description="How the body is compressed.")
    concurrency: Int = Field(default=4, ge=1, le=64, description="Requests at the same time.")
    ordering: Literal["none", "partition"] = Field(
        default="none",
        description="`partition`: messages of one partition and group arrive in offset order, retries included.",
    )
    timeout_ms: Annotated[int, Duration("10ms", "1h")] = Field(
        default=10_000, alias="timeout", description="How long a request may take, from connecting to the whole answer."
    )
    headers: Annotated[
        dict[Annotated[Text, AfterValidator(_extra_header_name)], HeaderValue],
        AfterValidator(_distinct),
        PlainSerializer(lambda headers: dict.fromkeys(headers, HIDDEN)),
    ] = Field(
        default={}, repr=False, description="Further headers of each request, as `{NAME: VALUE}`; shown to nobody."
    )
    auth: Auth | None = Field(default=None, description="How Sidecar shows who it is.")
    tls: Tls = Field(default=Tls(), description="For `https` alone.")

    @field_validator("auth")
    @classmethod
    def _not_twice(cls, auth: Auth | None, info: ValidationInfo) -> Auth | None:
        names = {name.lower() for name in info.data.get("headers", ())}
        if auth and auth.header and auth.header.name.lower() in names:
            raise ValueError("sets a header that stands under sink.http.headers too")
        return auth

    @field_validator("tls")
    @classmethod
    def _needs_https(cls, tls: Tls, info: ValidationInfo) -> Tls:
        if tls != Tls() and info.data.get("url", "https").startswith("http:"):
            raise ValueError("is of no use with a url that starts with http:")
        return tls


class ConsoleSink(Model):
    """Rows are printed, for trying things out."""

    format: Format = Field(default="envelope", description=FORMAT)


class FileSink(Model):
    """Rows are appended to a file, for trying things out."""

    path: FilePath = Field(description="The file; it is made when it is missing.")
    format: Format = Field(default="envelope", description=FORMAT)


class Retention(Model):
    """What stays in a landing zone; what a consumer has not read stays in any case."""

    age_ms: Annotated[int, Duration("1m", "365d")] = Field(
        default=86_400_000,
        alias="age",
        description="How long what all consumers have read stays, and how long a batch that comes again is known.",
    )
    max_bytes: Annotated[int, Size("1MiB", "1024GiB")] = Field(
        default=100 << 30,
        description="Data of this process. Above it what was read goes at once, or intake stops until more is read.",
    )


class SparkSink(Model):
    """Batches become files that Spark reads."""

    landing: FilePath = Field(description="The folder of the landing zone, which several processes may share.")
    format: Literal["arrow", "parquet"] = Field(
        default="arrow", description="What the data files are; `parquet` is smaller, and other tools read it too."
    )
    retention: Retention = Field(default=Retention(), description="What stays after all consumers have read it.")


class DeltaSink(Model):
    """Batches are appended to a Delta table, without Spark."""

    path: Location = Field(description="The table's folder, a path or a URL; it is made when it is missing.")


class Sink(OneOf):
    """Where batches go."""

    http: HttpSink | None = Field(default=None, description="Batches are posted to a URL.")
    spark: SparkSink | None = Field(default=None, description="Batches become files that Spark reads.")
    delta: DeltaSink | None = Field(default=None, description="Batches are appended to a Delta table, without Spark.")
    console: ConsoleSink | None = Field(default=None, description="Rows are printed, for trying things out.")
    file: FileSink | None = Field(default=None, description="Rows are appended to a file, for trying things out.")

    @property
    def format(self) -> Format | Literal["row"]:
        """How the chosen sink writes a message."""
        if self.spark or self.delta:
            return "row"
        chosen = self.http or self.file or self.console
        assert chosen, "the settings name exactly one sink"
        return chosen.format

    @property
    def concurrency(self) -> int:
        """Batches that the chosen sink takes at once."""
        if self.delta:
            return DELTA_CONCURRENCY
        return self.http.concurrency if self.http else 1
