"""How messages are read. Values only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sidecar.core.messages.fields import Raw
from sidecar.core.records import Columns, Framer, Message, TopicPartition

ReadTags = Callable[[TopicPartition, Sequence[Message]], Sequence[Raw]]
ReadIds = Callable[[TopicPartition, Sequence[Message]], Sequence[int | None]]
ReadKeys = Callable[[TopicPartition, Sequence[Message]], bytes]


@dataclass(frozen=True, slots=True)
class Reading:
    """How messages are read.

    Args:
        columns: The source's column readers.
        framer: The sink's format.
        tags: Reads the raw tags of messages.
        groups: Raw tags to group, None for unwanted; computes what is missing.
        ids: Reads message ids, None where only positions tell duplicates.
        capacity: Positions and ids remembered a partition.
        bitmap_ids: Whether ids grow like counters (Roaring) or are random (hash set).
        keys: Reads business keys, where a ledger tells duplicates and `ids` is None.
        keep_ms: How long ids are remembered at least; None as long as `capacity` allows.
        digest: 64 bits that tell a message from any other at its offset, None where the log needs no fingerprints.
        copies: Whether a partition holds copies of messages of others of its broker: an id that is known of one of
            these is known. A copy never makes its origin a duplicate: what an earlier life sent of the origin must go
            out as it was.
    """

    columns: Columns
    framer: Framer
    tags: ReadTags
    groups: Mapping[Raw, str | None]
    ids: ReadIds | None = None
    capacity: int = 100_000_000
    bitmap_ids: bool = False
    keys: ReadKeys | None = None
    keep_ms: float | None = None
    digest: Callable[[Message], int] | None = None
    copies: Callable[[TopicPartition], bool] | None = None
