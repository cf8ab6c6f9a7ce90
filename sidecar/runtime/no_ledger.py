"""An engine without a ledger. Imports no ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from sidecar.core.claims import ClaimEnd
from sidecar.core.effects import Claim

Claimed: TypeAlias = Callable[[int, list[list[int]] | None, float], object]
"""Takes a claim's number and the ledger's verdicts, None if it gave none."""


class NoLedger:
    """No ledger: the core claims nothing."""

    is_there = False
    problem = ""
    """The reason for which the ledger cannot be used at present."""
    transactions: Mapping[tuple[str, str], int] = {}
    """Number of transactions by kind and result."""

    def claim(self, effect: Claim, claimed: Claimed) -> None:
        """Claim rows; the inbox gets a call with the answer."""
        raise NotImplementedError(effect)

    def settle(self, marks: Sequence[ClaimEnd], settled: Callable[[bool], None]) -> None:
        """Make these ends of claims durable; then call `settled` on the ledger's thread with whether they are."""
        raise NotImplementedError(marks)

    def settle_now(self, marks: Sequence[ClaimEnd]) -> bool:
        """Make these ends of claims durable now; return whether they are."""
        raise NotImplementedError(marks)

    def tend(self, now_s: float) -> None:
        """Forget keys that are too old or too many; raises `ConfigError` if the ledger is another cluster's."""

    def close(self) -> None:
        """Finish pending calls, then close the ledger."""
