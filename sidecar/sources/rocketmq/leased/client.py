"""Interface of leased clients, which hand messages over one by one and take acknowledgements. No implementation.

A leased client owns no queue and can read nothing again: a message that is not acknowledged is handed over again by the
broker, to any member of the group, with another offset and another handle.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol

from sidecar.core.records import Header, Place


class HandedMessage(NamedTuple):
    """A message that was handed over."""

    handle: Hashable
    """Argument of `ack`, `extend` and `release`; unique within the process. None if another member has it."""
    topic: str
    """The subscribed topic; for a retried message, its old topic."""
    place: Place
    """The place at the broker; for a retried message, in the retry topic. The offset is -1 if unknown."""
    body: bytes
    born_ms: int | None
    stored_ms: int | None
    message_id: str
    """The producer's id (`UNIQ_KEY`). Not unique: two messages can have the same."""
    offset_message_id: str
    """Broker and commit-log offset in hexadecimal digits; empty if unknown."""
    tag: bytes
    """Empty without a tag."""
    keys: Sequence[bytes]
    properties: Sequence[Header]
    """All properties, in a stable order, including TAGS, KEYS and UNIQ_KEY."""
    reconsume_times: int
    """Number of earlier deliveries."""

    @property
    def retry_topic(self) -> str:
        """The topic of its copy if it is a retried message; empty if it is in `topic` itself."""
        return self.place.topic if self.place.topic != self.topic else ""


class LeasedClient(Protocol):
    """A member of the group. All methods must be called from the same thread."""

    moves: bool
    """Whether the topic, queue or offset changes when a message is handed over again."""

    def open(self) -> None:
        """Connect and subscribe; returns when messages can be received. Raises like `Source.open`."""
        ...

    def receive(self, timeout_s: float) -> Sequence[HandedMessage]:
        """Messages that arrived; waits for the first, at most for the time. Never raises if a broker is down."""
        ...

    def ack(self, handles: Collection[Hashable]) -> None:
        """Begin to acknowledge. Failures are retried internally, or the message is handed over again."""
        ...

    def extend(self, handles: Collection[Hashable]) -> None:  # noqa: ARG002
        """Extend the leases of these messages, unless they last as long as the connection."""
        return

    def is_leased(self, handle: Hashable) -> bool:  # noqa: ARG002
        """Whether the broker granted this client the message until now; False if leases are not the client's own."""
        return False

    def release(self, handles: Collection[Hashable]) -> None:  # noqa: ARG002
        """Give these messages back, unless the broker hands them over again as soon as this process has left."""
        return

    def receipt(self, handle: Hashable) -> str:  # noqa: ARG002
        """The receipt, with which another process can acknowledge the message; empty if none can."""
        return ""

    def adopt(self, topic: str, message_id: str, receipt: str) -> Hashable:
        """The handle of a message that another process received; called only with receipts of `receipt`."""
        raise AssertionError(topic, message_id, receipt)

    def pause(self, full: bool) -> None:
        """Stop receiving while `full`, or resume; messages on their way may still be received."""
        ...

    def problems(self) -> Mapping[str, str]:
        """Present problems: a key, and a sentence for an operator."""
        ...

    def close(self) -> None:
        """Finish pending acknowledgements and releases, for a few seconds, and disconnect; may be repeated."""
        ...
