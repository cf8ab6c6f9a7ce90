"""Messages named on the command line."""

from __future__ import annotations

import click
import pytest

from sidecar.cli.shared.printing import MessagePlace, place_argument
from sidecar.core.records import TopicPartition


def place_of(text: str) -> MessagePlace:
    """What a command gets for this argument."""
    found: list[MessagePlace] = []
    command = place_argument(click.command()(lambda place: found.append(place)))
    command.main([text], standalone_mode=False)
    return found[0]


@pytest.mark.parametrize(
    ("text", "tp"),
    [
        ("orders:3:1207", TopicPartition("orders", 3)),
        ("orders:broker-a:3:1207", TopicPartition("orders", 3, "broker-a")),
        ("orders:a%3Ab:3:1207", TopicPartition("orders", 3, "a:b")),
    ],
    ids=["Kafka", "RocketMQ", "a broker with a colon"],
)
def test_a_place_is_topic_queue_and_offset(text: str, tp: TopicPartition) -> None:
    """As the tables of the commands have it."""
    assert place_of(text) == MessagePlace(tp, 1207)


@pytest.mark.parametrize("text", ["orders", "orders:3", "orders:3:x", ":3:1", "orders:a:b:3:1"])
def test_another_text_is_refused(text: str) -> None:
    """With the form that it must have."""
    with pytest.raises(click.UsageError, match="is not TOPIC:PARTITION:OFFSET"):
        place_of(text)
