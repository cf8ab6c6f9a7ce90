"""Settings of the ledger: its database, and how long keys are remembered. Imports no database."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import parse_qs, urlsplit

from pydantic import AfterValidator, Field

from sidecar.config.base import Model, OneOf, Secret, Text
from sidecar.config.units import Duration

CLAIM_TIMEOUT = Duration("1s", "1d")


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
        raise ValueError("must not carry the password: put it under dedup.ledger.postgresql.password")
    return url


class Remembering(Model):
    """How long a ledger remembers."""

    claim_timeout_ms: Annotated[int, CLAIM_TIMEOUT] = Field(
        default=600_000,
        alias="claim_timeout",
        description="How long a message with the same id waits while the outcome of the claimed message is "
        "unknown; at least three times `sink.http.timeout`.",
    )
    keep_ms: Annotated[int, Duration("1m", "3650d")] = Field(
        default=604_800_000, alias="keep", description="How long a key is remembered after its first claim."
    )


class SqliteLedger(Remembering):
    """A file in the state folder: for one process, or where all copies of a message go to the same one."""


class PostgresqlLedger(Remembering):
    """A table that all sidecars of a group share, on whatever host; other groups have tables of their own."""

    url: Annotated[Text, AfterValidator(_url)] = Field(
        description="Database URL, `postgresql://USER@HOST:PORT/DATABASE`; libpq parameters may follow a `?`."
    )
    password: Secret | None = Field(default=None, description="Password of the user; `file:PATH` reads it from a file.")


class Ledger(OneOf):
    """Where business keys are remembered."""

    sqlite: SqliteLedger | None = Field(
        default=None, description="A file in `state.dir`, for this process only; `{}` is enough."
    )
    postgresql: PostgresqlLedger | None = Field(
        default=None,
        description="A table per consumer group, shared by its sidecars on several hosts; needs the extra "
        "`postgresql`.",
    )

    @property
    def remembering(self) -> Remembering:
        """Limits of remembering."""
        chosen: Remembering = self.only_one
        return chosen
