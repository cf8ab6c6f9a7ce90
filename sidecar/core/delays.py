"""The time by which messages are due. Reads no clock."""

from __future__ import annotations

STEP_MS = 10_000
"""A step forward by more than this is not believed at once."""
LASTS_MS = 60_000
"""How long such a step must last."""


class SteadyClock:
    """Follows a wall clock, but for steps forward: what is delivered too early cannot be taken back.

    A step back is followed at once: messages wait.
    """

    def __init__(self) -> None:
        self._believed: tuple[float, int] | None = None
        """The last reading that was believed: monotonic time and wall time, in milliseconds."""
        self._stepped_ms: float | None = None
        """Monotonic time since when the wall clock has been ahead."""

    @property
    def is_ahead(self) -> bool:
        """Whether the wall clock stepped forward, and has not been ahead for long enough."""
        return self._stepped_ms is not None

    def read(self, now_ms: float, wall_ms: int) -> int:
        """The time in milliseconds since the epoch.

        Args:
            now_ms: Monotonic time in milliseconds.
            wall_ms: What the wall clock says.
        """
        if self._believed is not None:
            then_ms, was_ms = self._believed
            expected_ms = was_ms + int(now_ms - then_ms)
            if wall_ms > expected_ms + STEP_MS:
                self._stepped_ms = now_ms if self._stepped_ms is None else self._stepped_ms
                if now_ms - self._stepped_ms < LASTS_MS:
                    return expected_ms
        self._stepped_ms, self._believed = None, (now_ms, wall_ms)
        return wall_ms
