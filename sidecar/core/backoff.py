"""Waits between sends. Time and chance are inputs."""

from __future__ import annotations

from dataclasses import dataclass

RETRY_AFTER_MAX_MS = 300_000
SPREAD = 0.1
"""Largest part by which a requested wait is exceeded: all who were asked at once must not return at once."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter: AWS Architecture Blog, "Exponential Backoff And Jitter", 2015.

    Args:
        base_ms: Upper bound of the first wait.
        max_ms: Upper bound of every wait.
    """

    base_ms: int
    max_ms: int

    def wait_ms(self, attempt: int, jitter: float, retry_after_ms: float | None = None) -> float:
        """Milliseconds to wait after the failed send number `attempt`, counted from 1.

        Args:
            jitter: Uniform in [0, 1).
            retry_after_ms: The wait that the receiver asked for; honoured up to 5 minutes.
        """
        bound = min(self.max_ms, self.base_ms << min(attempt - 1, 32))
        return max(bound * jitter, min(retry_after_ms or 0, RETRY_AFTER_MAX_MS) * (1 + SPREAD * jitter))
