"""Settings of a PostgreSQL database. Imports no database."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import parse_qs, unquote_plus, urlsplit

from pydantic import AfterValidator, Field, PlainSerializer

from sidecar.config.base import HIDDEN, Model, Secret, Text

_SHOWN = {
    "application_name", "channel_binding", "connect_timeout", "dbname", "gssencmode", "host", "hostaddr", "port",
    "sslcert", "sslkey", "sslmode", "sslnegotiation", "sslrootcert", "target_session_attrs", "user",
}  # fmt: skip
"""Parameters of libpq that carry no secret. All others are hidden, including those of later versions of libpq."""


def _url(url: str) -> str:
    if not re.fullmatch(r"[\x21-\x7e]+", url):
        raise ValueError("has spaces or characters outside ASCII: percent-encode them")
    try:
        parts = urlsplit(url)
        secret = parts.password is not None or "password" in parse_qs(parts.query)
    except ValueError:
        raise ValueError("has a host or port that cannot be read") from None
    if parts.scheme not in ("postgresql", "postgres"):
        raise ValueError("needs postgresql://USER@HOST:PORT/DATABASE")
    if secret:
        raise ValueError("must not carry the password: put it under the key password beside it")
    return url


def shown_url(url: str) -> str:
    """The URL without secrets: a password, or the value of a parameter that is not known to carry none."""
    place, mark, query = url.partition("?")
    pairs = (pair.partition("=") for pair in query.split("&"))
    shown = (f"{name}={value if unquote_plus(name) in _SHOWN else HIDDEN}" for name, _, value in pairs)
    return re.sub(r"(//[^/@:]*):[^/]*@", rf"\1:{HIDDEN}@", place) + (f"?{'&'.join(shown)}" if mark else "")


class DatabaseSettings(Model):
    """A database, and its user."""

    url: Annotated[Text, AfterValidator(_url), PlainSerializer(shown_url, return_type=str)] = Field(
        description="Database URL, `postgresql://USER@HOST:PORT/DATABASE`; libpq parameters may follow a `?`."
    )
    password: Secret | None = Field(default=None, description="Password of the user; `file:PATH` reads it from a file.")

    @property
    def secret(self) -> str:
        return self.password.get_secret_value() if self.password else ""
