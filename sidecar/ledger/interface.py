"""The interface of all ledgers. It names no database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from sidecar.core.claims import ClaimEnd, Exchanged, Want
from sidecar.errors import SidecarError

MISSED_FOR_MS = 10_000
"""Time for which a missed message is searched for after the last request for it."""
GIVEN_FOR_MS = 60_000
"""Time for which a given message is kept for the member that misses it."""
MISSED_MAX = 1_000


class LedgerError(SidecarError):
    """The ledger cannot be read or written at present; as far as is known, the call had no effect."""


class Ledger(Protocol):
    """Keys with their owners and states. Called from one thread; a call that failed may be repeated.

    Every method raises `LedgerError`.
    """

    name: str
    """Name in the log and in `status`."""

    def claim(self, wants: Sequence[Want], timeout_ms: int) -> list[list[int]]:
        """Claim rows in one transaction, for `timeout_ms` from now by the ledger's own clock.

        Returns:
            The result of `claims.decide` for each want and row; it is durable.
        """
        ...

    def settle(self, marks: Sequence[ClaimEnd]) -> None:
        """Make the ends of rows durable, if these are still owned; a row that is SUCCESS stays SUCCESS."""
        ...

    def exchange(self, group: str, missed: Sequence[bytes], given: Mapping[bytes, bytes]) -> Exchanged:
        """Search for messages that another member may have, and give messages that others miss; both by identity.

        Args:
            group: The consumer group: messages of other groups are ignored.
            missed: Messages to look for; requested repeatedly, until they are found.
            given: Messages that others miss, from `Exchanged.missed`.
        """
        ...

    def prune(self, keep_ms: int, keys_max: int, step: int) -> int:
        """Forget up to `step` of the oldest keys that are beyond `keys_max` or were claimed `keep_ms` ago.

        A running claim is kept.

        Returns:
            The number of forgotten keys.
        """
        ...

    def close(self) -> None:
        """Does not raise."""
        ...
