"""The target of an HTTP sink: address, certificates, headers, secrets. Opens no connection."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterable, Mapping
from urllib.parse import SplitResult, quote, urlsplit

from sidecar.config.sinks import is_own_header
from sidecar.errors import ConfigError
from sidecar.tls import Tls, client_context
from sidecar.version import VERSION

_IN_PATH = "%/:@!$&'()*+,;="
"""Characters that a path may have beside those that `quote` leaves (RFC 3986), and `%`, which escapes others."""
SECRET_MIN_CHARS = 4
"""Shorter secrets cannot be distinguished from ordinary text."""


class Endpoint:
    """An address with the common parts of all requests to it.

    Args:
        url: ``http://`` or ``https://``, without credentials in it.
        credentials: A header, name and value, that is never shown.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        credentials: tuple[str, str] | None = None,
        tls: Tls | None = None,
    ) -> None:
        parsed = _parse_url(url)
        self.host = (parsed.hostname or "").replace("%25", "%")  # before the zone of an IPv6 address
        self.port = parsed.port
        self.netloc = parsed.netloc
        self.uri = quote(parsed.path, _IN_PATH) or "/"
        if parsed.query:
            self.uri += f"?{quote(parsed.query, _IN_PATH + '?')}"
        self.tls = client_context(tls or Tls(), "sink.http.tls") if parsed.scheme == "https" else None
        all_headers = {**(headers or {}), **(dict([credentials]) if credentials else {})}
        self.headers = _checked(all_headers)
        self._secrets = _secrets(all_headers.values())
        if self.tls is not None:
            self.tls.set_alpn_protocols(["http/1.1"])
        plain = not any(name.lower() == "accept-encoding" for name in self.headers)
        self._common = f" {self.uri} HTTP/1.1\r\nHost: {self._host_header()}\r\n" + (
            "Accept-Encoding: identity\r\n" if plain else ""  # an excerpt of a refusal is shown, so it must be readable
        )

    def head(self, method: str, headers: Mapping[str, str]) -> bytes:
        """The head of a request with these headers, which include the endpoint's."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{method}{self._common}{lines}\r\n".encode("latin-1")

    def _host_header(self) -> str:
        host = f"[{self.host.partition('%')[0]}]" if ":" in self.host else self.host
        return host if self.port in (None, 443 if self.tls else 80) else f"{host}:{self.port}"

    def redacted(self, raw: bytes) -> bytes:
        """The text with the values of the endpoint's headers, which a receiver may repeat, replaced by ``***``."""
        for secret in self._secrets:
            raw = raw.replace(secret, b"***")
        return raw


def basic(username: str, password: str) -> tuple[str, str]:
    """The header of HTTP Basic credentials, in UTF-8 (RFC 7617)."""
    return "Authorization", f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode('ascii')}"


def bearer(token: str) -> tuple[str, str]:
    """The header of a bearer token (RFC 6750)."""
    return "Authorization", f"Bearer {token}"


def _parse_url(text: str) -> SplitResult:
    if not text.isprintable():  # `urlsplit` would leave out some control characters
        raise ConfigError("sink.http.url contains a control character", hint="Write it as http://host:port/path")
    try:
        url = urlsplit(text)
        _ = url.port
    except ValueError as error:
        raise ConfigError("sink.http.url cannot be read", hint="Write it as http://host:port/path") from error
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError("sink.http.url is not an http or https URL", hint="Write it as http://host:port/path")
    if not url.netloc.isascii() or " " in url.netloc:
        raise ConfigError(
            "the host in sink.http.url has a character that is not allowed there",
            hint="Write an international name in its ASCII form: xn--bcher-kva.example for bücher.example",
        )
    if "@" in url.netloc:
        raise ConfigError("sink.http.url contains credentials", hint="Put them under sink.http.auth")
    return url


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise ConfigError(f"{name!r} is not a valid HTTP header name")
        if is_own_header(name):
            raise ConfigError(f"the header {name} is set by Sidecar itself", hint="Remove it from sink.http")
        if not re.fullmatch(r"[\t\x20-\x7e\x80-\xff]*", value):
            raise ConfigError(f"the value of the header {name} has a character that an HTTP header cannot carry")
    if any(name.lower() == "user-agent" for name in headers):
        return dict(headers)
    return {"User-Agent": f"consumer-sidecar/{VERSION}", **headers}


def _secrets(values: Iterable[str]) -> list[bytes]:
    secrets: list[str] = []
    for value in values:
        scheme, _, token = value.partition(" ")
        secrets += [value, token]
        if scheme == "Basic":
            with contextlib.suppress(ValueError):
                secrets.append(base64.b64decode(token).decode().partition(":")[2])
    return sorted({text.encode() for text in secrets if len(text) >= SECRET_MIN_CHARS}, key=len, reverse=True)
