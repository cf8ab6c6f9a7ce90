"""New batches: they wait until all that they promise is durable. Sends nothing."""

from __future__ import annotations

from sidecar.core.delivery.answers.settlement import Settlement
from sidecar.core.delivery.outbox import Outbox
from sidecar.core.delivery.stages import Event, Stage
from sidecar.core.parts import Batch, Part


class Admission:
    """Lets batches go no further before a successor would know of them.

    Args:
        outbox: Takes the batches.
        settlement: Takes what has no row.
    """

    def __init__(self, outbox: Outbox, settlement: Settlement) -> None:
        self._outbox = outbox
        self._settlement = settlement

    def add(self, parts: list[Part]) -> None:
        """A new batch of these parts; what of them has no row becomes dead letters before."""
        for part in parts:
            if part.unframeable:
                self._settlement.give_up_unframeable(part)
        rows = [part for part in parts if part.count]
        if rows:
            batch = self._outbox.begin(rows)
            self._outbox.move(batch, Event.DURABLE if _may_be_sent(batch) else Event.HELD_BACK)

    def release_durable(self) -> None:
        """Batches whose intents are durable by now, and whose unframeable messages are, become ready."""
        for batch in self._outbox.batches(Stage.HELD_BACK):
            if _may_be_sent(batch):
                self._outbox.move(batch, Event.DURABLE)


def _may_be_sent(batch: Batch) -> bool:
    # Were a part split while some of it is being stored, nothing could say which half that belongs to.
    return all((part.durable and not part.unframeable) or not part.life.alive for part in batch.parts)
