"""Reads the evidence: the receiver's rows, the daemon's status, its dead letters. Starts and changes nothing."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sidecar.demo.books import DeliveredRow, Position
from sidecar.ops.client import NO_ANSWER, exchange, read_address
from sidecar.state.store import Store

TIMEOUT_S = 2.0
LETTERS_MAX = 100_000


class ReceiverDatabase:
    """The receiver's database.

    Args:
        path: Its file; the receiver must have created it.
    """

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, timeout=30.0)
        self._seen = 0

    def delivered(self) -> int:
        """Number of rows so far; no row is ever deleted."""
        return int(self._db.execute("SELECT coalesce(max(rowid), 0) FROM rows").fetchone()[0])

    def batches(self) -> int:
        """Number of accepted batches: each is one part here."""
        return int(self._db.execute("SELECT count(*) FROM parts").fetchone()[0])

    def rows(self) -> Iterator[DeliveredRow]:
        """All rows."""
        for partition, offset, row in self._db.execute('SELECT "partition", "offset", row FROM rows'):
            yield DeliveredRow((partition, offset), json.loads(row)["value"])

    def new_rows(self) -> Iterator[tuple[str, int]]:
        """Value and timestamp of the rows that were added since the last call."""
        for number, row in self._db.execute("SELECT rowid, row FROM rows WHERE rowid > ? ORDER BY rowid", [self._seen]):
            self._seen = number
            found = json.loads(row)
            yield found["value"], found["timestamp"]

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def ask_status(state_dir: Path, pid: int) -> dict[str, Any] | None:
    """The status of the daemon with this process id, None while it does not answer."""
    address = read_address(state_dir)
    if address is None or address.pid != pid:
        return None
    with contextlib.suppress(*NO_ANSWER):
        status: dict[str, Any] = json.loads(exchange(address.url, "status", TIMEOUT_S)[1])
        return status if status.get("pid") == pid else None
    return None


def dead_letters(state_dir: Path) -> list[Position]:
    """Places of the dead letters in a state folder that no daemon uses."""
    with contextlib.closing(Store(state_dir)) as state:
        return [(letter.partition, letter.offset) for letter in state.letters.load(LETTERS_MAX)]
