"""Takes over a partition whose changelog fences: its entries count without a commit of the source."""

from __future__ import annotations

from dataclasses import dataclass, field

from sidecar.delay.changelog.interface import FencingRestorer
from sidecar.delay.changelog.reach import REACH_KEY, Handed, PutReach, read_reach, resumed
from sidecar.delay.changelog.records import claim
from sidecar.delay.changelog.takeover import Reading, TakenOver, Takeover
from sidecar.delay.rows import ORIGIN_MAX
from sidecar.errors import ConfigError

NEVER = ORIGIN_MAX + 1
"""Above all offsets."""


@dataclass(slots=True)
class FencedTakeover(Takeover):
    """One attempt; see `Takeover`. It changes only the epoch: this owner may no longer be the source's owner.

    Args:
        handed: The source's offset, and its bounds.
    """

    restorer: FencingRestorer
    handed: Handed = field(default_factory=Handed)

    def run(self) -> TakenOver:
        """Take the partition over.

        Raises:
            ConfigError: A later version wrote a record.
            DoubtError: The source is to be asked again.
            UnavailableError: No database answers; try again.
        """
        store, start = self.restorer.open(self.tp), self.start
        epoch = self.restorer.append(self.tp, [claim()]) + 1
        reach, drops_from = resumed(self._reach(), start.lineage, start.watermark, start.seen, self.handed, epoch)
        start = start._replace(lineage=reach.lineage, watermark=NEVER if drops_from is None else drops_from)
        other = start.stores.other(store)
        reading = Reading(start, epoch, start.seen if other is None else other.seen)
        self.adopt([], True)  # noqa: FBT003
        self._read(reading, epoch)
        known = reading.known
        known.add_range(start.seen, max(start.seen, reach.seen))
        return TakenOver(
            store,
            epoch,
            reading.kept,
            known,
            [*reading.ended, *reading.cancelled()],
            [*reading.void, *reading.garbage()],
            is_lost=bool(start.stores.epoch) and start.stores.own != store,
            moved=list(reading.moved()),
            staying=list(reading.staying()),
            read=reading.records,
            reach=reach,
            last_named=reading.proved,
        )

    def _reach(self) -> PutReach | None:
        raw = self.restorer.find(self.tp, REACH_KEY)
        try:
            return None if raw is None else read_reach(raw)
        except ValueError as error:
            raise ConfigError(
                f"the store of {self.tp} has a record that this version cannot read: {error}",
                hint="start the version that wrote it, or a later one",
            ) from error
