"""The one interface to clients that hand messages over one by one and take acknowledgements back. No implementation.

Such a client owns no queue and can read nothing again: what is not acknowledged is handed over again by the broker, to
any member of the group, with another offset and another handle.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol

from sidecar.core.records import Header


class Handed(NamedTuple):
    """A message as it was handed over."""

    handle: Hashable
    """What `ack`, `extend` and `release` want; unique within the process. None where another member has it."""
    topic: str
    """The topic subscribed to; of a retried message the one that it came from."""
    broker: str
    queue: int
    offset: int
    """As the broker tells it: of a retried message in the retry queue. -1 where the client cannot tell."""
    body: bytes
    born_ms: int | None
    stored_ms: int | None
    message_id: str
    """The id that its producer drew (`UNIQ_KEY`). Not unique: two messages can carry one."""
    offset_message_id: str
    """Broker and commit-log offset in hexadecimal digits, empty where the client cannot tell."""
    tag: bytes
    """Empty where there is none."""
    keys: Sequence[bytes]
    properties: Sequence[Header]
    """All of them, in a stable order, with TAGS, KEYS and UNIQ_KEY as far as the message has these."""
    reconsume_times: int
    """How often it was handed over before."""
    retry_topic: str = ""
    """Where it was stored for being handed over again; empty where it stands in `topic` itself."""


class LeasedClient(Protocol):
    """A member of the group, driven by one thread: no method may be called by another."""

    moves: bool
    """Whether a message that is handed over again has another topic, queue or offset."""

    def open(self) -> None:
        """Connect and subscribe; returns when messages can be received.

        Raises:
            UnavailableError: Servers cannot be reached, or topic or group is unknown, for the whole start-up time.
            CredentialsError: The credentials are refused.
        """
        ...

    def receive(self, timeout_s: float) -> Sequence[Handed]:
        """What has come; at once when something is there, else after the time. Never raises for a broker's absence."""
        ...

    def ack(self, handles: Collection[Hashable]) -> None:
        """Begin to acknowledge. What fails is tried again inside, or the message is handed over again."""
        ...

    def extend(self, handles: Collection[Hashable]) -> None:
        """Keep these from being handed over again meanwhile; nothing where the client does so itself."""
        ...

    def release(self, handles: Collection[Hashable]) -> None:
        """Give these back, to be handed over again soon."""
        ...

    def receipt(self, handle: Hashable) -> str:
        """What another process needs to acknowledge it; empty where none can."""
        ...

    def adopt(self, topic: str, message_id: str, receipt: str) -> Hashable:
        """The handle of a message that another process was given."""
        ...

    def pause(self, full: bool) -> None:
        """Take nothing more in while `full`, or go on; what is on its way already may still be received."""
        ...

    def problems(self) -> Mapping[str, str]:
        """What is wrong at present: a key, and a sentence for an operator."""
        ...

    def close(self) -> None:
        """Disconnect after acknowledgements and releases that were begun, for a few seconds; harmless when repeated."""
        ...
