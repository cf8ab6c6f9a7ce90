"""New batches: they wait until everything that they promise is durable. Sends nothing."""

from __future__ import annotations

from sidecar.core.delivery.answers.settlement import Settlement
from sidecar.core.delivery.outbox import Outbox
from sidecar.core.delivery.stages import Event, Stage
from sidecar.core.parts import Batch, Part


class Admission:
    """Holds back new batches until a successor would know of them.

    Args:
        settlement: Takes messages without a row.
    """

    def __init__(self, outbox: Outbox, settlement: Settlement) -> None:
        self._outbox = outbox
        self._settlement = settlement

    def add(self, parts: list[Part]) -> None:
        """Add a new batch of these parts; its unframeable messages become dead letters first."""
        for part in parts:
            if part.unframeable:
                self._settlement.give_up_unframeable(part)
        rows = [part for part in parts if part.count]
        if rows:
            batch = self._outbox.begin(rows)
            self._outbox.move(batch, Event.DURABLE if _may_be_sent(batch) else Event.HELD_BACK)

    def release_durable(self) -> None:
        """Make batches ready whose intents, and whose unframeable messages' dead letters, are durable."""
        for batch in self._outbox.batches(Stage.HELD_BACK):
            if _may_be_sent(batch):
                self._outbox.move(batch, Event.DURABLE)


def _may_be_sent(batch: Batch) -> bool:
    # A part that is split while a dead letter of it is being stored could not tell which half the letter belongs to.
    return all((part.durable and not part.unframeable) or not part.life.alive for part in batch.parts)
