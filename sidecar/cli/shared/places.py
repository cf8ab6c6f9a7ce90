"""A message at the source, as an argument of several commands."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

import click

from sidecar.core.records import TopicPartition

_PLACE = re.compile(r"([^:]+):(?:([^:]+):)?(\d+):(\d+)")


class MessagePlace(NamedTuple):
    """A message at the source."""

    tp: TopicPartition
    offset: int

    def __str__(self) -> str:
        return f"{self.tp.topic}:{self.tp.queue}:{self.offset}"


def _place(value: str) -> MessagePlace:
    match = _PLACE.fullmatch(value)
    if not match:
        raise click.BadParameter(f"{value!r} is not TOPIC:PARTITION:OFFSET, as in `sidecar delay list` and in rows")
    topic, broker, partition, offset = match.groups(default="")
    return MessagePlace(TopicPartition(topic, int(partition), unquote(broker)), int(offset))


place_argument = click.argument("place", type=_place, metavar="TOPIC:PARTITION:OFFSET")
