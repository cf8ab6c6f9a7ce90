"""Rules of delivery. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from sidecar.core.backoff import Backoff


class Rates(NamedTuple):
    """Limits of what is sent in a second.

    Args:
        nbytes: Bytes of bodies, as sent.
        learned: Whether the limit of requests is learned from answers of 429.
    """

    requests: float = inf
    rows: float = inf
    nbytes: float = inf
    learned: bool = False


NO_RATES = Rates()


@dataclass(slots=True)
class DeliveryRules:
    """Rules by which batches are delivered; `Pipeline.change` may change them in place.

    Args:
        ordered: Whether a group's parts of one partition go one after the other.
        give_up_attempts: Failed sends after which a batch is dead-lettered; None for never.
        give_up_ms: Time since the first failed send after which a batch is dead-lettered; None for never.
        lease_ms: With a ledger, in which rows are claimed before they are sent, the time after the request of its claim
            during which a batch may be sent; None without one.
        park_after_ms: Time for which a group fails after which its parts are parked; None for never.
        park_max_bytes: The largest part that is parked.
        numbered: Whether offsets are the source's own numbers, which are meaningless in another scope.
        adaptive: Whether the limit of concurrent sends is learned, up to `concurrency`.
        copied: Whether several attempts at the same messages may run at once, each to its end, as tasks on Spark: none
            waits for a twin, and each follows what another one has claimed or split.
    """

    backoff: Backoff
    concurrency: int
    ordered: bool
    separator: bytes
    give_up_attempts: int | None = None
    give_up_ms: int | None = None
    lease_ms: int | None = None
    numbered: bool = False
    copied: bool = False
    park_after_ms: int | None = None
    park_max_bytes: float = inf
    rates: Rates = NO_RATES
    adaptive: bool = False

    @property
    def gives_up(self) -> bool:
        """Whether a batch is dead-lettered after a number of failures or a time."""
        return self.give_up_attempts is not None or self.give_up_ms is not None

    def gives_up_after(self, attempts: int, failing_ms: float) -> bool:
        """Whether this number of failed sends, or this time of failures, reaches the limit."""
        by_count = self.give_up_attempts is not None and attempts >= self.give_up_attempts
        return by_count or (self.give_up_ms is not None and failing_ms >= self.give_up_ms)
