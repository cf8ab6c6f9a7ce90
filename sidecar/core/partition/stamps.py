"""The stamps of an ownership's commits, and the fingerprints of the log as far as it was read."""

from __future__ import annotations

from dataclasses import replace

from sidecar.core.lineage import Fingerprint, Lineage, Stamp, Trail


class Stamps:
    """Numbers commits, so that of two states it can be told which came after the other.

    Args:
        lineage: From which commits the ownership goes on.
    """

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage
        self._newest: Fingerprint | None = None
        self._commits = 0
        self._trail = Trail(lineage.fingerprints)

    def read(self, newest: Fingerprint) -> None:
        """The message read last: it becomes durable with the next commit, and not before."""
        self._newest = newest

    def next(self) -> tuple[Stamp, Lineage]:
        """The stamp of a commit that is begun now, and what it comes after, with the log's fingerprints up to here."""
        self._commits += 1
        if self._newest is not None:
            self._trail.add(self._newest)
        return Stamp(self._lineage.token, self._commits), replace(self._lineage, fingerprints=self._trail.dump())
