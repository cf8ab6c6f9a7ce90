"""Settings of the sinks. Opens no connection."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import inf
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from sidecar.config.base import (
    HIDDEN,
    Bool,
    Expanded,
    FilePath,
    KeyKind,
    Model,
    OneOf,
    OnSpark,
    Secret,
    Text,
    TlsFiles,
    matching,
)
from sidecar.config.units import SIZES, Duration
from sidecar.core.delivery.rules import Rates

Format: TypeAlias = Literal["envelope", "ndjson", "json_array"]
FORMAT = "Row format: `envelope` (JSON with origin, key, tag, headers), or the bare value as `ndjson` or `json_array`."
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
"""Headers that HTTP framing and the contract use, in addition to all that begin with ``sidecar-``."""


StatusKind: TypeAlias = Literal["failed", "unanswered", "busy", "halt", "reject"]

NO_ICEBERG = "Iceberg has no runtime for Spark 4.2 yet; use delta or parquet"


def is_own_header(name: str) -> bool:
    """Whether the sink itself writes a header of this name."""
    return name.lower() in OWN_HEADERS or name.lower().startswith("sidecar-")


def _header_name(name: str) -> str:
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}", name):
        raise ValueError("is not a valid header name")
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
        raise ValueError(f"has {', '.join(twice)} twice: header names ignore case")
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
        description="User name."
    )
    password: Secret = Field(description="Password; `file:PATH` reads it from a file.")


class HeaderAuth(Model):
    """A secret in a custom header."""

    name: HeaderName = Field(description="Name of the header.")
    value: Secret = Field(description="Secret; `file:PATH` reads it from a file.")


class Auth(OneOf):
    """Authentication to the receiver."""

    basic: BasicAuth | None = Field(default=None, description="User name and password.")
    bearer: Secret | None = Field(default=None, description="Bearer token; `file:PATH` reads it from a file.")
    header: HeaderAuth | None = Field(default=None, description="A secret in a custom header.")

    @field_validator("bearer")
    @classmethod
    def _token(cls, token: Any) -> Any:
        if not re.fullmatch(r"[\x21-\x7e]+", token.get_secret_value()):
            raise ValueError("has spaces or characters that a header cannot carry")
        return token


class TlsSettings(TlsFiles):
    """TLS settings; only with https."""

    section = "sink.http.tls"

    verify: Bool = Field(default=True, description="Whether to verify the receiver's certificate.")


class TableTarget(NamedTuple):
    """A table that Spark fills."""

    format: Literal["delta", "parquet"]
    path: str


class SinkSettings(Model):
    """Settings of one sink, with what the program asks of every sink; `sidecar.sinks.KEY.build` makes the sink."""

    extra: ClassVar[str] = ""
    """Optional extra that the sink needs."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Packages that the extra installs for it."""
    joins_groups: ClassVar[bool] = False
    """Whether messages of all tag groups travel together, their group as a column: a file for each would be small."""
    only_on_spark: ClassVar[str] = ""
    """The reason for which the daemon refuses it; empty if it does not."""

    @property
    def table(self) -> TableTarget | None:
        """The table that `sidecar spark run` fills; None if batches are delivered."""
        return None

    @property
    def row_format(self) -> Format | Literal["row"]:
        """Format of a message; `row` is a row of a table."""
        return "row"

    @property
    def batches_at_once(self) -> int:
        """Maximum concurrent deliveries."""
        return 1

    @property
    def one_by_one(self) -> bool:
        """Whether a batch waits until the batch before it, of the same partition and group, is settled."""
        return True

    @property
    def keeps_order(self) -> bool:
        return False

    @property
    def adapts(self) -> bool:
        """Whether the limit of concurrent deliveries is learned."""
        return False

    @property
    def rates(self) -> Rates:
        """Limits of what is sent in a second."""
        return Rates()

    @property
    def time_limit_ms(self) -> int | None:
        """Time limit of a delivery, from the sink's key `timeout`; None if the sink has no such key."""
        return None

    def summary(self) -> str:
        """A summary for `sidecar validate`, without secrets."""
        raise NotImplementedError


NO_UNIT = {"": 1}
CONCURRENCY_MAX = 64


def _concurrency(value: Any) -> Any:
    if isinstance(value, Expanded) and value.isdecimal():
        value = int(value)
    if value != "auto" and (type(value) is not int or not 1 <= value <= CONCURRENCY_MAX):
        raise ValueError(f"needs a number from 1 to {CONCURRENCY_MAX}, or auto")
    return value


_PER = {"s": 1, "m": 60, "h": 3_600}
_RATE = re.compile(r"([0-9]{1,12}) ?([A-Za-z]*)/([smh])")


def per_second(text: str, units: Mapping[str, int]) -> float | None:
    """The limit in a second; None if the text is no limit with one of these units."""
    match = _RATE.fullmatch(text)
    if match is None or match[2] not in units or not int(match[1]):
        return None
    return int(match[1]) * units[match[2]] / _PER[match[3]]


