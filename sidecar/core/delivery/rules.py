"""How batches are delivered. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.core.backoff import Backoff


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """How batches are delivered.

    Args:
        backoff: Waits between tries.
        concurrency: Sends at once.
        ordered: Whether a group's parts of one partition go one after the other.
        separator: The rows' separator.
        give_up_attempts: Failed sends after which a batch is dead-lettered; None for never.
        give_up_ms: Time since the first failed send after which it is; None for never.
        lease_ms: With a ledger: how long after its claim was asked for a batch may be sent.
        numbered: Whether offsets are the source's own numbers, which mean nothing in another scope.
    """

    backoff: Backoff
    concurrency: int
    ordered: bool
    separator: bytes
    give_up_attempts: int | None = None
    give_up_ms: int | None = None
    lease_ms: int | None = None
    numbered: bool = False

    @property
    def has_ledger(self) -> bool:
        """Whether rows are claimed in a ledger before they are sent."""
        return self.lease_ms is not None

    @property
    def gives_up(self) -> bool:
        """Whether a batch is dead-lettered after some failures."""
        return self.give_up_attempts is not None or self.give_up_ms is not None

    def gives_up_after(self, attempts: int, failing_ms: float) -> bool:
        """Whether so many failed sends, or failures for so long, are enough."""
        by_count = self.give_up_attempts is not None and attempts >= self.give_up_attempts
        return by_count or (self.give_up_ms is not None and failing_ms >= self.give_up_ms)
