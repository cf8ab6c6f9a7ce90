"""Settings of a PostgreSQL database. Imports no database."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import parse_qs, urlsplit

from pydantic import AfterValidator, Field

from sidecar.config.base import Model, Secret, Text


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


class Database(Model):
    """A database, and its user."""

    url: Annotated[Text, AfterValidator(_url)] = Field(
        description="Database URL, `postgresql://USER@HOST:PORT/DATABASE`; libpq parameters may follow a `?`."
    )
    password: Secret | None = Field(default=None, description="Password of the user; `file:PATH` reads it from a file.")

    @property
    def secret(self) -> str:
        """The password; empty if there is none."""
        return self.password.get_secret_value() if self.password else ""
