"""The ledger's thread, so that no other thread waits for the database. Decides nothing about messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import structlog
from typing_extensions import override

from sidecar.config.ledger import LedgerSettings, Remembering
from sidecar.core.claims import ClaimEnd, Exchanged
from sidecar.core.effects import Claim
from sidecar.errors import ConfigError, SidecarError, extra
from sidecar.owner import Owner
from sidecar.runtime.no_ledger import Claimed, NoLedger
from sidecar.runtime.worker import Inbox, Worker
from sidecar.state.interface import Damage

if TYPE_CHECKING:
    from sidecar.ledger.interface import Ledger

PRUNE_EVERY_S = 1.0
PRUNE_STEP = 2_000
"""Limit of keys forgotten at once, which takes a few milliseconds. Waiting claims come before the next ones."""

T = TypeVar("T")

log = structlog.get_logger()


class LedgerWorker(NoLedger):
    """Calls the ledger on a separate thread, one call after the other."""

    is_there = True

    def __init__(self, ledger: Ledger, limits: Remembering, keys_max: int, inbox: Inbox) -> None:
        self.transactions: Counter[tuple[str, str]] = Counter()
        self._ledger = ledger
        self._limits = limits
        self._keys_max = keys_max
        self._inbox = inbox
        self._exchanging = False
        self._exchanged: Exchanged | None = None
        self._pruning = False
        self._prune_at_s = 0.0
        self._refused: ConfigError | None = None
        """The error of a ledger that must never be used."""
        self._thread = Worker("ledger")

    @override
    def claim(self, effect: Claim, claimed: Claimed) -> None:
        def job() -> None:
            verdicts = self._try("claim", lambda: self._ledger.claim(effect.wants, self._limits.claim_timeout_ms))
            self._inbox.put(partial(claimed, effect.number, verdicts))

        self._thread.do(job)

    @override
    def settle(self, marks: Sequence[ClaimEnd], settled: Callable[[bool], None]) -> None:
        self._thread.do(lambda: settled(self._settle(marks)))

    @override
    def settle_now(self, marks: Sequence[ClaimEnd]) -> bool:
        return self._thread.wait(lambda: self._settle(marks))

    def _settle(self, marks: Sequence[ClaimEnd]) -> bool:
        def settle() -> bool:
            self._ledger.settle(marks)
            return True

        return bool(self._try("settle", settle))

    def exchange(self, group: str, missed: Sequence[bytes], given: Mapping[bytes, bytes]) -> None:
        """Begin a `Ledger.exchange`, unless one is under way."""

        def job() -> None:
            exchanged = self._try("exchange", lambda: self._ledger.exchange(group, missed, given))
            self._exchanged, self._exchanging = exchanged, False

        if not self._exchanging:
            self._exchanging = True
            self._thread.do(job)

    def exchanged(self) -> Exchanged | None:
        """The result of the last exchange, once; None while it is under way, and if it failed."""
        exchanged = None
        if not self._exchanging:
            exchanged, self._exchanged = self._exchanged, None
        return exchanged

    @override
    def tend(self, now_s: float) -> None:
        if self._refused is not None:
            raise self._refused
        if not self._pruning and now_s >= self._prune_at_s:
            self._pruning, self._prune_at_s = True, now_s + PRUNE_EVERY_S
            self._thread.do(self._prune)

    def _prune(self) -> None:
        gone = self._try("prune", lambda: self._ledger.prune(self._limits.keep_ms, self._keys_max, PRUNE_STEP))
        self._pruning = gone == PRUNE_STEP
        if self._pruning:
            self._thread.do(self._prune)  # after the claims that arrived meanwhile

    def _try(self, kind: str, call: Callable[[], T]) -> T | None:
        """The result of the call; None if it failed."""
        try:
            answer = call()
        except Exception as error:  # noqa: BLE001  # a mistake in a driver must not end the thread: it is tried again
            self.transactions[kind, "failed"] += 1
            reason = str(error) if isinstance(error, SidecarError) else f"{type(error).__name__}: {error}"
            log.error("ledger.failed", ledger=self._ledger.name, reason=reason)
            self.problem = reason
            self._refused = error if isinstance(error, ConfigError) else None
            return None
        self.transactions[kind, "ok"] += 1
        if self.problem:
            log.info("ledger.recovered", ledger=self._ledger.name)
            self.problem = ""
        return answer

    @override
    def close(self) -> None:
        self._pruning = True
        self._thread.close()
        self._ledger.close()


def open_ledger_worker(
    settings: LedgerSettings,
    group: str,
    keys_max: int,
    folder: Path,
    inbox: Inbox,
    owner: Callable[[], Owner] | None = None,
) -> LedgerWorker:
    """The worker of the configured ledger, which connects at the first call; raises `ConfigError` without a package."""
    ledger = open_ledger(settings, group, folder, owner)
    return LedgerWorker(ledger, settings.remembering, keys_max, inbox)


def open_ledger(settings: LedgerSettings, group: str, folder: Path, owner: Callable[[], Owner] | None = None) -> Ledger:
    """The configured ledger, without a worker; errors as in `open_ledger_worker`."""
    if settings.postgresql is None:
        from sidecar.ledger.sqlite import SqliteLedger

        return SqliteLedger(folder, _tell_damage, owner=owner)
    with extra("postgresql", "dedup.ledger.postgresql", "psycopg"):
        from sidecar.ledger.postgresql import PostgresqlLedger
    return PostgresqlLedger(settings.postgresql.url, group, settings.postgresql.secret, owner)


def _tell_damage(damage: Damage) -> None:
    log.error("state.damaged", **damage._asdict())
