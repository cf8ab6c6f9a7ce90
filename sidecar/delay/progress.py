"""A partition's progress, kept beside its messages: where the next owner continues. Bytes in and out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import orjson

from sidecar.core.partition_state import PartitionState
from sidecar.errors import StateError
from sidecar.state.offset_map import Identity, decode, encode

_NUMBERS = "watermark", "own", "incarnation", "parked_before", "parked"


@dataclass(frozen=True, slots=True)
class HeldProgress:
    """The progress of a partition's delayed messages.

    Args:
        identity: The identity of positions: of the store, not of a topic.
        topic_id: Id of the topic from which the last messages came.
        incarnation: Incarnation of the partition from which they came.
        parked: The number of the last parked part, of the partition itself, that counts since before this incarnation.
    """

    identity: Identity
    state: PartitionState
    topic_id: str
    incarnation: int
    parked: int = 0

    def encoded(self, rules: bytes) -> bytes:
        """The bytes to keep."""
        source = {
            "incarnation": self.incarnation,
            "topic_id": self.topic_id,
            "own": self.identity.incarnation,
            "watermark": self.state.watermark,
            "parked": self.state.parked,
            "parked_before": self.parked,
            "state": encode(self.identity, rules, self.state),
        }
        return orjson.dumps(source)


def restored(raw: bytes | None, identity: Identity, rules: bytes) -> HeldProgress:
    """The progress that was kept.

    If it was kept under other rules, its intents do not apply: all above the watermark is open again, in a new scope.

    Args:
        raw: The kept bytes; None if there are none.
        identity: The identity of positions; its incarnation is ignored.
        rules: The hash of the rules in force.

    Raises:
        StateError: It is something else.
    """
    if raw is None:
        return HeldProgress(_own(identity, 0), PartitionState(0, 0), "", 0)
    try:
        kept = orjson.loads(raw)
        watermark, own, incarnation, before, parked = (_number(kept[name]) for name in _NUMBERS)
        topic_id, text = str(kept["topic_id"]), str(kept["state"])
    except (ValueError, TypeError, KeyError) as error:
        raise StateError(
            f"delayed messages: the progress of a partition cannot be read: {error!r}",
            hint="use the version of Sidecar that wrote it, or a later one",
        ) from error
    decoded = decode(text, watermark, identity, rules)
    source = topic_id, incarnation, before
    if decoded.state is None:
        return HeldProgress(_own(identity, own + 1), PartitionState(watermark, watermark, parked=parked), *source)
    return HeldProgress(_own(identity, own), replace(decoded.state, parked=parked), *source)


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise TypeError(f"no number: {value!r}")
    return value


def _own(identity: Identity, incarnation: int) -> Identity:
    return Identity(identity.cluster_id, identity.group_id, identity.topic_id, incarnation)
