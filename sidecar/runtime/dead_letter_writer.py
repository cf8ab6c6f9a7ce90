"""The thread that stores dead letters, so that no other thread waits for their destination. Decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import structlog

from sidecar.core.records import DeadLetter, group_label
from sidecar.runtime.dead_letters import DeadLetterStore
from sidecar.runtime.worker import Inbox, Worker

PATIENCE_S = 5.0
"""Time that `close` waits for letters being stored: longer than a write waits for a lock on the state file."""
LINES_MAX = 10

log = structlog.get_logger()


class LettersStored(NamedTuple):
    """The end of storing dead letters."""

    token: int
    reason: str
    """The reason of a failure; empty if they are durable."""
    letters: int


class DeadLetterWriter:
    """Stores dead letters one list after the other: each may wait seconds for the broker.

    Args:
        inbox: Takes a `LettersStored` for each list.
    """

    def __init__(self, store: DeadLetterStore, inbox: Inbox[LettersStored]) -> None:
        self._store = store
        self._inbox = inbox
        self._thread = Worker("dead-letters")

    def store(self, token: int, letters: Sequence[DeadLetter]) -> None:
        """Begin to store these letters."""
        self._thread.do(lambda: self._inbox.put(LettersStored(token, self._try(letters), len(letters))))

    def _try(self, letters: Sequence[DeadLetter]) -> str:
        try:
            self._store.store(letters)
        except Exception as error:  # noqa: BLE001  # tried again; the messages stay unsettled meanwhile
            return str(error) or type(error).__name__
        for letter in letters[:LINES_MAX]:
            log.warning(
                "message.dead_lettered", **letter.tp.fields(), offset=letter.offset,
                group=group_label(letter.group), reason=letter.reason,
            )  # fmt: skip
        return ""

    def close(self) -> None:
        """Drop lists that were not begun, whose messages come again, and wait for the others; then write nothing."""
        self._thread.close(PATIENCE_S)
        self._store.close()