def _limit(units: Mapping[str, int], examples: str, *words: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in words and per_second(text, units) is None:
            raise ValueError(f"needs a number above 0 a second, minute or hour, such as {examples}")
        return text

    return check


class HttpRate(Model):
    """Limits of what this process sends; each lets a second's worth through at once."""

    requests: Annotated[Text, AfterValidator(_limit(NO_UNIT, "10/s, 600/m or auto", "auto"))] | None = Field(
        default=None,
        description="Maximum requests, such as `10/s` or `600/m`. `auto` learns the limit from answers of 429.",
    )
    rows: Annotated[Text, AfterValidator(_limit(NO_UNIT, "5000/s"))] | None = Field(
        default=None, description="Maximum rows, such as `5000/s`."
    )
    nbytes: Annotated[Text, AfterValidator(_limit(SIZES, "1MiB/s"))] | None = Field(
        default=None, alias="bytes", description="Maximum bytes of bodies, as sent, such as `1MiB/s`."
    )

    @property
    def rates(self) -> Rates:
        """The limits in numbers."""
        requests, rows = per_second(self.requests or "", NO_UNIT), per_second(self.rows or "", NO_UNIT)
        nbytes = per_second(self.nbytes or "", SIZES)
        return Rates(requests or inf, rows or inf, nbytes or inf, learned=self.requests == "auto")


class HttpSinkSettings(SinkSettings):
    """Posts batches to a URL."""

    url: Annotated[Text, KeyKind("URL"), AfterValidator(_url), PlainSerializer(hide_query)] = Field(
        description="URL of the receiver; `http` or `https`, without credentials."
    )
    format: Annotated[Format, OnSpark("applies; pinned")] = Field(default="envelope", description=FORMAT)
    compression: Literal["none", "gzip", "zstd"] = Field(
        default="none", description="Compression of the request body; `zstd` needs the extra of that name."
    )
    concurrency: Annotated[
        int | Literal["auto"],
        KeyKind("number, 1 to 64, or auto"),
        BeforeValidator(_concurrency),
        WithJsonSchema({"type": ["integer", "string"], "minimum": 1, "maximum": CONCURRENCY_MAX, "pattern": "^auto$"}),
        OnSpark("applies for each task"),
    ] = Field(
        default=4,
        description="Maximum concurrent requests. `auto` finds as many as the receiver processes without "
        "becoming slower.",
    )
    rate: Annotated[HttpRate, OnSpark("applies for each task")] = Field(
        default=HttpRate(), description="Limits of what is sent, for each process."
    )
    ordering: Literal["none", "partition"] = Field(
        default="none",
        description="`partition` delivers messages of one partition and group in offset order, including retries.",
    )
    timeout_ms: Annotated[int, Duration("10ms", "1h")] = Field(
        default=10_000,
        alias="timeout",
        description="Time limit of a request, from connecting to the end of the answer.",
    )
    headers: Annotated[
        dict[Annotated[Text, AfterValidator(_extra_header_name)], HeaderValue],
        AfterValidator(_distinct),
        PlainSerializer(lambda headers: dict.fromkeys(headers, HIDDEN)),
    ] = Field(
        default={}, repr=False, description="Extra request headers, `{NAME: VALUE}`; their values are never shown."
    )
    statuses: Annotated[
        dict[Annotated[Text, AfterValidator(matching(r"[45]\d\d", "is not a status from 400 to 599"))], StatusKind],
        KeyKind("section of words"),
    ] = Field(
        default={},
        description="Other [meanings](http.md#the-answer) of statuses, `{STATUS: KIND}`: `failed`, `unanswered`, "
        "`busy`, `halt` or `reject`. Example: `{500: unanswered}`, if a request may be stored in spite of a 500.",
    )
    auth: Annotated[Auth | None, OnSpark("applies; the driver reads the secrets, and they travel with the query")] = (
        Field(default=None, description="Authentication to the receiver.")
    )
    tls: Annotated[TlsSettings, OnSpark("applies; the files must be on every executor")] = Field(
        default=TlsSettings(), description="TLS settings; only with `https`."
    )

    @property
    def row_format(self) -> Format:
        return self.format

    @property
    def batches_at_once(self) -> int:
        return CONCURRENCY_MAX if self.concurrency == "auto" else self.concurrency

    @property
    def adapts(self) -> bool:
        return self.concurrency == "auto"

    @property
    def one_by_one(self) -> bool:
        return self.keeps_order

    @property
    def keeps_order(self) -> bool:
        return self.ordering == "partition"

    @property
    def rates(self) -> Rates:
        return self.rate.rates

    @property
    def time_limit_ms(self) -> int:
        return self.timeout_ms

    def summary(self) -> str:
        return f"{self.format} to {hide_query(self.url)}, {self.concurrency} at a time"

    @field_validator("auth")
    @classmethod
    def _not_twice(cls, auth: Auth | None, info: ValidationInfo) -> Auth | None:
        names = {name.lower() for name in info.data.get("headers", ())}
        if auth and auth.header and auth.header.name.lower() in names:
            raise ValueError("sets a header that is also in sink.http.headers")
        return auth

    @field_validator("tls")
    @classmethod
    def _needs_https(cls, tls: TlsSettings, info: ValidationInfo) -> TlsSettings:
        if tls != TlsSettings() and info.data.get("url", "https").startswith("http:"):
            raise ValueError("cannot be used with a url that starts with http:")
        return tls


class ConsoleSinkSettings(SinkSettings):
    """Prints rows; for experiments."""

    format: Format = Field(default="envelope", description=FORMAT)

    @property
    def row_format(self) -> Format:
        return self.format

    def summary(self) -> str:
        return f"{self.format} to the console"


class FileSinkSettings(SinkSettings):
    """Appends rows to a file; for experiments."""

    path: FilePath = Field(description="Path of the file; created if missing.")
    format: Format = Field(default="envelope", description=FORMAT)

    @property
    def row_format(self) -> Format:
        return self.format

    def summary(self) -> str:
        return f"{self.format} to {self.path}"
