"""Settings of the ledger: its database, and the time for which keys are remembered. Imports no database."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sidecar.config.base import Model, NotOnSpark, OneOf
from sidecar.config.postgresql import DatabaseSettings
from sidecar.config.units import Duration


class Remembering(Model):
    """How long a ledger remembers."""

    claim_timeout_ms: Annotated[int, Duration("1s", "1d")] = Field(
        default=600_000,
        alias="claim_timeout",
        description="How long a message with the same id waits while the outcome of the claimed message is "
        "unknown; at least three times `sink.http.timeout`, and 3m with RocketMQ, whose locks last 1m (27s with "
        "Kafka).",
    )
    keep_ms: Annotated[int, Duration("1m", "3650d")] = Field(
        default=604_800_000, alias="keep", description="How long a key is remembered after its first claim."
    )


class SqliteLedgerSettings(Remembering):
    """A file in the state folder: for one process, or where all copies of a message go to the same one."""


class PostgresqlLedgerSettings(DatabaseSettings, Remembering):
    """A table that all sidecars of a group share, on whatever host; other groups have tables of their own."""


class LedgerSettings(OneOf):
    """Where business keys are remembered."""

    sqlite: Annotated[
        SqliteLedgerSettings | None, NotOnSpark("its file is on one host, and tasks run on several; use postgresql")
    ] = Field(default=None, description="A file in `state.dir`, for this process only; `{}` is enough.")
    postgresql: PostgresqlLedgerSettings | None = Field(
        default=None,
        description="A table per consumer group, shared by its sidecars on several hosts; needs the extra "
        "`postgresql`.",
    )

    @property
    def remembering(self) -> Remembering:
        chosen: Remembering = self.only_one
        return chosen
