"""Choice of the ready batches to send: as many as there are senders, and only those that may be sent by now."""

from __future__ import annotations

from sidecar.core.delivery.claiming import Claiming
from sidecar.core.delivery.outbox import Outbox
from sidecar.core.delivery.output import Output
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.core.delivery.stages import Event, Stage
from sidecar.core.effects import Send
from sidecar.core.partition.ownerships import Ownerships
from sidecar.core.parts import Batch


class Sending:
    """Sends ready batches, and claims them first if there is a ledger.

    Nothing of a fenced partition is sent. A failing group is tested with one batch. With `ordered`, a part waits for
    all parts before it in its lane. With a ledger, rows that are not owned are claimed first.
    """

    def __init__(
        self, rules: DeliveryRules, owned: Ownerships, outbox: Outbox, claims: Claiming | None, output: Output
    ) -> None:
        self._rules = rules
        self._owned = owned
        self._outbox = outbox
        self._claims = claims
        self._output = output

    def step(self, now_ms: float) -> None:
        """Send batches that may be sent by now; claiming continues while all senders are busy."""
        if self._claims is not None:
            self._claims.step(now_ms)
        for batch in self._outbox.batches(Stage.READY):
            if self._claims is not None and not self._claims.ours(batch, now_ms):
                self._claim(self._claims, batch, now_ms)
            elif self._outbox.count(Stage.SENDING) < self._rules.concurrency:
                self._send_if_it_may_go(batch)
            elif self._claims is None:
                break  # with a ledger, later batches can be claimed while all senders are busy
            else:
                self._outbox.put_last(batch)

    def _claim(self, claims: Claiming, batch: Batch, now_ms: float) -> None:
        if not claims.askings.busy and self._may_go(batch):
            claims.ask(batch, now_ms)
        else:
            self._outbox.put_last(batch)

    def _send_if_it_may_go(self, batch: Batch) -> None:
        if not self._may_go(batch):
            self._outbox.put_last(batch)
        elif alive := batch.alive:
            batch = self._outbox.shrink(batch, alive)
            self._outbox.move(batch, Event.SENT)
            self._output.ask(Send(batch))
        else:
            self._outbox.end(batch, "released")

    def _may_go(self, batch: Batch) -> bool:
        # One send tests whether a failing group works again: more would fail with it, or overtake it if it does.
        groups = self._outbox.groups
        if groups.failing(batch.group) and groups[batch.group].sending:
            return False
        if self._owned.holds_back(batch):
            return False
        return not self._rules.ordered or all(self._owned[part.tp].outstanding.is_next(part) for part in batch.alive)
