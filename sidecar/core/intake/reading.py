"""Rules of reading messages. Values only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sidecar.core.messages.fields import Raw
from sidecar.core.messages.masks import TagMask
from sidecar.core.messages.tags import RefusedTags
from sidecar.core.records import Columns, Framer, Message, TopicPartition

if TYPE_CHECKING:  # who has ids, or messages that are held, imports these
    from sidecar.core.messages.cancels import ReadCancels
    from sidecar.core.messages.due import ReadDue
    from sidecar.core.messages.ids import OddIds
    from sidecar.core.messages.tag_index import TagIndex
    from sidecar.core.windows.idruns import Search

ReadTags = Callable[[TopicPartition, Sequence[Message]], Sequence[Raw]]
ReadIds = Callable[[TopicPartition, Sequence[Message]], Sequence[int | None]]
ReadKeys = Callable[[TopicPartition, Sequence[Message]], bytes]


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """Rules by which messages are read.

    Args:
        tags: Reads the raw tags of messages.
        groups: Group by raw tags, None for unwanted; missing entries are computed.
        ids: Reads message ids, None if duplicates are recognized by position only.
        capacity: Number of positions and ids remembered per partition.
        bitmap_ids: Whether ids grow like counters (Roaring) or are random (hash set).
        keys: Reads business keys, if a ledger recognizes duplicates and `ids` is None.
        keep_ms: Minimum time for which ids are remembered; None for as long as `capacity` allows.
        digest: A 64-bit hash that distinguishes messages at the same offset, None if the log needs no fingerprints.
        copies: Whether a partition has copies of messages of other partitions of its broker: an id that is known there
            is known here. A copy never makes its origin a duplicate: a part of the origin that was sent earlier must be
            sent again unchanged.
        due: Reads due times, if a store holds messages until they are due. The result follows from the message, never
            from the clock: otherwise a part that is read again would have other members.
        search: Looks ids up in sorted runs; None for the way of numpy.
        sorting: The same rules for runs that have a sorter; None if it cannot keep to them.
        unwanted: The first unwanted tags of messages, for people.
        may_want: What the mask of tags says of raw tags.
        plain_mask: The mask, if single values are one tag each.
        refused: Contents that it refused; the lane counts for itself.
        filtered_at_broker: Whether the broker leaves unwanted messages out, so that they are gaps.
        odd_ids: Counts ids that cannot be compared.
        tag_index: Makes and reads what a store keeps of the tags of held messages; None if all may be wanted.
        cancels: Reads which held messages are cancelled; a message that cancels is neither held nor delivered.
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
    due: ReadDue | None = None
    cancels: ReadCancels | None = None
    tag_index: TagIndex | None = None
    sorting: object | None = None
    search: Search | None = None
    odd_ids: OddIds | None = None
    unwanted: Collection[str] = ()
    may_want: Callable[[Raw], bool] = lambda raw: True
    plain_mask: TagMask | None = None
    refused: RefusedTags = field(default_factory=RefusedTags)
    filtered_at_broker: bool = False
