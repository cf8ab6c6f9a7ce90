"""Messages with names, and messages that cancel them."""

from __future__ import annotations

from sidecar.core.messages.cancels import CANCEL_HEADER, NAME_HEADER
from tests.scenarios.delayed import HEADER
from tests.support.kafka import Outgoing


def named(value: bytes, due_ms: int, name: bytes, partition: int = 0) -> Outgoing:
    """A message that is held."""
    return Outgoing(partition, value, None, [("tag", b"a"), (HEADER, b"%d" % due_ms), (NAME_HEADER, name)])


def cancelling(*names: bytes, partition: int = 0) -> Outgoing:
    """A message that cancels those with these names."""
    return Outgoing(partition, b"cancels", None, [("tag", b"a"), *((CANCEL_HEADER, name) for name in names)])
