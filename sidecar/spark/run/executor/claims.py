"""A task's side of the ledger: claims, and the ends of claims. Decides nothing about messages."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from sidecar.core.claims import ClaimEnd, ClaimState
from sidecar.core.effects import Claim
from sidecar.runtime.build import ReadingPlan
from sidecar.runtime.ledger_worker import ClaimAnswered, open_ledger_worker
from sidecar.runtime.worker import Inbox

AGAIN_S = 0.5


class MarksAnswered(NamedTuple):
    """Whether the ledger has the marks that it was told last."""

    ok: bool


class Claims:
    """Claims rows of a range, and tells the ledger what was delivered, until it has that.

    The ledger is not told of dead letters here: another attempt at the range may claim them anew, and a twin may take
    a key only once no attempt can send the part again that the message was in. The driver tells it of `errors`.

    Args:
        reading: Without a ledger there is nothing to do.

    Raises:
        ConfigError: The ledger's package is not installed.
    """

    def __init__(self, reading: ReadingPlan, inbox: Inbox[ClaimAnswered | MarksAnswered], stack: ExitStack) -> None:
        self.errors: list[ClaimEnd] = []
        """The dead letters."""
        self._inbox = inbox
        self._due: list[ClaimEnd] = []
        self._asked: list[ClaimEnd] = []
        self._again_at_s = 0.0
        dedup = reading.dedup
        self._worker = open_ledger_worker(dedup.ledger, reading.group_id, dedup.capacity, reading.state_dir, inbox)
        if self._worker is not None:
            stack.callback(self._worker.close)

    @property
    def problem(self) -> str:
        """The reason for which the ledger cannot be used at present."""
        return "" if self._worker is None else self._worker.problem

    @property
    def at_rest(self) -> bool:
        """Whether the ledger has all that was delivered."""
        return not (self._due or self._asked)

    def claim(self, effect: Claim) -> None:
        """Claim rows."""
        assert self._worker is not None
        self._worker.claim(effect)

    def tend(self, marks: Sequence[ClaimEnd], now_s: float) -> None:
        """Take the ends of claims that have become due, and tell the ledger, one call after the other."""
        for mark in marks:
            (self.errors if mark.state is ClaimState.ERROR else self._due).append(mark)
        if self._worker is not None and self._due and not self._asked and now_s >= self._again_at_s:
            self._asked, self._due = self._due, []
            self._worker.settle(self._asked, lambda ok: self._inbox.put(MarksAnswered(ok)))

    def answered(self, *, ok: bool, now_s: float) -> None:
        """Take the ledger's answer."""
        if not ok:
            self._due[:0] = self._asked
            self._again_at_s = now_s + AGAIN_S
        self._asked = []
