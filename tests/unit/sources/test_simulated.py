"""The simulated broker: messages are read from the offset that is asked for, and a run of them has a size."""

from __future__ import annotations

import pytest

from sidecar.core.records import TopicPartition
from sidecar.sources.base import RUN_BYTES, run_length
from tests.support.simulated_source import SimulatedBroker

TP = TopicPartition("orders", 0)


def test_messages_are_read_from_the_offset_that_is_asked_for() -> None:
    """The first ones included, and those that are left of older ones."""
    broker = SimulatedBroker()
    broker.create_topic(TP.topic)
    for number in range(4):
        broker.produce(TP.topic, b"%d" % number)
    assert [[one.offset for one in broker.read(TP, offset)] for offset in (0, 1, 3, 4)] == [
        [0, 1, 2, 3],
        [1, 2, 3],
        [3],
        [],
    ]
    assert [one.offset for one in broker.read(TP, 1, 2)] == [1, 2]


@pytest.mark.parametrize(
    ("sizes", "length"),
    [([], 1), ([1], 1), ([RUN_BYTES + 1, 1], 1), ([RUN_BYTES, 0, 1], 2), ([RUN_BYTES // 2] * 5, 2), ([0] * 9, 9)],
)
def test_a_run_has_a_mebibyte_or_one_message(sizes: list[int], length: int) -> None:
    """As many as fit together, and at least one."""
    assert run_length(iter(sizes)) == length
