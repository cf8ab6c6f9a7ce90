"""The thread that has dead letters kept, so that nobody else waits for the place they go to. Decides nothing."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import NamedTuple

import structlog

from sidecar.core.records import DeadLetter, group_label
from sidecar.daemon.dispatcher import Writer
from sidecar.daemon.graveyards import Graveyard

PATIENCE_S = 5.0
"""How long `close` waits for what is being stored: longer than a write waits for a lock on the state file."""
LINES_MAX = 10

log = structlog.get_logger()


class Buried(NamedTuple):
    """Dead letters are durable, or not."""

    token: int
    reason: str
    """Why not; empty when they are."""
    letters: int


class Gravedigger:
    """Has dead letters kept one list after the other: each may wait seconds for the broker.

    Args:
        graveyard: Where they go.
        inbox: Takes a `Buried` for each list.
    """

    def __init__(self, graveyard: Graveyard, inbox: queue.SimpleQueue[object]) -> None:
        self._graveyard = graveyard
        self._inbox = inbox
        self._thread: Writer | None = None
        """Most daemons never have a dead letter."""

    def bury(self, token: int, letters: Sequence[DeadLetter]) -> None:
        """Have these kept."""
        if self._thread is None:
            self._thread = Writer("gravedigger")
        self._thread.do(lambda: self._inbox.put(Buried(token, self._bury(letters), len(letters))))

    def _bury(self, letters: Sequence[DeadLetter]) -> str:
        try:
            self._graveyard.bury(letters)
        except Exception as error:  # noqa: BLE001  # tried again; the messages stay unsettled meanwhile
            return str(error) or type(error).__name__
        for one in letters[:LINES_MAX]:
            log.warning(
                "message.dead_lettered", **one.tp.fields(), offset=one.offset,
                group=group_label(one.group), reason=one.reason,
            )  # fmt: skip
        return ""

    def close(self) -> None:
        """Drop what was not begun, whose messages come again, and wait for what was."""
        if self._thread is not None:
            self._thread.abandon(PATIENCE_S)
            self._thread = None
