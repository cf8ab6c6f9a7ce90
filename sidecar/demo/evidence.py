"""Reads the evidence: what the receiver stored, the daemon's status, its dead letters. Starts and changes nothing."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import urllib3

from sidecar.demo.books import DeliveredRow, Position
from sidecar.ops.admin import read_address
from sidecar.state.store import Store

TIMEOUT_S = 2.0
LETTERS_MAX = 100_000


class ReceiverDatabase:
    """What the receiver stored, by its database.

    Args:
        path: Its file; the receiver must have made it.
    """

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, timeout=30.0)

    def delivered(self) -> int:
        """Rows so far; none is ever deleted."""
        return int(self._db.execute("SELECT coalesce(max(rowid), 0) FROM rows").fetchone()[0])

    def batches(self) -> int:
        """Batches that were taken: each is one part here."""
        return int(self._db.execute("SELECT count(*) FROM parts").fetchone()[0])

    def rows(self) -> Iterator[DeliveredRow]:
        """All rows."""
        for partition, offset, row in self._db.execute('SELECT "partition", "offset", row FROM rows'):
            yield DeliveredRow((partition, offset), json.loads(row)["value"])

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def ask_status(state_dir: Path, pid: int) -> dict[str, Any] | None:
    """What the daemon with this process id tells of itself, None while it does not answer."""
    address = read_address(state_dir)
    if address is None or address.pid != pid:
        return None
    with contextlib.suppress(urllib3.exceptions.HTTPError, ValueError):
        answer = urllib3.request("GET", f"{address.url}/status", timeout=TIMEOUT_S, retries=False)
        status: dict[str, Any] = answer.json()
        return status if status.get("pid") == pid else None
    return None


def dead_letters(state_dir: Path) -> list[Position]:
    """Places of the dead letters in a state folder that no daemon holds."""
    with contextlib.closing(Store(state_dir)) as state:
        return [(letter.partition, letter.offset) for letter in state.letters.load(LETTERS_MAX)]
