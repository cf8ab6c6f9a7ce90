"""A ledger that forgets when the process ends: for tests and simulations, several sidecars may share one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sidecar.core.claims import ClaimEnd, ClaimState, Exchanged, LedgerEntry, Want, decide, keys_in
from sidecar.ledger.interface import GIVEN_FOR_MS, MISSED_FOR_MS, MISSED_MAX, LedgerError


@dataclass(slots=True)
class _LedgerRow:
    entry: LedgerEntry
    since_ms: float
    until_ms: float


@dataclass(slots=True)
class _Missed:
    asked_ms: float
    message: bytes | None = None


class MemoryLedger:
    """A `Ledger` in a dictionary.

    Attributes:
        failing: The reason for which every call fails; empty if none does.
        overtaken: Keys that were taken from another place, with their previous states.
    """

    name = "memory"

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._rows: dict[bytes, _LedgerRow] = {}
        self._missed: dict[tuple[str, bytes], _Missed] = {}
        self.failing = ""
        self.overtaken: dict[bytes, set[ClaimState]] = {}

    def entry(self, key: bytes) -> LedgerEntry | None:
        row = self._rows.get(key)
        return None if row is None else row.entry

    def claim(self, wants: Sequence[Want], timeout_ms: int) -> list[list[int]]:
        with self._alone():
            now_ms = self._now_ms()
            keys = [key for want in wants for key in keys_in(want.keys)]
            rows = {key: row for key in keys if (row := self._rows.get(key)) is not None}
            entries = {key: row.entry._replace(expired=row.until_ms <= now_ms) for key, row in rows.items()}
            verdicts, writes = decide(wants, entries)
            for key, place, offset, token in writes:
                before = rows.get(key)
                state, since_ms = ClaimState.PROCESSING, now_ms
                if before is not None:
                    since_ms = before.since_ms
                    if before.entry.state == ClaimState.SUCCESS:
                        state = ClaimState.SUCCESS
                    elif (before.entry.place, before.entry.offset) != (place, offset):
                        self.overtaken.setdefault(key, set()).add(before.entry.state)
                self._rows[key] = _LedgerRow(LedgerEntry(place, offset, token, state), since_ms, now_ms + timeout_ms)
            return verdicts

    def settle(self, marks: Sequence[ClaimEnd]) -> None:
        with self._alone():
            for mark in marks:
                for key, offset in zip(keys_in(mark.keys), mark.offsets, strict=True):
                    row = self._rows.get(key)
                    if row is None or (row.entry.place, row.entry.offset) != (mark.place, offset):
                        continue
                    if row.entry.state != ClaimState.SUCCESS:
                        row.entry = row.entry._replace(state=mark.state)

    def exchange(self, group: str, missed: Sequence[bytes], given: Mapping[bytes, bytes]) -> Exchanged:
        with self._alone():
            now_ms, rows = self._now_ms(), self._missed
            messages: dict[bytes, bytes] = {}
            for key in missed:
                row = rows.setdefault((group, key), _Missed(now_ms))
                row.asked_ms = now_ms
                if row.message is not None:
                    messages[key] = row.message
                    del rows[group, key]
            for key, message in given.items():
                if (group, key) in rows:
                    rows[group, key].message = message
            for old in [missed for missed, row in rows.items() if row.asked_ms <= now_ms - GIVEN_FOR_MS]:
                del rows[old]
            since_ms, asked = now_ms - MISSED_FOR_MS, set(missed)
            sought = [key for (whose, key), row in rows.items() if whose == group and row.asked_ms > since_ms]
            others = [key for key in sought if key not in asked and rows[group, key].message is None]
            return Exchanged(messages, others[:MISSED_MAX])

    def prune(self, keep_ms: int, keys_max: int, step: int) -> int:
        with self._alone():
            now_ms = self._now_ms()
            oldest = sorted(self._rows.items(), key=lambda item: item[1].since_ms)
            over = max(0, len(oldest) - keys_max)
            gone = [key for i, (key, row) in enumerate(oldest) if i < over or row.since_ms <= now_ms - keep_ms]
            idle = [key for key in gone if not self._runs(self._rows[key], now_ms)][:step]
            for key in idle:
                del self._rows[key]
            return len(idle)

    def _runs(self, row: _LedgerRow, now_ms: float) -> bool:
        return row.entry.state == ClaimState.PROCESSING and row.until_ms > now_ms

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Serialize the calls of several threads: a key goes to one of them."""
        if self.failing:
            raise LedgerError(self.failing)
        with self._lock:
            yield

    def close(self) -> None:
        """Keep the rows: another object may use them."""
