"""Held messages of a tag or a tag group: rows exclude most others, and the messages themselves decide the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from sidecar.core.intake.reading import ReadTags
from sidecar.core.messages.fields import Raw
from sidecar.core.messages.masks import TagMask
from sidecar.core.messages.tag_index import TagIndex
from sidecar.core.messages.tags import TagFilter
from sidecar.core.records import TopicPartition
from sidecar.delay.rows import Held


class Sought:
    """Selects the messages that are sought; with neither a tag nor a group, nothing is read.

    Args:
        read: Reads the raw tags of held messages.
        index: Made with the same rules.
        tag: A tag that messages must have, wanted or not; None for any.
        group: Their tag group; None for any.
    """

    def __init__(
        self, filter_: TagFilter, read: ReadTags, index: TagIndex, tag: str | None = None, group: str | None = None
    ) -> None:
        self._filter, self._read, self._index = filter_, read, index
        self._group = group
        self._tag = None if tag is None else tag.encode("utf-8", "surrogateescape")
        self.needs_content = tag is not None or group is not None
        """Whether the rows alone cannot decide."""
        self._masks: list[TagMask] = []
        if self._tag is not None:
            self._masks.append(TagMask([self._tag]))
        if group is not None:
            self._masks.append(filter_.mask_of_group(group))

    def may_match(self, rules: NDArray[np.uint32], masks: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which messages may be sought, by the columns of their rows."""
        found = np.ones(len(rules), np.bool_)
        for each in self._masks:
            found &= self._index.may_match_each(each, rules, masks)
        return found

    def matches(self, tp: TopicPartition, messages: Sequence[Held]) -> Iterable[bool]:
        """Whether each message of a partition is sought."""
        return map(self._is_sought, self._read(tp, messages))

    def _is_sought(self, raw: Raw) -> bool:
        has_tag = self._tag is None or self._tag in self._filter.tags(raw)
        return has_tag and (self._group is None or self._filter.groups[raw] == self._group)
