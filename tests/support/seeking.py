"""`python -m tests.support.seeking FILE SEED`: the daemon with a source that hands some messages over twice.

Now and then it seeks back, as a rebalance or an operator may make a consumer do. Nothing else differs from the daemon.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import confluent_kafka as ck

from sidecar.config.loader import load
from sidecar.core.records import Run
from sidecar.daemon.lifecycle import Daemon
from sidecar.daemon.signals import Signals
from sidecar.ops.log import configure
from sidecar.sources.base import ReadPast
from sidecar.sources.kafka import build
from sidecar.sources.kafka.source import KafkaSource

SHARE = 0.12
"""Of the runs, that are read again; of each on average the half."""


class SeekingSource(KafkaSource):
    """The Kafka source, which seeks back on its own thread."""

    random: ClassVar[random.Random]

    def poll(self, timeout_s: float) -> Iterable[Run | ReadPast]:
        """What has come; some of it will come once more."""
        found = list(super().poll(timeout_s))
        last = {one.tp: one for one in found if isinstance(one, Run)}
        for tp, run in last.items():
            if tp in self._partitions.identities and self.random.random() < SHARE:
                again = self.random.randint(1, len(run.messages))
                with contextlib.suppress(ck.KafkaException):  # it is being taken away
                    self._client.consumer.seek(ck.TopicPartition(tp.topic, tp.partition, run.last + 1 - again))
        return found


def main(path: str, seed: str) -> None:
    """Run until SIGTERM."""
    SeekingSource.random = random.Random(int(seed))
    settings = load(Path(path))
    configure(settings.log.format, settings.log.level)
    signals = Signals()
    signals.install()
    with patch.object(build, "KafkaSource", SeekingSource):
        Daemon(settings, signals.stop_asked).run()


if __name__ == "__main__":
    arguments: Any = sys.argv[1:]
    main(*arguments)
