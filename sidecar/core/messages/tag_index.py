"""Index entries of messages' tags: their mask, and the rules under which it was made. Reads no message."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import xxhash

from sidecar.core.messages.fields import Raw
from sidecar.core.messages.masks import TagMask
from sidecar.core.messages.tags import Memo, TagFilter

if TYPE_CHECKING:
    import numpy as np  # takes 0.1 s, and columns of entries are read only where messages are held
    from numpy.typing import NDArray

ENTRY = struct.Struct("<QI")
"""The mask, and the hash of the rules, which is never 0."""
ENTRY_BYTES = ENTRY.size
NO_TAGS = bytes(ENTRY_BYTES)
"""The entry of a message whose tags were not read: it may have any."""
_FORM = "1"
"""Version of the masks; changed when tags are hashed or read in another way."""


class TagIndex:
    """Entries of an index, which say of most messages without a tag that they have none of it.

    An entry counts only if it was made with the same place of tags and the same separator: under others, the same bytes
    are other tags.

    Args:
        rules: Says where tags are in a message, and what separates them; equal for the same tags only.
    """

    def __init__(self, filter_: TagFilter, rules: str) -> None:
        self.rules = (xxhash.xxh3_64_intdigest(f"{_FORM} {rules}".encode()) & 0xFFFFFFFF) or 1
        """The hash of the rules."""
        self._filter = filter_
        self.entries: Memo[Raw, bytes] = Memo(self._entry)
        """Entry by raw field value."""
        self._unwanted: Memo[bytes, bool] = Memo(self._is_unwanted)
        self.leave = None if filter_.wants.takes_all else self._unwanted.__getitem__
        """Whether an entry's message cannot be wanted, never True for a wanted one; None if all may be wanted."""

    def _entry(self, raw: Raw) -> bytes:
        return ENTRY.pack(self._filter.mask(raw), self.rules)

    def _is_unwanted(self, entry: bytes) -> bool:
        mask, rules = ENTRY.unpack(entry)
        return rules == self.rules and not self._filter.may_match(mask)

    def may_match_each(self, tags: TagMask, rules: NDArray[np.uint32], masks: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which messages may have one of some tags, by the columns of their entries."""
        found: NDArray[np.bool_] = rules != self.rules
        ours = ~found
        masks = masks[ours]
        if tags.takes_all or len(tags.each) > len(masks):
            found[ours] = list(map(tags.may_match, masks.tolist()))
            return found
        matching = masks != masks  # none so far
        for bits in tags.each:
            matching |= (masks & bits) == bits
        found[ours] = matching
        return found
