"""The stamps of an ownership's commits, and the fingerprints of the log as far as it was read."""

from __future__ import annotations

from dataclasses import replace

from sidecar.core.lineage import Fingerprint, Lineage, Stamp, Trail


class Stamps:
    """Numbers commits, so that the order of two states can be decided.

    Args:
        lineage: The commits that the ownership's state came after.
    """

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage
        self._newest: Fingerprint | None = None
        self._commits = 0
        self._trail = Trail(lineage.fingerprints)

    def read(self, newest: Fingerprint) -> None:
        """Record the last message read: its fingerprint becomes durable with the next commit, and not before."""
        self._newest = newest

    def next(self) -> tuple[Stamp, Lineage]:
        """The stamp of a commit that begins now, the commits it comes after, and the log's fingerprints so far."""
        self._commits += 1
        if self._newest is not None:
            self._trail.add(self._newest)
        return Stamp(self._lineage.token, self._commits), replace(self._lineage, fingerprints=self._trail.dump())
