"""What every ledger does. No database is named here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from sidecar.core.claims import Exchanged, Mark, Want
from sidecar.errors import SidecarError

MISSED_FOR_MS = 10_000
"""So long what somebody misses is looked for after he last asked."""
GIVEN_FOR_MS = 60_000
"""So long it lies there for him."""
MISSED_MAX = 1_000


class LedgerError(SidecarError):
    """The ledger cannot be read or written at present; nothing of the call stands, as far as is known."""


class Ledger(Protocol):
    """Keys with the place that owns each, and what became of it. One thread calls; a call that failed may be repeated.

    Every method raises `LedgerError`.
    """

    name: str
    """What it is called in the log and in `status`."""

    def claim(self, wants: Sequence[Want], timeout_ms: int) -> list[list[int]]:
        """Claim rows in one transaction, for `timeout_ms` from now by the ledger's own clock.

        Returns:
            What `claims.decide` says of each want and row; it is durable.
        """
        ...

    def settle(self, marks: Sequence[Mark]) -> None:
        """Make durable what became of rows, where they are still theirs; what is SUCCESS stays that."""
        ...

    def exchange(self, group: str, missed: Sequence[bytes], given: Mapping[bytes, bytes]) -> Exchanged:
        """Look for messages that somebody else may have, and give what he misses; both by identity.

        Args:
            group: The consumer group: nobody else's messages are looked at.
            missed: What is looked for here; asked again and again, until it is found.
            given: Messages that others miss, as `Exchanged.missed` said.
        """
        ...

    def prune(self, keep_ms: int, keys_max: int, step: int) -> int:
        """Forget up to `step` of the oldest keys that are beyond `keys_max` or were claimed `keep_ms` ago.

        A claim that is running is kept.

        Returns:
            How many were forgotten.
        """
        ...

    def close(self) -> None:
        """Let go of it; does not raise."""
        ...
