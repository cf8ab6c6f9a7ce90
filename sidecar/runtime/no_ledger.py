"""An engine without a ledger, and the answer to a claim. Imports no ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sidecar.core.claims import ClaimEnd
from sidecar.core.effects import Claim


class ClaimAnswered(NamedTuple):
    """The ledger's verdicts on a claim; None if it gave none."""

    number: int
    verdicts: list[list[int]] | None


class NoLedger:
    """No ledger: the core claims nothing."""

    is_there = False
    problem = ""
    """The reason for which the ledger cannot be used at present."""
    transactions: Mapping[tuple[str, str], int] = {}
    """Number of transactions by kind and result."""

    def claim(self, effect: Claim) -> None:
        """Claim rows; the answer goes to the inbox."""
        raise NotImplementedError(effect)

    def settle(self, marks: Sequence[ClaimEnd], settled: Callable[[bool], None]) -> None:
        """Make these ends of claims durable; then call `settled` on the ledger's thread with whether they are."""
        raise NotImplementedError(marks)

    def settle_now(self, marks: Sequence[ClaimEnd]) -> bool:
        """Make these ends of claims durable now; return whether they are."""
        raise NotImplementedError(marks)

    def tend(self, now_s: float) -> None:
        """Forget keys that are too old or too many.

        Raises:
            ConfigError: The ledger is another cluster's.
        """

    def close(self) -> None:
        """Finish pending calls, then close the ledger."""
