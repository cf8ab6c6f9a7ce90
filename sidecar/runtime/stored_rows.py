"""The framer of the format `envelope` for RocketMQ's stored messages, in C where it can. The bytes are Python's."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING

import orjson

from sidecar.core.messages.tags import Memo
from sidecar.core.records import Columns, Framer, TopicPartition
from sidecar.errors import ConfigError
from sidecar.sinks.formats import TagsOf, row_head, tag_members
from sidecar.sources.kafka.lane import load
from sidecar.sources.rocketmq.remoting.columns import RocketMqColumns
from sidecar.sources.rocketmq.wire.messages import StoredMessage

if TYPE_CHECKING:
    import sidecar_fastlane as fastlane

_BODIES, _PROPERTIES, _HOSTS = map(itemgetter, (1, 2, 6))
_NUMBERS = itemgetter(0, 3, 5, 7)
"""Offset, time of production, commit-log offset, times handed back."""


class StoredFramer:
    """A `Framer` that frames in C, and rare messages in Python."""

    def __init__(self, library: fastlane.Library, tags_of: TagsOf, python: Framer) -> None:
        self.separator = python.separator
        self._library = library
        self._tags_of = tags_of
        self._python = python
        self._members: Memo[tuple[bytes, ...], bytes] = Memo(tag_members)

    def frame(self, tp: TopicPartition, messages: Sequence[StoredMessage]) -> tuple[bytes, Sequence[int]]:
        """Leaves no message out."""
        from sidecar_fastlane.stored import stored_rows

        data = stored_rows(
            self._library,
            list(map(_BODIES, messages)),
            list(map(_PROPERTIES, messages)),
            list(map(_HOSTS, messages)),
            list(map(self._members.__getitem__, self._tags_of(tp, messages))),
            array("q", chain.from_iterable(map(_NUMBERS, messages))),
            row_head(tp.topic, tp.partition),
            b',"broker":' + orjson.dumps(tp.broker),
        )
        return self._python.frame(tp, messages) if data is None else (data, ())


def framer_of(row_format: str, columns: Columns, tags_of: TagsOf, python: Framer) -> Framer:
    """The framer: C needs RocketMQ's stored messages, `envelope`, and the package `consumer-sidecar-fastlane`.

    With `ndjson`, Python joins the bodies in less time than it takes to hand them to C.
    """
    if not isinstance(columns, RocketMqColumns) or row_format != "envelope":
        return python
    try:
        return StoredFramer(load(), tags_of, python)
    except ConfigError:
        return python
