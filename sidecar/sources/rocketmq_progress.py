"""How far a queue is, as text for the state file: the core's state, and what tells whether it still applies. No broker.

RocketMQ's commits have no metadata, so unlike with Kafka the state file is the authority as long as the broker's own
committed offset agrees with it.
"""

from __future__ import annotations

import json
from typing import NamedTuple, Self

from sidecar.state.offset_map import Decoded, Identity, decode


class Mark(NamedTuple):
    """A message that was read: when another one stands at its offset, or none, the queue is not what it was."""

    offset: int
    position: int
    stored_ms: int


class Progress(NamedTuple):
    """What is kept of a queue.

    Args:
        text: The core's state, as it would stand in a commit's metadata.
        incarnation: Of that state.
        watermark: Of that state.
        floor: What the broker certainly has on its disk: it writes committed offsets every 5 s.
        mark: The newest message that was read, None before the first.
    """

    text: str
    incarnation: int
    watermark: int
    floor: int
    mark: Mark | None

    def dump(self) -> str:
        """As text."""
        return json.dumps(self)

    @classmethod
    def load(cls, text: str) -> Self | None:
        """From text; None where it is no such text."""
        try:
            state, incarnation, watermark, floor, mark = json.loads(text)
            mark = Mark(*map(int, mark)) if mark else None
            return cls(str(state), int(incarnation), int(watermark), int(floor), mark)
        except (ValueError, TypeError):
            return None

    def decoded(self, known: Identity, rules: bytes) -> Decoded:
        """The core's state, if it is of this group and these rules."""
        return decode(self.text, self.watermark, known, rules)
