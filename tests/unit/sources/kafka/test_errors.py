"""What the client says of a broker, as an operator reads it."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from sidecar.sources.kafka.reach import text_of


@pytest.mark.parametrize(
    "passing", ["", " (after 3ms in state CONNECT)", " (after 0ms in state CONNECT, 1 identical error(s) suppressed)"]
)
def test_the_same_failure_reads_the_same(passing: str) -> None:
    """Durations and counts are left out, so that a failure that lasts is one line of the log, not one a second."""
    text = "localhost:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused"
    assert text_of(KafkaError(KafkaError._TRANSPORT, text + passing)) == text
