"""Framing of messages into the rows of a fragment."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from sidecar.core.batching import pick_keys
from sidecar.core.intake.reading import Reading
from sidecar.core.records import NO_ID, Fragment, Message, TopicPartition


def fragment_of(reading: Reading, tp: TopicPartition, messages: list[Message], now_ms: float) -> Fragment:
    """The fragment of messages that were read together, at least one; an unframeable message has only its offset."""
    data, odd = reading.framer.frame(tp, messages)
    offsets: array[int] = array("q", reading.columns.offsets(messages))
    ids = None
    if reading.ids is not None:
        ids = array("q", [NO_ID if number is None else number for number in reading.ids(tp, messages)])
    keys = b"" if reading.keys is None else reading.keys(tp, messages)
    unframeable: Sequence[int] = ()
    if odd:
        unframeable = array("q", [offsets[i] for i in odd])
        left_out = set(odd)
        keep = [i for i in range(len(messages)) if i not in left_out]
        offsets = array("q", [offsets[i] for i in keep])
        ids = ids and array("q", [ids[i] for i in keep])
        keys = pick_keys(keys, keep)
    return Fragment(offsets, data, ids, unframeable, now_ms, keys)
