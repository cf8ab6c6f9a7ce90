"""Framing of messages into the rows of a fragment."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from sidecar.core.batching import UNFRAMEABLE, pick_keys
from sidecar.core.intake.reading import ReadingRules
from sidecar.core.records import NO_ID, Fragment, Message, TopicPartition


def fragment_of(
    reading: ReadingRules,
    tp: TopicPartition,
    messages: list[Message],
    now_ms: float,
    refused: Mapping[int, str],
) -> Fragment:
    """The fragment of messages that were read together, at least one; an unframeable message has only its offset.

    Args:
        refused: Offsets of messages that are given up, perhaps of others too, with the reasons.
    """
    offsets: array[int] = array("q", reading.columns.offsets(messages))
    reasons = {offset: refused[offset] for offset in offsets if offset in refused} if refused else {}
    if reasons:
        accepted = [message for message, offset in zip(messages, offsets, strict=True) if offset not in reasons]
        rest = fragment_of(reading, tp, accepted, now_ms, {}) if accepted else _without_rows(reading)
        rest.unframeable = {o: reasons.get(o, UNFRAMEABLE) for o in sorted([*rest.unframeable, *reasons])}
        rest.at_ms = now_ms
        return rest
    data, odd = reading.framer.frame(tp.source, messages)
    ids = None
    if reading.ids is not None and not tp.delayed:
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


def _without_rows(reading: ReadingRules) -> Fragment:
    return Fragment(array("q"), b"", None if reading.ids is None else array("q"))
