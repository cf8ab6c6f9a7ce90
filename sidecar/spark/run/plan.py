"""The plan of a job: its settings end here. Made once, on the driver; each task gets a copy.

It has values, and references to secrets and files. A task creates clients, locks and readers of messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sidecar.config.model import Settings
from sidecar.core.batching import Limits
from sidecar.core.delivery.rules import DeliveryRules
from sidecar.runtime.build import ReadingPlan, delivery_rules, held_bytes_of
from sidecar.sinks.formats import FORMATS
from sidecar.spark.ranges.broker import BrokerRanges
from sidecar.spark.run.pinned import Checkpoint


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The parameters of all tasks. Its `repr` shows no secret.

    Args:
        held_max_bytes: Memory for messages that are read and not delivered, in bytes.
        rules: Rules of delivery; None if the rows fill a table.
        folder: The run's folder, on shared storage.
        query: The name of the query's folder in the run's; empty if it is the run's.
    """

    broker: BrokerRanges
    reading: ReadingPlan
    limits: Limits
    held_max_bytes: int
    rules: DeliveryRules | None
    log: tuple[str, str]
    folder: Path
    checkpoint: Checkpoint
    query: str = ""

    @classmethod
    def of(
        cls, settings: Settings, broker: BrokerRanges, folder: Path, checkpoint: Checkpoint, query: str = ""
    ) -> RunPlan:
        batch, sink = settings.batch, settings.sink.chosen
        rules = None
        if sink.table is None:
            assert sink.row_format != "row", "only a table has no format"
            rules = delivery_rules(settings, FORMATS[sink.row_format].separator, copied=True)
        return cls(
            broker,
            ReadingPlan.of(settings),
            Limits(batch.max_messages, batch.max_bytes),
            held_bytes_of(settings),
            rules,
            (settings.log.format, settings.log.level),
            folder,
            checkpoint,
            query,
        )
