"""Messages that came again although this member held or had acknowledged them, as a problem. Decides nothing."""

from __future__ import annotations

from collections.abc import Mapping

LASTS_S = 300.0
"""Time after the last such message for which it is a problem."""
EVERY_S = 10.0
"""Interval at which the numbers change: each change is logged."""


class Returned:
    """Counts them: a broker accepts an extension or acknowledgement that matches nothing, and tells nobody."""

    def __init__(self) -> None:
        self._held = self._settled = 0
        self._until_s = self._next_s = 0.0
        self._text = ""

    def held(self, now_s: float) -> None:
        """Count a message that came again within its lease."""
        self._held += 1
        self._until_s = now_s + LASTS_S

    def settled(self, now_s: float) -> None:
        """Count a message that came again after this process had settled it."""
        self._settled += 1
        self._until_s = now_s + LASTS_S

    def problems(self, now_s: float) -> Mapping[str, str]:
        """The problem, by the key ``returned``; empty if there is none."""
        if now_s >= self._until_s:
            self._held, self._settled, self._text = 0, 0, ""
            return {}
        if now_s >= self._next_s or not self._text:
            self._next_s, self._text = now_s + EVERY_S, _text(self._held, self._settled)
        return {"returned": self._text}


def _text(held: int, settled: int) -> str:
    kinds = [f"{held} within the lease"] * (held > 0) + [f"{settled} after the acknowledgement"] * (settled > 0)
    return (
        f"messages came again: {' and '.join(kinds)}. They were recognized here, but another member may deliver such a "
        "message again, unless there is a dedup.ledger. A restart of a broker or proxy explains it; without one, they "
        "accepted an extension or acknowledgement that matched nothing: compare the versions of both"
    )
